"""Every server of the intake benchmark answers. Its full run is `make bench`."""

from __future__ import annotations

import httpx
import pytest
from benchmarks.intake import WAYS
from benchmarks.intake_server import serving

from tests.support.api import make_token
from tests.support.servers import available_binaries

INTENT = {"target": "bench", "payload": {"to": "+41"}, "idempotency_key": "k"}


@pytest.fixture(scope="session")
def postgres():
    return next(iter(available_binaries()))


async def test_each_way_answers_and_those_with_a_database_write(database, outbox):
    outbox.publish("bench")
    headers = {"Authorization": f"Bearer {make_token(database, 'ingest')}"}
    written = {}
    for way in WAYS:
        async with serving(way, database.url) as url, httpx.AsyncClient(headers=headers) as client:
            response = await client.post(
                f"{url}/v1/intents", json=INTENT | {"idempotency_key": way}
            )
            assert response.status_code == 201, response.text
            keys = database.execute("SELECT idempotency_key FROM leasehold.intents")
            written[way] = {"idempotency_key": way} in keys
    assert written == {
        "one-by-one": True,
        "no-database": False,
        "fastapi": False,
        "leasehold": True,
    }

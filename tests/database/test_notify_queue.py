"""A server whose notification queue is full refuses NOTIFY, but still accepts intents."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import psycopg
import pytest

from leasehold.domain.contract import Contract
from leasehold.embedded.server import EmbeddedPostgres
from leasehold.intake.intake import Intake
from leasehold.store.postgres.migrate import migrate
from leasehold.store.postgres.store import PostgresStore
from tests.support.servers import available_binaries

FILL = "SELECT pg_notify('leasehold_due', repeat('x', 7000) || n) FROM generate_series(1, 50) AS n"


@pytest.fixture
def full_queue():
    """Start a server with a listener that never reads its notifications."""
    newest = max(available_binaries().values(), key=lambda one: one.version)
    if newest.version < 17:
        pytest.skip("the size of the queue can be set from PostgreSQL 17 on")
    folder = Path(tempfile.mkdtemp(prefix="leasehold-notify-"))
    folder.chmod(0o711)  # as root the server runs as another user
    settings = {"fsync": "off", "max_notify_queue_pages": "64"}
    with EmbeddedPostgres(folder / "data", binaries=newest, settings=settings) as server:
        migrate(server.url)
        with psycopg.connect(server.url) as deaf, psycopg.connect(server.url) as loud:
            deaf.execute("LISTEN leasehold_due")
            deaf.commit()
            deaf.execute("SELECT 1")  # and leaves its transaction open
            with pytest.raises(psycopg.errors.ProgramLimitExceeded):
                _notify_for_ever(loud)
            loud.rollback()
            yield server
    shutil.rmtree(folder)


def _notify_for_ever(connection):
    while True:
        connection.execute(FILL)
        connection.commit()


async def test_full_notification_queue_does_not_prevent_an_enqueue(full_queue):
    async with PostgresStore(full_queue.url) as store:
        contract = Contract(target="sms", scope="item", guarantee="keyed")
        await store.publish_contract("sms", contract.terms(), "test")
        async with Intake(store) as intake:
            ids = {
                await intake.enqueue("sms", {"to": "+41"}),
                await intake.enqueue("sms", {"to": "+41"}, idempotency_key="once"),
                await intake.enqueue("sms", {"to": "+41"}, idempotency_key="once"),
            }
    with psycopg.connect(full_queue.url) as connection:
        found = connection.execute("SELECT intent_id FROM leasehold.outbox_pending").fetchall()
        [(usage,)] = connection.execute("SELECT pg_notification_queue_usage()").fetchall()
    assert {one for (one,) in found} == ids
    assert len(ids) == 2
    assert usage == 1

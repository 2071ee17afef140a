"""Unexpected errors and old clients."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from tests.support.api import make_token, problem

SMS = {"target": "sms", "payload": 1}


@pytest.fixture
def broken(api, monkeypatch):
    """The API with parts that raise unexpected errors."""

    async def fail(*_, **__):
        raise RuntimeError("the password is hush")

    monkeypatch.setattr(api.service.stores.reader, "list_intents", fail)
    monkeypatch.setattr(api.service.group_commit, "enqueue", fail)
    return api


async def test_defect_is_a_problem_document_without_details(broken, caplog):
    for response in (await broken.get("/v1/intents"), await broken.post("/v1/intents", SMS)):
        document = problem(response, 500, "internal")
        assert "hush" not in response.text
        assert document["request_id"] in caplog.text
    # The next request is answered as usual.
    assert (await broken.get("/v1/targets")).status_code == 200


async def test_http_1_0_client_gets_a_stream_without_chunks(api, outbox):
    token = make_token(api.database, "read")
    await api.service.tokens.step()
    url = urlsplit(api.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(f"GET /v1/events HTTP/1.0\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert (await reader.readline()).startswith(b"retry:")
        outbox.enqueue()
        outbox.complete(outbox.claim())
        while not (await reader.readline()).startswith(b"data:"):
            pass
    writer.close()

"""Every example of docs/how-to/client.md does what the page says, as it stands there."""

from __future__ import annotations

import asyncio
import re
from inspect import iscoroutinefunction, isgeneratorfunction
from pathlib import Path
from uuid import UUID

import pytest

from leasehold.domain.intent import AttemptState
from leasehold.store.postgres.readers import event_cursor, read_cursor
from tests.support.api import make_token
from tests.support.http_gateways import RawServer

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "client.md"
EXAMPLES = dict(
    re.findall(r"^```python ([\w-]+)\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
)


@pytest.fixture
async def run(api):
    token = make_token(api.database, "ingest", "read")
    await api.service.tokens.step()

    async def run(name, *arguments, url=api.url):
        namespace = {}
        exec(compile(EXAMPLES[name], f"{DOCUMENT.name}:{name}", "exec"), namespace)
        function = [one for one in namespace.values() if hasattr(one, "__code__")][-1]
        given = (url, token, *arguments)
        if iscoroutinefunction(function):
            return await function(*given)
        if isgeneratorfunction(function):
            return await asyncio.to_thread(lambda: list(function(*given)))
        return await asyncio.to_thread(function, *given)

    return run


def test_every_example_is_run():
    assert set(EXAMPLES) == {"enqueue", "enqueue-many", "repeat", "look", "follow"}


async def test_repeated_enqueue_returns_the_same_intents(run, api):
    first = await run("enqueue")
    assert isinstance(first, UUID)
    assert await run("enqueue") == first
    assert await run("enqueue-many", ["Ada", "Grace"]) == ["accepted"] * 2
    assert await run("enqueue-many", ["Ada", "Mary"]) == ["duplicate", "accepted"]
    assert api.intents() == 4


async def test_message_whose_outcome_is_unknown_is_kept_with_its_key(run, api):
    kept = {}

    async def fail(_reader, writer):
        writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")

    def keep(message, idempotency_key):
        kept[idempotency_key] = message

    async with RawServer(fail).running() as server:
        assert await run("repeat", {"text": "Hello"}, keep, url=server.url) is None
    [(key, message)] = kept.items()
    assert message == {"text": "Hello"}
    assert key.encode() in server.requests[0]
    assert isinstance(await run("repeat", message, keep), UUID)
    assert api.intents() == len(kept) == 1


async def test_failures_are_listed_with_their_reasons(run, outbox):
    [intent_id] = outbox.enqueue(1)
    outbox.complete(outbox.claim(), "FAILED", reason="no such number", detail="+41")
    outbox.enqueue(1)
    assert await run("look", "sms") == [(intent_id, "no such number", "+41")]


async def test_end_of_an_intent_is_followed_from_a_cursor(run, outbox):
    [intent_id] = outbox.enqueue(1)
    outbox.complete(outbox.claim(), "RETRYABLE")
    outbox.make_due()
    outbox.complete(outbox.claim())
    beginning = event_cursor(0, UUID(int=0), 0)
    cursor, state = await run("follow", intent_id, beginning)
    assert (read_cursor(cursor)[2], state) == (2, AttemptState.DISPATCHED)

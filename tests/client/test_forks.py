"""Clients that are used before a process forks, and then in all of its processes at once."""

from __future__ import annotations

import asyncio

import pytest

from leasehold.domain.api_token import TokenScope
from tests.support.api import make_token
from tests.support.forking_program import INTENTS, TARGETS, run_program


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_forked_processes_get_the_receipts_of_their_own_requests(api, outbox, kind):
    for target in TARGETS:
        outbox.publish(target)
    token = make_token(api.database, TokenScope.INGEST)
    await api.service.tokens.step()
    acknowledged = await asyncio.to_thread(run_program, kind, api.url, token)
    stored = api.database.execute("SELECT idempotency_key, intent_id FROM leasehold.intents")
    assert acknowledged == {one["idempotency_key"]: str(one["intent_id"]) for one in stored}
    assert len(acknowledged) == INTENTS * len(TARGETS)

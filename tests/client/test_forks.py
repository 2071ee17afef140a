"""Clients that are used before a process forks, and then in all of its processes at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from leasehold.domain.api_token import TokenScope
from tests.support.api import make_token
from tests.support.forking_program import CHILDREN, INTENTS

SECONDS = 60


def run_program(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "tests.support.forking_program", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_forked_processes_get_the_receipts_of_their_own_requests(api, kind):
    token = make_token(api.database, TokenScope.INGEST)
    await api.service.tokens.step()
    done = await asyncio.to_thread(run_program, kind, api.url, token)
    assert (done.returncode, done.stderr) == (0, "")
    acknowledged = dict(line.split() for line in done.stdout.splitlines())
    stored = api.database.execute("SELECT idempotency_key, intent_id FROM leasehold.intents")
    assert acknowledged == {one["idempotency_key"]: str(one["intent_id"]) for one in stored}
    assert len(acknowledged) == (CHILDREN + 3) * INTENTS

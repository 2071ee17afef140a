"""Senders that are paused at a random moment of their calls, and wake long after their lease and
its quarantine: what they had not sent is not sent, so no effect is doubled.

A `lookup` gateway shows every byte that leaves too late: the successor has asked it, was told that
the key is unknown, and has submitted again.
"""

from __future__ import annotations

import asyncio
import os
import random
from signal import SIGSTOP, SIGTERM

import pytest

from tests.support.elections import ROW_LEASE_SETTINGS
from tests.support.engine import until

# Each round pauses all senders once; a long run has more.
ROUNDS = int(os.environ.get("TEST_PAUSES", "1"))
SENDERS = 3
ITEMS = 400
SLOTS = 100
# They are busy for longer than that.
PAUSED_WITHIN_SECONDS = 0.1


@pytest.mark.parametrize("scope", ["item", "cluster", "stream"])
async def test_paused_sender_sends_nothing_when_it_wakes_after_the_quarantine(engine, scope):
    ids = []
    for number in range(ROUNDS):
        ids += await pause_busy_senders(
            engine, scope, [f"{number}-{one}" for one in range(SENDERS)]
        )
    effects = engine.sandbox.effects("lookup")
    assert (effects.doubled_keys, effects.effects) == (0, len(ids))


async def pause_busy_senders(engine, scope, targets):
    """Pause a busy sender of each target, let another instance do all their work, and wake them.

    In the end they do a little more work, so whatever they had to send has left. Returns all ids.
    """
    for target in targets:
        group = {"lease_name": target} if scope == "cluster" else {}
        engine.publish(
            target,
            "lookup",
            scope=scope,
            concurrency=SLOTS,
            **group,
        )
    settings = ROW_LEASE_SETTINGS | {"concurrency": str(SLOTS)}
    # They sleep past their leases and the quarantine of two leases.
    asleep = {"fault": "none:stop:3600", **settings}
    senders = [engine.worker("--targets", target, **asleep) for target in targets]
    names = [await sender.started() for sender in senders]
    before = engine.sandbox.effects("lookup").effects
    ids = [one for target in targets for one in enqueue(engine, ITEMS, target)]
    await until(lambda: engine.sandbox.effects("lookup").effects > before)
    for sender in senders:
        await asyncio.sleep(random.uniform(0, PAUSED_WITHIN_SECONDS))
        sender.send(SIGSTOP)
    for name in names:
        engine.expire_held(name)
    successor = engine.worker("--targets", ",".join(targets), **settings)
    quarantines = asyncio.create_task(end_quarantines(engine))
    await engine.until_status(ids)
    await end(successor)
    for sender in senders:
        sender.wake_later()
    more = [one for target in targets for one in enqueue(engine, 1, target)]
    # One may claim with a request from before its pause, and leave that to the reaper.
    claims = asyncio.create_task(expire_now_and_then(engine, names))
    await engine.until_status(more)
    claims.cancel()
    quarantines.cancel()
    for sender in senders:
        await end(sender)
    return ids + more


async def expire_now_and_then(engine, names):
    """Let what these hold expire after longer than a call takes."""
    while True:
        await asyncio.sleep(8)
        for name in names:
            engine.expire_held(name)


async def end_quarantines(engine):
    """Let quarantines end, each of which the successor began."""
    while True:
        engine.database.owner_execute(
            # Locked by id, as everybody does.
            "WITH doubted AS MATERIALIZED (SELECT intent_id FROM leasehold.outbox_pending"
            "  WHERE last_state = 'IN_DOUBT' AND claimed_by IS NULL AND begun_at IS NULL"
            "    AND due_at > clock_timestamp() AND due_at < 'infinity'"
            "  ORDER BY intent_id FOR NO KEY UPDATE)"
            " UPDATE leasehold.outbox_pending AS pending"
            "   SET due_at = clock_timestamp(), last_modified_at = clock_timestamp()"
            "  FROM doubted WHERE pending.intent_id = doubted.intent_id"
        )
        await asyncio.sleep(0.5)


def enqueue(engine, count, target):
    """Enqueue intents, each into a stream of its own; the other scopes ignore streams."""
    entries = [
        {"target": target, "payload": number, "stream": f"s{number}"} for number in range(count)
    ]
    return [row["intent_id"] for row in engine.outbox.enqueue_entries(entries)]


async def end(worker):
    worker.send(SIGTERM)
    assert await worker.ended() == 0

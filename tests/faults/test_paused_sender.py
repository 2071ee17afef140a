"""Senders that are paused at a random moment of their calls, and wake long after their lease and
its quarantine: what they had not sent is not sent, so no effect is doubled.

A `lookup` gateway shows every byte that leaves too late: the successor has asked it, was told that
the key is unknown, and has submitted again.
"""

from __future__ import annotations

import asyncio
import os
import random
from signal import SIGCONT, SIGSTOP, SIGTERM

import pytest

from tests.support.elections import ROW_LEASE_SETTINGS
from tests.support.engine import LEASE_SECONDS, until
from tests.support.stream_orders import STREAM_SETTINGS

# Each round pauses all senders once; a long run has more.
ROUNDS = int(os.environ.get("TEST_PAUSES", "1"))
SENDERS = 3
ITEMS = 1_000
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
            quarantine_seconds=2 * LEASE_SECONDS,
            **group,
        )
    settings = ROW_LEASE_SETTINGS | STREAM_SETTINGS | {"concurrency": str(SLOTS)}
    senders = [engine.worker("--targets", target, **settings) for target in targets]
    await asyncio.gather(*(sender.started() for sender in senders))
    before = engine.sandbox.effects("lookup").effects
    ids = [one for target in targets for one in enqueue(engine, ITEMS, target)]
    await until(lambda: engine.sandbox.effects("lookup").effects > before)
    for sender in senders:
        await asyncio.sleep(random.uniform(0, PAUSED_WITHIN_SECONDS))
        sender.send(SIGSTOP)
    successor = engine.worker("--targets", ",".join(targets), **settings)
    await engine.until_status(ids)
    await end(successor)
    for sender in senders:
        sender.send(SIGCONT)
    more = [one for target in targets for one in enqueue(engine, 1, target)]
    await engine.until_status(more)
    for sender in senders:
        await end(sender)
    return ids + more


def enqueue(engine, count, target):
    """Enqueue intents, each into a stream of its own; the other scopes ignore streams."""
    entries = [
        {"target": target, "payload": number, "stream": f"s{number}"} for number in range(count)
    ]
    return [row["intent_id"] for row in engine.outbox.enqueue_entries(entries)]


async def end(worker):
    worker.send(SIGTERM)
    assert await worker.ended() == 0

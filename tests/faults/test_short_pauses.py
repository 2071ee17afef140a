"""A holder is paused again and again for about as long as its lease lasts, and leads again itself.

A renewal that is answered late must not revive its trust: results that were discarded meanwhile are
forgotten, and their `blind` calls would stay begun for as long as the holder lives.
"""

from __future__ import annotations

import asyncio
import random
from signal import SIGCONT, SIGSTOP, SIGTERM

import pytest

from tests.support.elections import ROW_LEASE_SETTINGS
from tests.support.engine import SHORT_CALLS, SHORT_LEASE, until
from tests.support.held_gateway import HeldGateway

LEASE_SECONDS = 3.0
SLOTS = 20
SETTINGS = (
    ROW_LEASE_SETTINGS
    | SHORT_CALLS
    | {
        "cluster_lease_seconds": str(LEASE_SECONDS),
        "stream_claim_seconds": "1.5",
        "stream_grace_seconds": str(LEASE_SECONDS - 1.5),
        "concurrency": str(SLOTS),
    }
)
BEGUN = "SELECT * FROM leasehold.outbox_pending WHERE begun_at IS NOT NULL"


@pytest.mark.parametrize("scope", ["cluster", "stream"])
@pytest.mark.parametrize(
    "cycles", [3, pytest.param(20, marks=[pytest.mark.thorough, pytest.mark.timeout(600)])]
)
async def test_no_blind_call_stays_begun_under_a_live_holder(engine, scope, cycles):
    async with HeldGateway().running() as gateway:
        gateway.may_answer.set()
        gateway.answer_seconds = 0.5
        terms = SHORT_LEASE | {"gateway": gateway.terms("blind"), "concurrency": SLOTS}
        engine.publish("bank", "blind", scope=scope, **terms)
        worker = engine.worker(**SETTINGS)
        ids = []
        for cycle in range(cycles):
            # The target's breaker opens now and then: no more may wait than one pause leaves.
            waiting = engine.statuses(ids).count("pending")
            entries = [
                {"target": "bank", "payload": one, "stream": f"{cycle}-{one}"}
                for one in range(max(1, 3 * SLOTS - waiting))
            ]
            ids += [row["intent_id"] for row in engine.outbox.enqueue_entries(entries)]
            before = gateway.received.total()
            await until(lambda before=before: gateway.received.total() > before)
            worker.send(SIGSTOP)
            await asyncio.sleep(LEASE_SECONDS * random.uniform(0.7, 1.3))
            worker.send(SIGCONT)
        # Each is called at once, or in doubt and then held for a person.
        await engine.until_status(ids, "accepted", "held")
        await until(lambda: not engine.database.execute(BEGUN))
        assert worker.process.poll() is None
        held = [one for one in ids if engine.outbox.status(one) == "held"]
        answers = [
            (
                operate(engine, "cancel_intent", one),
                operate(engine, "resolve_intent", one, "DISPATCHED"),
            )
            for one in held
        ]
        assert set(answers) <= {("in_doubt", "resolved")}
        assert set(gateway.received.values()) == {1}, "nothing was resent"
        worker.send(SIGTERM)
        assert await worker.ended() == 0


def operate(engine, function, intent_id, *arguments):
    [row] = engine.outbox.call("operator", function, intent_id, *arguments, "ann", "a test")
    return row[function]

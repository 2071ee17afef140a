"""Signed batches reach a ledger that decides with its blocks, forgets batches, and is busy."""

from __future__ import annotations

import base64

import pytest

from tests.support.engine import until
from tests.support.http_gateways import batch_id


def publish(engine, **terms):
    gateway = {
        "kind": "ledger",
        "url": f"{engine.sandbox.url}/ledger",
        "allow_private": True,
        "ask_after_seconds": 0.1,
    }
    engine.publish("batches", "lookup", **({"gateway": gateway} | terms))


def enqueue(engine, *names):
    entries = [
        {
            "target": "batches",
            "body": base64.b64encode(f"signed {name}".encode()).decode(),
            "content_type": "application/octet-stream",
            "metadata": {"batch_id": batch_id(name)},
        }
        for name in names
    ]
    return [row["intent_id"] for row in engine.outbox.enqueue_entries(entries)]


@pytest.mark.parametrize("scope", ["item", "cluster"])
async def test_batch_is_delivered_only_when_its_block_is_committed(engine, scope):
    engine.sandbox.set_faults("ledger", pending_seconds=0.3)
    publish(engine, scope=scope, quarantine_seconds=120)
    ids = enqueue(engine, "a", "b")
    engine.worker()
    await engine.until_status(ids)
    for intent_id in ids:
        states = engine.outbox.states(intent_id)
        assert states[0] == "SUBMITTED"
        assert states[-1] == "DISPATCHED"
    assert sorted(engine.sandbox.effect_counts("ledger")) == sorted([batch_id("a"), batch_id("b")])


async def test_evicted_batch_is_asked_for_again_before_it_is_sent_again(engine):
    engine.sandbox.set_faults("ledger", evict_rate=1)
    publish(engine)
    [intent_id] = enqueue(engine, "a")
    engine.worker()
    await until(lambda: "IN_DOUBT" in engine.outbox.states(intent_id))
    engine.sandbox.set_faults("ledger")
    await engine.until_status([intent_id])
    assert engine.outbox.states(intent_id) == [
        "SUBMITTED",
        "IN_DOUBT",
        "RETRYABLE",
        "SUBMITTED",
        "DISPATCHED",
    ]
    sent = [one.kind for one in engine.sandbox.requests() if one.key == batch_id("a")]
    first, second = (n for n, kind in enumerate(sent) if kind == "submission")
    assert sent[first + 1 : second] == ["lookup", "lookup"], "before and after the quarantine"
    assert engine.sandbox.effect_counts("ledger") == {batch_id("a"): 1}

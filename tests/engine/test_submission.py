"""Enqueued intents are submitted and recorded."""

from __future__ import annotations

from signal import SIGTERM


async def test_keyed_intents_are_submitted_once_each_and_recorded(engine):
    engine.publish("sms")
    ids = engine.outbox.enqueue(50)
    worker = engine.worker()
    await engine.until_status(ids)
    effects = engine.sandbox.effects("keyed")
    assert (effects.keys, effects.effects, effects.doubled_keys) == (50, 50, 0)
    assert all(engine.outbox.states(intent_id) == ["DISPATCHED"] for intent_id in ids)
    worker.send(SIGTERM)
    assert await worker.ended() == 0

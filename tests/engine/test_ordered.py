"""Targets of scope stream: strict order inside a stream, parallel across streams."""

from __future__ import annotations

from collections import defaultdict


def enqueue_rounds(engine, streams, rounds, target="orders"):
    """Enqueue one intent per stream and round; return the ids by stream, in order."""
    ids = defaultdict(list)
    for _ in range(rounds):
        entries = [
            {"target": target, "payload": {"stream": stream}, "stream": f"s{stream}"}
            for stream in range(streams)
        ]
        for entry, row in zip(entries, engine.outbox.enqueue_entries(entries), strict=True):
            ids[entry["stream"]].append(str(row["intent_id"]))
    return ids


def effects_by_stream(engine, ids):
    """The keys that had an effect at the gateway, by stream, in the order of arrival."""
    stream_of = {key: stream for stream, keys in ids.items() for key in keys}
    seen = defaultdict(list)
    for entry in engine.sandbox.requests():
        if entry.had_effect:
            seen[stream_of[entry.key]].append(entry.key)
    return seen


async def test_each_stream_is_executed_in_the_order_of_its_commits(engine):
    engine.publish("orders", scope="stream")
    ids = enqueue_rounds(engine, streams=10, rounds=20)
    engine.worker()
    await engine.until_status([one for keys in ids.values() for one in keys])
    assert effects_by_stream(engine, ids) == ids

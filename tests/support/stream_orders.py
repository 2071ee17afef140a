"""Enqueue into streams, and read in which order the gateway saw them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.engine import Engine

TARGET = "orders"
# Both expiries of a stream's lease fit a test in which time passes.
SHORT_STREAMS = {
    "stream_claim_seconds": "2",
    "stream_grace_seconds": "3",
}

Ids = dict[str, list[str]]


def enqueue_rounds(engine: Engine, streams: int, rounds: int) -> Ids:
    """Enqueue one intent per stream and round; return the ids by stream, in order."""
    ids: Ids = defaultdict(list)
    for _ in range(rounds):
        entries = [
            {"target": TARGET, "payload": {"stream": number}, "stream": f"s{number}"}
            for number in range(streams)
        ]
        for entry, row in zip(entries, engine.outbox.enqueue_entries(entries), strict=True):
            ids[str(entry["stream"])].append(str(row["intent_id"]))
    return ids


def all_of(ids: Ids) -> list[str]:
    """All ids of all streams."""
    return [one for keys in ids.values() for one in keys]


def effects_by_stream(engine: Engine, ids: Ids) -> Ids:
    """The keys that had an effect at the gateway, by stream, in the order of arrival."""
    stream_of = {key: stream for stream, keys in ids.items() for key in keys}
    seen: Ids = defaultdict(list)
    after = 0
    while page := engine.sandbox.requests(after):
        for entry in page:
            if entry.had_effect:
                seen[stream_of[entry.key]].append(entry.key)
        after = page[-1].number
    return seen


def submissions_of(engine: Engine, key: str) -> int:
    """How many submissions with this key the gateway received."""
    found = 0
    after = 0
    while page := engine.sandbox.requests(after):
        found += sum(entry.key == key and entry.kind == "submission" for entry in page)
        after = page[-1].number
    return found

"""Ordered streams: items per second over many streams, compared with items and with other queues.

All drains are of no-op calls. With 1,000 streams, up to 1,000 calls can be made at a time. The cost
per item must not depend on the number of streams, so one drain has a stream for each item.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.peer_process import OURS, EngineFailed, ask, filled_database

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.server import BenchmarkServer

    Add = Callable[..., None]

STREAMS_NAME = "BENCHMARK_STREAMS"
ORDERED = f"{OURS}_stream"
PEERS = ("procrastinate_lock",)


@dataclass(frozen=True)
class Amounts:
    drained: int = 30_000
    streams: int = 1_000
    rounds: int = 3
    seconds_max: float = 30.0


FULL = Amounts()
SMOKE = Amounts(drained=50, streams=10, rounds=1, seconds_max=3.0)


class StreamsBenchmark:
    """All measurements of scope stream."""

    def __init__(self, server: BenchmarkServer, amounts: Amounts, add: Add) -> None:
        self._server = server
        self._amounts = amounts
        self._add = add

    def run(self) -> None:
        few, many = self._amounts.streams, self._amounts.drained
        rates: dict[str, list[float]] = {"items": [], "few": [], "many": []}
        for _ in range(self._amounts.rounds):
            rates["items"].append(self._drain(OURS, few))
            rates["few"].append(self._drain(ORDERED, few))
            rates["many"].append(self._drain(ORDERED, many))
        items, ordered, spread = (statistics.median(one) for one in rates.values())
        of_items = f"drain of {many:,} items without order"
        of_few = f"drain of {many:,} items in {few:,} streams"
        self._add(of_items, items, "items/s")
        self._add(of_few, ordered, "items/s", of_items, ordered / items)
        self._add(f"the same in {many:,} streams", spread, "items/s", of_few, spread / ordered)
        for peer in PEERS:
            try:
                rate = self._drain(peer, few)
            except EngineFailed:
                continue
            name = f"the same in {few:,} locks: {peer}"
            self._add(name, rate, "items/s")
            self._add(f"{of_few}: {OURS}", ordered, "items/s", name, ordered / rate)

    def _drain(self, name: str, streams: int) -> float:
        os.environ[STREAMS_NAME] = str(streams)
        limit = self._amounts.seconds_max
        with filled_database(self._server, name, self._amounts.drained, limit) as database:
            found = ask(
                name, "drain", database.url, str(database.items), str(limit), seconds=limit + 60
            )
        if not found["items"]:
            raise EngineFailed("nothing was drained")
        return found["items"] / found["seconds"]

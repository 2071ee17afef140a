"""Ordered streams: items per second over many streams, compared with items and with other queues.

All drains are of no-op calls. With 1,000 streams, up to 1,000 calls can be made at a time. The cost
per item must not depend on the number of streams, so one drain has a stream for each item, and
streams that are blocked or idle must cost the others nothing.

Ordered peers: Procrastinate (a lock), DBOS (a partition with a concurrency of 1) and pgmq (a FIFO
group; it has no workers, so there is no call to supervise). Looked at and left out: awa-pg has an
ordering key, but it only keeps the order of claims, and several jobs of one key run at the same
time. PgQueuer's limits are those of a function, not of a key. Absurd, Chancy, pgtask and taskiq-pg
have no order by key. pgjobq has one only if each job names the one before it. Hatchet needs a
server of its own.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from benchmarks import stream_takeover
from benchmarks.cluster import running, transactions_per_second
from benchmarks.peer_engine import QUEUE
from benchmarks.peer_process import OURS, EngineFailed, ask, filled_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.peer_process import Database
    from benchmarks.server import BenchmarkServer

    Add = Callable[..., None]

STREAMS_NAME = "BENCHMARK_STREAMS"
ORDERED = f"{OURS}_stream"
PEERS = {
    "procrastinate_lock": "locks",
    "dbos_partitions": "partitions",
    "pgmq_groups": "groups",
}
BLOCKED_PART = 100  # one stream of so many is blocked
BLOCKED_ITEMS = 30  # of each blocked stream
BLOCK = """
SELECT leasehold.enqueue_intents(jsonb_agg(jsonb_build_object(
         'target', %(target)s, 'payload', 1, 'stream', 'blocked-' || number)))
  FROM generate_series(1, %(streams)s) AS number, generate_series(1, %(items)s);
SELECT leasehold.pause_stream(%(target)s, 'blocked-' || number, 'benchmark', 'blocked')
  FROM generate_series(1, %(streams)s) AS number
"""


@dataclass(frozen=True)
class Amounts:
    drained: int = 100_000
    streams: int = 1_000
    rounds: int = 3
    seconds_max: float = 30.0
    idle_workers: int = 4
    idle_seconds: float = 15.0
    takeover: stream_takeover.Amounts = stream_takeover.FULL


FULL = Amounts()
SMOKE = Amounts(
    drained=500,
    streams=100,
    rounds=1,
    seconds_max=3.0,
    idle_workers=1,
    idle_seconds=2.0,
    takeover=stream_takeover.SMOKE,
)


class StreamsBenchmark:
    """All measurements of scope stream."""

    def __init__(self, server: BenchmarkServer, amounts: Amounts, add: Add) -> None:
        self._server = server
        self._amounts = amounts
        self._add = add

    def run(self) -> None:
        ordered = self.drains()
        self.peers(ordered)
        self.idle()
        stream_takeover.TakeoverBenchmark(self._server, self._amounts.takeover, self._add).run()

    def drains(self) -> float:
        """Drain in turns, so that noise hits all kinds; return the rate of ordered items."""
        few, many = self._amounts.streams, self._amounts.drained
        blocked = few // BLOCKED_PART
        rates: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(self._amounts.rounds):
            rates["items"].append(self.drain(OURS, few))
            rates["few"].append(self.drain(ORDERED, few))
            rates["blocked"].append(self.drain(ORDERED, few, blocked))
            rates["many"].append(self.drain(ORDERED, many))
        items, ordered, beside, spread = (statistics.median(one) for one in rates.values())
        of_items = f"drain of {many:,} items without order"
        of_few = f"drain of {many:,} items in {few:,} streams"
        self._add(of_items, items, "items/s")
        self._add(of_few, ordered, "items/s", of_items, ordered / items)
        of_blocked = f"the same beside {blocked:,} blocked streams"
        self._add(of_blocked, beside, "items/s", of_few, beside / ordered)
        self._add(f"the same in {many:,} streams", spread, "items/s", of_few, spread / ordered)
        return ordered

    def peers(self, ordered: float) -> None:
        few = self._amounts.streams
        for peer, word in PEERS.items():
            try:
                rate = self.drain(peer, few)
            except EngineFailed:
                continue
            name = f"drain in {few:,} {word}: {peer}"  # of as many as it could enqueue in time
            self._add(name, rate, "items/s")
            of_ours = f"drain in {few:,} streams: {OURS}, beside {peer}"
            self._add(of_ours, ordered, "items/s", name, ordered / rate)

    def idle(self) -> None:
        """What idle workers ask the database, with no stream and with many that are drained."""
        many, workers = self._amounts.drained, self._amounts.idle_workers
        with self.filled(ORDERED, 0, 1) as database:
            none = self.transactions(database.url)
        with self.filled(ORDERED, many, many) as database:
            self.drained(ORDERED, database)
            idle = self.transactions(database.url)
        name = f"transactions of {workers} idle workers, no streams"
        self._add(name, none, "1/s")
        of_idle = f"transactions of {workers} idle workers, {many:,} idle streams"
        self._add(of_idle, idle, "1/s", name, idle / none)

    def transactions(self, url: str) -> float:
        environment = {"LEASEHOLD_DATABASE_URL": url, "LEASEHOLD_LOG_FORMAT": "json"}
        with (
            tempfile.TemporaryDirectory() as folder,
            running(self._amounts.idle_workers, environment, folder),
            psycopg.connect(url, autocommit=True) as connection,
        ):
            return transactions_per_second(connection, self._amounts.idle_seconds)

    def drain(self, name: str, streams: int, blocked: int = 0) -> float:
        with self.filled(name, self._amounts.drained, streams) as database:
            if blocked:
                block(database.url, blocked)
            return self.drained(name, database)

    @contextmanager
    def filled(self, name: str, items: int, streams: int) -> Iterator[Database]:
        os.environ[STREAMS_NAME] = str(streams)
        limit = self._amounts.seconds_max
        with filled_database(self._server, name, items, limit) as database:
            yield database

    def drained(self, name: str, database: Database) -> float:
        limit = self._amounts.seconds_max
        found = ask(
            name, "drain", database.url, str(database.items), str(limit), seconds=limit + 60
        )
        if not found["items"]:
            raise EngineFailed("nothing was drained")
        return found["items"] / found["seconds"]


def block(url: str, streams: int) -> None:
    """Add streams that are paused, with items behind their heads."""
    given = {"target": QUEUE, "streams": streams, "items": BLOCKED_ITEMS}
    with psycopg.ClientCursor(psycopg.connect(url, autocommit=True)) as cursor:
        cursor.execute(BLOCK, given)
        cursor.connection.close()

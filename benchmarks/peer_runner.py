"""Runs one engine in its own process and virtual environment; answers in JSON lines.

    python -m benchmarks.peer_runner <engine> fill <url> <items> <seconds at most>
    python -m benchmarks.peer_runner <engine> drain <url> <items> <seconds at most>
    python -m benchmarks.peer_runner <engine> serve <url>      until its standard input ends
    python -m benchmarks.peer_runner <engine> trickle <url>    one item per line of standard input,
                                                               or "burst <items>" one by one
    python -m benchmarks.peer_runner <engine> endure <url>     counts its calls
    python -m benchmarks.peer_runner <engine> feed <url>       enqueues up to each line's number
    python -m benchmarks.peer_runner <engine> pace <url> <per second> <seconds>

Times are from the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import resource
import sys
import time
from importlib import metadata
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.peer_engine import BULK

if TYPE_CHECKING:
    from benchmarks.peer_engine import Engine

# How often a drain checks whether it is finished.
POLL_SECONDS = 0.005
MEMORY_AT = (0.1, 0.5, 1.0)
FEED_BATCH = 500


def say(**line: Any) -> None:  # noqa: ANN401 (whatever JSON can hold)
    # One write per line, since workers call from many threads.
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def fill(engine: Engine, url: str, items: str, seconds_max: str) -> None:
    """Create the schema and enqueue the items, many per call."""
    await engine.install(url)
    versions = {name: metadata.version(name) for name in engine.distributions}
    say(versions=versions, settings=engine.settings)
    done = 0
    async with engine.producer(url) as producer:
        began_at = time.monotonic()
        while done < int(items) and time.monotonic() - began_at < float(seconds_max):
            until = min(done + BULK, int(items))
            await producer.many(range(done, until))
            done = until
        say(items=done, seconds=time.monotonic() - began_at)


class Calls:
    """Counts calls; cheap and thread-safe."""

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.count = 0
        self._next = itertools.count(1).__next__

    def called(self, _number: int) -> None:
        if self.first_at is None:
            self.first_at = time.monotonic()
        self.count = self._next()


async def drain(engine: Engine, url: str, items: str, seconds_max: str) -> None:
    """Measure from the first call until the database shows every item as finished.

    If time runs out first, count the calls.
    """
    wanted, calls = int(items), Calls()
    ends_at = time.monotonic() + float(seconds_max)
    cpu_before = cpu_seconds()
    memory: dict[str, int] = {}
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        left = await unfinished(engine, connection, wanted)
        if left != wanted:
            raise RuntimeError(f"{left} items are waiting, not {wanted}")
        worker = asyncio.create_task(engine.work(url, calls.called))
        while left and time.monotonic() < ends_at:
            await asyncio.sleep(POLL_SECONDS)
            note_memory(memory, calls.count / wanted)
            if worker.done():
                worker.result()
            left = max(wanted - calls.count, 0)
            if not left:
                left = await unfinished(engine, connection, left)
        ended_at = time.monotonic()
        cpu = cpu_seconds() - cpu_before
    say(
        items=wanted - left,
        seconds=ended_at - (calls.first_at or ended_at),
        cpu_seconds=cpu,
        memory=memory,
    )
    end()


async def serve(engine: Engine, url: str) -> None:
    def called(number: int) -> None:
        say(number=number, begun_at=time.monotonic())

    worker = asyncio.create_task(engine.work(url, called))
    over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait([worker, over], return_when=asyncio.FIRST_COMPLETED)
    if worker.done():
        worker.result()
    end()


async def trickle(engine: Engine, url: str) -> None:
    async with engine.producer(url) as producer:
        while line := await asyncio.to_thread(sys.stdin.readline):
            called_at = time.monotonic()
            for number in numbers_of(line):
                await producer.one(number)
            say(called_at=called_at, committed_at=time.monotonic())


async def endure(engine: Engine, url: str) -> None:
    """Run a worker and report every 100 ms how many calls have begun."""
    calls = Calls()
    worker = asyncio.create_task(engine.work(url, calls.called))
    over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    while not over.done():
        if worker.done():
            worker.result()
        say(calls=calls.count, at=time.monotonic(), cpu_seconds=cpu_seconds())
        await asyncio.sleep(0.1)
    end()


async def feed(engine: Engine, url: str) -> None:
    """Enqueue in batches until as many items were enqueued as the last line says."""
    done = 0
    async with engine.producer(url) as producer:
        while line := await asyncio.to_thread(sys.stdin.readline):
            while done < int(line):
                until = min(done + FEED_BATCH, int(line))
                await producer.many(range(done, until))
                done = until
    end()


async def pace(engine: Engine, url: str, per_second: str, seconds: str) -> None:
    """Enqueue one by one at a steady rate, and report when each was committed."""
    gap, count = 1 / float(per_second), int(float(per_second) * float(seconds))
    async with engine.producer(url) as producer:
        began_at = time.monotonic()

        async def enqueue(number: int) -> None:
            called_at = time.monotonic()
            await producer.one(number)
            say(number=number, called_at=called_at, committed_at=time.monotonic())

        for number in range(count):
            await asyncio.sleep(max(0.0, began_at + number * gap - time.monotonic()))
            await enqueue(number)


def numbers_of(line: str) -> range:
    first, *burst = line.split()
    return range(int(burst[0])) if burst else range(int(first), int(first) + 1)


async def unfinished(
    engine: Engine, connection: psycopg.AsyncConnection[Any], uncalled: int
) -> int:
    if engine.unfinished is None:
        return uncalled
    cursor = await connection.execute(engine.unfinished)
    [count] = await cursor.fetchone() or [0]
    return count


def note_memory(memory: dict[str, int], done: float) -> None:
    for part in MEMORY_AT:
        if done >= part and f"{part:.0%}" not in memory:
            memory[f"{part:.0%}"] = resident_bytes()


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123 (one read of a pseudo file)
        return int(file.read().split()[1]) * resource.getpagesize()


def end() -> None:
    """Exit at once: the result is printed, and waiting for workers to stop gains nothing."""
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    name, job, *arguments = sys.argv[1:]
    engine: Engine = importlib.import_module(f"benchmarks.peer_{name}").Engine()
    jobs = (fill, drain, serve, trickle, endure, feed, pace)
    [run] = [one for one in jobs if one.__name__ == job]
    if engine.on_uvloop:
        importlib.import_module("uvloop").run(run(engine, *arguments))
    else:
        asyncio.run(run(engine, *arguments))


if __name__ == "__main__":
    main()

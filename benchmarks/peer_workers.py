"""Two workers compared with one, limited by the gateway: our sandbox with 20 ms latency."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from benchmarks.peer_leasehold import publish
from benchmarks.peer_process import EngineFailed
from leasehold.domain.contract import Contract
from leasehold.domain.intent import NewIntent
from leasehold.gateway.http.terms import HttpTerms
from leasehold.intake.intake import Intake

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASEHOLD = str(Path(sys.executable).with_name("leasehold"))
TARGET = "sandbox"
LATENCY_MS = 20
WAIT_SECONDS = 120.0
_LOOK_SECONDS = 0.02
_STOP_SECONDS = 40.0


def one_and_two_workers(url: str, items: int) -> tuple[float, float]:
    """Items per second of one worker with default concurrency, and of two."""
    with _sandbox() as address:
        contract = Contract(
            target=TARGET,
            scope="item",
            guarantee="keyed",
            gateway=HttpTerms(url=f"{address}/keyed", allow_private=True),
        )
        asyncio.run(publish(url, contract))
        return _rate(url, items, workers=1), _rate(url, items, workers=2)


def _rate(url: str, items: int, workers: int) -> float:
    """Measure from the first commit to the last ledger row."""
    with _running_workers(url, workers), psycopg.connect(url, autocommit=True) as connection:
        began_at = time.monotonic()
        asyncio.run(_enqueue(url, items))
        ends_at = began_at + WAIT_SECONDS
        while time.monotonic() < ends_at:
            [left] = connection.execute(
                "SELECT count(*) FROM leasehold.outbox_pending"
            ).fetchone() or [0]
            if left == 0:
                return items / (time.monotonic() - began_at)
            time.sleep(_LOOK_SECONDS)
    raise EngineFailed(f"{workers} workers did not finish {items} items in {WAIT_SECONDS:.0f} s")


async def _enqueue(url: str, items: int) -> None:
    async with Intake.connected(url) as intake:
        given = [NewIntent(target=TARGET, payload={"number": number}) for number in range(items)]
        await intake.enqueue_many(given, batch_size=1_000)


@contextmanager
def _sandbox() -> Iterator[str]:
    process = subprocess.Popen([LEASEHOLD, "sandbox"], stdout=subprocess.PIPE, text=True)
    try:
        address = _line(process)
        faults = json.dumps({"latency_ms": LATENCY_MS}).encode()
        request = urllib.request.Request(f"{address}/faults", data=faults, method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=_STOP_SECONDS)


@contextmanager
def _running_workers(url: str, count: int) -> Iterator[None]:
    """Run `leasehold worker` processes; wait until each logs that it has started."""
    command = [LEASEHOLD, "worker", "--targets", TARGET]
    processes = [
        subprocess.Popen(
            command,
            env=os.environ | {"LEASEHOLD_DATABASE_URL": url},
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        for process in processes:
            while "worker_started" not in _line(process):
                pass
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate(timeout=_STOP_SECONDS)


def _line(process: subprocess.Popen[str]) -> str:
    stream = process.stdout or process.stderr
    line = stream.readline() if stream else ""
    if not line:
        raise EngineFailed(f"{process.args} ended with exit code {process.wait()}")
    return line.strip()

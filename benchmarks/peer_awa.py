"""awa-pg: a queue written in Rust with Python handlers; bulk by COPY."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import awa

from benchmarks.peer_engine import QUEUE, SLOTS, payload, work_a_little

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from benchmarks.peer_engine import Called

WORKERS = SLOTS or 1_000
CLAIMERS = 1
CLAIM_BATCH = 512
POLL_MS = 10


@dataclass
class Call:
    to: str
    text: str
    sender: str
    number: int


class Engine:
    distributions = ("awa-pg",)
    settings = (
        f"max_workers={WORKERS}, claimers={CLAIMERS}, claim_batch_size={CLAIM_BATCH},"
        f" poll_interval_ms={POLL_MS}, COPY"
    )
    # Its view of jobs takes long to count in the middle of a drain. So its drain is over when the
    # last call has begun, which favours it by one flush.
    unfinished = None
    on_uvloop = False

    async def install(self, url: str) -> None:
        async with awa.AsyncClient(url) as client:
            await client.migrate()
            # Its newer storage; a fresh database starts on the older one until somebody asks.
            await client.install_queue_storage()

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncGenerator[Producer]:
        async with awa.AsyncClient(url) as client:
            yield Producer(client)

    async def work(self, url: str, called: Called) -> None:
        client = awa.AsyncClient(url, max_connections=20)

        @client.task(Call, queue=QUEUE)
        async def call(job: awa.Job[Call]) -> None:
            called(job.args.number)
            await work_a_little()

        queue = {
            "name": QUEUE,
            "max_workers": WORKERS,
            "claimers": CLAIMERS,
            "claim_batch_size": CLAIM_BATCH,
        }
        await client.start([queue], poll_interval_ms=POLL_MS)
        await asyncio.Event().wait()


class Producer:
    def __init__(self, client: awa.AsyncClient) -> None:
        self._client = client

    async def one(self, number: int) -> None:
        await self._client.insert(Call(**payload(number)), queue=QUEUE)

    async def many(self, numbers: range) -> None:
        calls = [Call(**payload(number)) for number in numbers]
        await self._client.enqueue_many_copy(calls, queue=QUEUE)

"""PgQueuer on asyncpg and uvloop, as its own benchmark runs it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from benchmarks.peer_engine import QUEUE, SLOTS, payload, work_a_little

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pgqueuer.models import Job

    from benchmarks.peer_engine import Called

BATCH = min(SLOTS, 500) or 1_000


class Engine:
    distributions = ("pgqueuer", "asyncpg")
    settings = f"asyncpg, uvloop, batch_size={BATCH}"
    unfinished = "SELECT count(*) FROM pgqueuer"
    on_uvloop = True

    async def install(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncGenerator[Producer]:
        connection = await asyncpg.connect(url)
        yield Producer(Queries(AsyncpgDriver(connection)))
        await connection.close()

    async def work(self, url: str, called: Called) -> None:
        consumer = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

        @consumer.entrypoint(QUEUE)
        async def call(job: Job) -> None:
            called(json.loads(job.payload or b"{}")["number"])
            await work_a_little()

        await consumer.run(batch_size=BATCH, max_concurrent_tasks=2 * SLOTS or None)


class Producer:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def one(self, number: int) -> None:
        await self._queries.enqueue(QUEUE, _body(number))

    async def many(self, numbers: range) -> None:
        bodies = [_body(number) for number in numbers]
        await self._queries.enqueue([QUEUE] * len(bodies), bodies, [0] * len(bodies))


def _body(number: int) -> bytes:
    return json.dumps(payload(number)).encode()

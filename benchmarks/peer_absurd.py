"""Absurd: its SQL comes with absurdctl, its worker with the SDK. It polls, and has no bulk call."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import absurdctl
import psycopg
from absurd_sdk import AsyncAbsurd

from benchmarks.peer_engine import QUEUE, payload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from benchmarks.peer_engine import Called

CONCURRENCY = 100
POLL_SECONDS = 0.01


class Engine:
    distributions = ("absurd-sdk", "absurdctl")
    settings = f"concurrency={CONCURRENCY}, poll_interval={POLL_SECONDS}, bulk by executemany"
    unfinished = f"SELECT count(*) FROM absurd.t_{QUEUE} WHERE state IN ('pending', 'running')"
    on_uvloop = False

    async def install(self, url: str) -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
        app = AsyncAbsurd(url, queue_name=QUEUE)
        await app.create_queue()
        await app.close()

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncGenerator[Producer]:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            yield Producer(connection)

    async def work(self, url: str, called: Called) -> None:
        app = AsyncAbsurd(url, queue_name=QUEUE)

        @app.register_task("call")
        async def call(params: dict[str, Any], _context: object) -> None:
            called(params["number"])

        await app.start_worker(concurrency=CONCURRENCY, poll_interval=POLL_SECONDS)


class Producer:
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._app = AsyncAbsurd(connection, queue_name=QUEUE)

    async def one(self, number: int) -> None:
        await self._app.spawn("call", payload(number), queue=QUEUE)

    async def many(self, numbers: range) -> None:
        rows = [(QUEUE, "call", json.dumps(payload(number))) for number in numbers]
        async with self._connection.transaction(), self._connection.cursor() as cursor:
            await cursor.executemany("SELECT absurd.spawn_task(%s, %s, %s, '{}')", rows)

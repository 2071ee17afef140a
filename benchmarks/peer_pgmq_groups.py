"""pgmq with a FIFO group for each stream. It is a message queue: the loop of the worker is ours.

A read returns messages of many groups, of each in order. Until they are deleted, nobody else gets
messages of these groups. Its SQL comes with its Python client.
"""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.peer_engine import QUEUE, payload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from benchmarks.peer_engine import Called

STREAMS = int(os.environ.get("BENCHMARK_STREAMS", "1000"))
READ_MAX = 1_000
VISIBLE_SECONDS = 60


class Engine:
    distributions = ("pgmq",)
    settings = f"{STREAMS} groups, read_grouped_rr of {READ_MAX}, delete in one call, FIFO index"
    unfinished = f"SELECT count(*) FROM pgmq.q_{QUEUE}"
    on_uvloop = False

    async def install(self, url: str) -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("CREATE SCHEMA IF NOT EXISTS pgmq")
            await connection.execute(files("pgmq").joinpath("sql/pgmq.sql").read_bytes())
            await connection.execute("SELECT pgmq.create(%s)", [QUEUE])
            await connection.execute("SELECT pgmq.create_fifo_index(%s)", [QUEUE])

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncGenerator[Producer]:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            yield Producer(connection)

    async def work(self, url: str, called: Called) -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            while True:
                cursor = await connection.execute(
                    "SELECT msg_id, message FROM pgmq.read_grouped_rr_with_poll(%s, %s, %s, 5, 10)",
                    [QUEUE, VISIBLE_SECONDS, READ_MAX],
                )
                messages = await cursor.fetchall()
                for _, message in messages:
                    called(message["number"])
                ids = [number for number, _ in messages]
                await connection.execute("SELECT pgmq.delete(%s, %s::bigint[])", [QUEUE, ids])


class Producer:
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def one(self, number: int) -> None:
        await self.many(range(number, number + 1))

    async def many(self, numbers: range) -> None:
        await self._connection.execute(
            "SELECT pgmq.send_batch(%s, %s::jsonb[], %s::jsonb[])",
            [
                QUEUE,
                [json.dumps(payload(one)) for one in numbers],
                [json.dumps({"x-pgmq-group": f"s{one % STREAMS}"}) for one in numbers],
            ],
        )

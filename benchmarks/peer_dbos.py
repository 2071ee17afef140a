"""DBOS: an async workflow on a queue. It polls, and has no bulk call."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig

from benchmarks.peer_engine import QUEUE, payload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from benchmarks.peer_engine import Called

CONCURRENCY = 100
POLL_SECONDS = 0.01
POOL = 20
VERSION = "bench"
queue_options: dict[str, Any] = {
    "worker_concurrency": CONCURRENCY,
    "polling_interval_sec": POLL_SECONDS,
}


class Engine:
    distributions = ("dbos",)
    settings = (
        f"worker_concurrency={CONCURRENCY}, polling_interval_sec={POLL_SECONDS}, pool of {POOL},"
        " bulk in one transaction"
    )
    unfinished = (
        "SELECT count(*) FROM dbos.workflow_status"
        f" WHERE status IN ('ENQUEUED', 'PENDING') AND queue_name = '{QUEUE}'"
    )
    on_uvloop = False

    async def install(self, url: str) -> None:
        await asyncio.to_thread(_launch, url, lambda _: None)
        await asyncio.to_thread(DBOS.destroy)

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncGenerator[Producer]:
        client = DBOSClient(system_database_url=url)
        yield Producer(client, url)
        client.destroy()

    async def work(self, url: str, called: Called) -> None:
        await asyncio.to_thread(_launch, url, called)
        await asyncio.Event().wait()


def _launch(url: str, called: Called) -> None:
    config: DBOSConfig = {
        "name": QUEUE,
        "system_database_url": url,
        "sys_db_pool_size": POOL,
        "log_level": "WARNING",
        "application_version": VERSION,
        "executor_id": "bench",
    }
    DBOS(config=config)

    @DBOS.workflow(name="call")
    async def call(given: dict[str, Any]) -> None:
        called(given["number"])

    DBOS.launch()
    DBOS.register_queue(QUEUE, **queue_options)


class Producer:
    """Its calls block the event loop; nothing else runs in this process."""

    def __init__(self, client: DBOSClient, url: str) -> None:
        self.client = client
        address = url.replace("postgresql://", "postgresql+psycopg://", 1)
        self.database = sqlalchemy.create_engine(address)
        self.options: Any = {
            "workflow_name": "call",
            "queue_name": QUEUE,
            "app_version": VERSION,
        }

    async def one(self, number: int) -> None:
        self.client.enqueue(self.options, payload(number))

    async def many(self, numbers: range) -> None:
        with self.database.begin() as connection:
            for number in numbers:
                self.client.enqueue_in_transaction(connection, self.options, payload(number))

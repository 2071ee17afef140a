"""Procrastinate: one async worker with many jobs at a time."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from procrastinate import App, PsycopgConnector

from benchmarks.peer_engine import QUEUE, payload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from procrastinate.tasks import Task

    from benchmarks.peer_engine import Called

CONCURRENCY = 30
POOL = 32


class Engine:
    distributions = ("procrastinate",)
    settings = f"concurrency={CONCURRENCY}, pool of {POOL}, batch_defer"
    unfinished = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
    on_uvloop = False

    async def install(self, url: str) -> None:
        app = _app(url)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncGenerator[Producer]:
        async with deferring(url) as task:
            yield Producer(task)

    async def work(self, url: str, called: Called) -> None:
        logging.disable(logging.INFO)
        app = _app(url)
        _task(app, called)
        async with app.open_async():
            await app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)


@asynccontextmanager
async def deferring(url: str) -> AsyncGenerator[Task]:
    """The task, to defer jobs with."""
    app = _app(url)
    task = _task(app, lambda _: None)
    async with app.open_async():
        yield task


def _app(url: str) -> App:
    return App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=POOL))


def _task(app: App, called: Called) -> Task:
    @app.task(name="call", queue=QUEUE)
    async def call(number: int, **_: object) -> None:
        called(number)

    return call


class Producer:
    def __init__(self, task: Task) -> None:
        self._task = task

    async def one(self, number: int) -> None:
        await self._task.defer_async(**payload(number))

    async def many(self, numbers: range) -> None:
        await self._task.batch_defer_async(*[payload(number) for number in numbers])

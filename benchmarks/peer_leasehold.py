"""Leasehold: one Instance with a Python gateway that accepts everything at once."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.peer_engine import QUEUE, SLOTS, payload, work_a_little
from leasehold.config import read_settings
from leasehold.domain.contract import Contract
from leasehold.domain.intent import NewIntent
from leasehold.domain.outcome import Accepted
from leasehold.gateway.python.terms import PythonTerms
from leasehold.intake.intake import Intake
from leasehold.runtime.instance import Instance
from leasehold.runtime.process import collect_rarely
from leasehold.store.postgres.migrate import migrate
from leasehold.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from benchmarks.peer_engine import Called
    from leasehold.gateway.protocol import Submission

# Slots of the worker and of the target. More slots mean larger batches, so a claim costs less.
CONCURRENCY_NAME = "BENCHMARK_CONCURRENCY"
CONCURRENCY = SLOTS or int(os.environ.get(CONCURRENCY_NAME, "3000"))

_ACCEPTED = Accepted()
_called: Called = lambda _: None  # noqa: E731 (replaced by `work`)


async def accept(submission: Submission) -> Accepted:
    """The gateway."""
    document: Any = submission.payload.value() if submission.payload else {}
    _called(document["number"])
    await work_a_little()
    return _ACCEPTED


class Engine:
    distributions = ("leasehold",)
    settings = f"concurrency={CONCURRENCY}"
    unfinished = "SELECT count(*) FROM leasehold.outbox_pending"
    on_uvloop = False

    async def install(self, url: str) -> None:
        migrate(url)
        await publish(
            url,
            Contract(
                target=QUEUE,
                scope="item",
                guarantee="keyed",
                gateway=PythonTerms(function="benchmarks.peer_leasehold:accept"),
                concurrency=CONCURRENCY,
            ),
        )

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncGenerator[Producer]:
        async with Intake.connected(url) as intake:
            yield Producer(intake)

    async def work(self, url: str, called: Called) -> None:
        global _called
        _called = called
        # A production worker logs little, and the other engines here log as little.
        logging.disable(logging.INFO)
        # As `leasehold worker` does.
        collect_rarely()
        async with Instance(read_settings(database_url=url, concurrency=CONCURRENCY)):
            await asyncio.Event().wait()


class Producer:
    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def one(self, number: int) -> None:
        await self._intake.enqueue(QUEUE, payload(number))

    async def many(self, numbers: range) -> None:
        given = [NewIntent(target=QUEUE, payload=payload(number)) for number in numbers]
        await self._intake.enqueue_many(given)


async def publish(url: str, contract: Contract) -> None:
    async with PostgresStore(url) as store:
        await store.publish_contract(contract.target, contract.terms(), "benchmark")

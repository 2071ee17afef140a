"""Leasehold with ordered streams: the items of a stream are executed one after the other."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks import peer_leasehold
from benchmarks.peer_engine import QUEUE, payload
from leasehold.domain.contract import Contract
from leasehold.domain.intent import NewIntent
from leasehold.gateway.python.terms import PythonTerms
from leasehold.intake.intake import Intake
from leasehold.store.postgres.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

STREAMS_NAME = "BENCHMARK_STREAMS"
STREAMS = int(os.environ.get(STREAMS_NAME, "1000"))


class Engine(peer_leasehold.Engine):
    """The same, except for the contract's scope and the stream of each intent."""

    settings = f"scope=stream, {STREAMS} streams, {peer_leasehold.Engine.settings}"

    # Blocked streams stay: see benchmarks.streams.
    unfinished = "SELECT count(*) FROM leasehold.outbox_pending WHERE stream NOT LIKE 'blocked-%'"

    async def install(self, url: str) -> None:
        migrate(url)
        await peer_leasehold.publish(
            url,
            Contract(
                target=QUEUE,
                scope="stream",
                guarantee="keyed",
                gateway=PythonTerms(function="benchmarks.peer_leasehold:accept"),
                concurrency=peer_leasehold.CONCURRENCY,
            ),
        )

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncGenerator[Producer]:
        async with Intake.connected(url) as intake:
            yield Producer(intake)


class Producer(peer_leasehold.Producer):
    def __init__(self, intake: Intake) -> None:
        super().__init__(intake)
        self._streams = intake

    async def many(self, numbers: range) -> None:
        given = [
            NewIntent(target=QUEUE, payload=payload(one), stream=f"s{one % STREAMS}")
            for one in numbers
        ]
        await self._streams.enqueue_many(given)

"""DBOS with a queue partition for each stream: one workflow of a partition runs at a time."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dbos import DBOSClient

from benchmarks import peer_dbos
from benchmarks.peer_engine import payload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

STREAMS = int(os.environ.get("BENCHMARK_STREAMS", "1000"))

peer_dbos.queue_options["partition_concurrency"] = 1


class Engine(peer_dbos.Engine):
    """The same, with a partition for each stream."""

    settings = f"{STREAMS} partitions, {peer_dbos.Engine.settings}"

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncGenerator[Producer]:
        client = DBOSClient(system_database_url=url)
        yield Producer(client, url)
        client.destroy()


class Producer(peer_dbos.Producer):
    async def many(self, numbers: range) -> None:
        with self.database.begin() as connection:
            for one in numbers:
                options = self.options | {"queue_partition_key": f"s{one % STREAMS}"}
                self.client.enqueue_in_transaction(connection, options, payload(one))

"""The server process of the intake benchmark: the HTTP API, as it is or with one part replaced.

- leasehold: as it is.
- one-by-one: one database call per request instead of group commit.
- no-database: every request is answered at once.
- fastapi: a plain FastAPI endpoint without a database, on the same HTTP server.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from fastapi import FastAPI
from pydantic import BaseModel

from leasehold.domain.intent import IntentId
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.runtime.process import run
from leasehold.store.pool_settings import PoolSettings
from leasehold.store.postgres.role_stores import PostgresRoleStores
from leasehold.store.rows import Enqueued
from leasehold.web.app import create_app
from leasehold.web.server import Address, HttpServer
from leasehold.web.service import WebService, WebSettings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from leasehold.domain.intent import NewIntent
    from leasehold.store.postgres.store import PostgresStore

CONNECTIONS = 16


class OneByOne:
    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.waiting = 0

    async def enqueue(self, new: NewIntent, *, size: int = 0) -> Enqueued:
        del size
        [answer] = await self._store.enqueue_intents([new])
        return answer

    async def close(self) -> None: ...


class AtOnce:
    waiting = 0
    _answer = Enqueued(
        ordinal=1,
        verdict=EnqueueVerdict.ACCEPTED,
        intent_id=IntentId(UUID(int=1)),
        problem=None,
    )

    async def enqueue(self, new: NewIntent, *, size: int = 0) -> Enqueued:
        del new, size
        return self._answer

    async def close(self) -> None: ...


class Intent(BaseModel):
    target: str
    payload: dict[str, Any]
    idempotency_key: str | None = None
    priority: int | None = None


class Accepted(BaseModel):
    intent_id: UUID
    target: str
    href: str


def plain_fastapi() -> FastAPI:
    app = FastAPI()

    @app.post("/v1/intents", status_code=201)
    async def accept(intent: Intent) -> Accepted:
        return Accepted(intent_id=UUID(int=1), target=intent.target, href="/v1/intents/1")

    return app


@asynccontextmanager
async def serving(way: str, database_url: str) -> AsyncGenerator[str]:
    """Serve in one of these ways; yields the URL."""
    async with AsyncExitStack() as opened:
        server = HttpServer(Address(port=0), grace_seconds=1)
        opened.push_async_callback(server.stop)
        if way == "fastapi":
            await server.start(plain_fastapi())
            yield server.url
            return
        pool = PoolSettings(size_max=CONNECTIONS)
        stores = await opened.enter_async_context(PostgresRoleStores(database_url, pool))
        settings = WebSettings(instance_id="benchmark", log_format="json")
        service: Any = await opened.enter_async_context(WebService(stores, settings))
        if way == "one-by-one":
            service.group_commit = OneByOne(stores.ingest)
        elif way == "no-database":
            service.group_commit = AtOnce()
        await server.start(create_app(service))
        yield server.url
        await server.stop()


async def main(way: str) -> None:
    async with serving(way, os.environ["LEASEHOLD_DATABASE_URL"]) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    run(main(sys.argv[1]))

"""The API on a real socket, and both clients behind one async interface."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pytest

from leasehold import AsyncClient, Client
from leasehold.domain.api_token import TokenScope
from tests.support.api import Api, make_token, serve
from tests.support.servers import available_binaries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.database import Database
    from tests.support.outbox import Outbox


@pytest.fixture(scope="session")
def postgres() -> str:
    return next(iter(available_binaries()))


@pytest.fixture
async def api(database: Database, outbox: Outbox) -> AsyncIterator[Api]:
    outbox.publish("sms")
    async with serve(database) as api:
        yield api


class InThreads:
    """The sync client behind the interface of the async one: each call runs in a thread."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name in {"list", "events", "blocked_streams"}:
            return lambda *given, **more: _in_threads(method(*given, **more))
        return lambda *given, **more: asyncio.to_thread(method, *given, **more)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.close()


async def _in_threads(iterator: Any) -> AsyncIterator[Any]:
    end = object()
    while (one := await asyncio.to_thread(next, iterator, end)) is not end:
        yield one


class Clients:
    """Creates clients of one kind."""

    def __init__(self, kind: str, api: Api, opened: AsyncExitStack) -> None:
        self.kind = kind
        self.api = api
        self._opened = opened

    async def make(self, *scopes: str, token: str | None = None, **more: Any) -> Any:
        """A client with a token of these scopes, or with the given token."""
        url = more.pop("url", self.api.url)
        if token is None:
            token = make_token(self.api.database, *scopes, targets=more.pop("targets", None))
            await self.api.service.tokens.step()
        return await self._opened.enter_async_context(client_of(self.kind, url, token, **more))


def client_of(kind: str, url: str, token: str | None = None, **more: Any) -> Any:
    """An async client, or a sync one behind the same interface."""
    if kind == "async":
        return AsyncClient(url, token, **more)
    return InThreads(Client(url, token, **more))


@pytest.fixture
async def clients(request: pytest.FixtureRequest, api: Api) -> AsyncIterator[Clients]:
    """Creates async clients, unless the test asks for sync ones: the rest is shared."""
    async with AsyncExitStack() as opened:
        yield Clients(getattr(request, "param", "async"), api, opened)


@pytest.fixture(params=["async", "sync"])
def connect(request: pytest.FixtureRequest) -> Any:
    """Creates clients of each kind for a URL; the test closes them."""
    return partial(client_of, request.param)


@pytest.fixture
async def client(clients: Clients) -> Any:
    """A client with every scope."""
    return await clients.make(*TokenScope)

"""The HTTP API on a real socket in the test's event loop, and HTTP clients with tokens."""

from __future__ import annotations

import json
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx

from leasehold.domain.api_token import TokenScope, new_token, token_hash
from leasehold.store.pool_settings import PoolSettings
from leasehold.store.postgres.role_stores import PostgresRoleStores
from leasehold.web.app import create_app
from leasehold.web.server import Address, HttpServer
from leasehold.web.service import WebService, WebSettings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection

    from tests.support.database import Database

POOL = PoolSettings(size_max=6, wait_seconds=20.0)
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # httpx would read the authorities every time


def make_token(
    database: Database,
    *scopes: str,
    targets: Collection[str] | None = None,
    name: str | None = None,
) -> str:
    """Create an API token, as `leasehold tokens create` does."""
    token = new_token()
    database.owner_execute(
        "SELECT leasehold.create_token(%s, %s, %s::text[], %s::text[], 'test')",
        [
            name or f"t{token_hash(token).hex()[:10]}",
            token_hash(token),
            sorted(scopes),
            targets and sorted(targets),
        ],
    )
    return token


class Api:
    """A running API server and HTTP clients for it."""

    def __init__(self, database: Database, service: WebService, server: HttpServer) -> None:
        self.database = database
        self.service = service
        self.server = server
        self.url = server.url
        self._clients = AsyncExitStack()
        self._all: httpx.AsyncClient | None = None

    async def client(self, *scopes: str, **more: Any) -> httpx.AsyncClient:
        """Return a client with its own token of these scopes."""
        token = make_token(self.database, *scopes, **more)
        await self.service.tokens.step()
        return await self.with_token(token)

    async def with_token(self, token: str | None) -> httpx.AsyncClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        limits = httpx.Limits(max_connections=300)
        client = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=60, limits=limits, verify=NO_TLS
        )
        return await self._clients.enter_async_context(client)

    async def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request with a token of every scope."""
        if self._all is None:
            self._all = await self.client(*TokenScope, name="everything")
        return await self._all.request(method, path, **more)

    async def get(self, path: str, **more: Any) -> httpx.Response:
        return await self.request("GET", path, **more)

    async def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return await self.request("POST", path, json=body, **more)

    def intents(self) -> int:
        """Count the intents in the database."""
        [row] = self.database.execute("SELECT count(*) AS n FROM leasehold.intents")
        return row["n"]

    async def close(self) -> None:
        await self._clients.aclose()


@asynccontextmanager
async def serve(
    database: Database,
    settings: WebSettings | None = None,
    url: str | None = None,
    **limits: Any,
) -> AsyncGenerator[Api]:
    """Serve the API for a database; `limits` are those of the HTTP server."""
    settings = settings or WebSettings(instance_id="test", log_level="warning")
    async with (
        PostgresRoleStores(url or database.url, POOL) as stores,
        WebService(stores, settings) as service,
    ):
        server = HttpServer(Address(port=0), grace_seconds=5, **limits)
        await server.start(create_app(service))
        api = Api(database, service, server)
        try:
            yield api
        finally:
            await api.close()
            service.drain()
            service.end_streams()
            await server.stop()


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Return the problem document; assert its status, code and required members."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = json.loads(response.content)
    assert document["code"] == code, document
    assert document["status"] == status
    assert document["type"] == f"/problems/{code.replace('_', '-')}"
    assert document["request_id"] == response.headers["x-request-id"]
    assert document["title"]
    assert document["detail"]
    return document

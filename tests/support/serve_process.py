"""Runs `leasehold serve` in a subprocess, with an HTTP client for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from tests.support.api import make_token
from tests.support.engine import WAIT_SECONDS, Worker, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.support.database import Database

Found = TypeVar("Found")


async def eventually(ask: Callable[[], Awaitable[Found]]) -> Found:
    """Poll `ask` until it returns something true, and return that."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            if seen := await ask():
                return seen
            await asyncio.sleep(0.05)


class Serving(Worker):
    """A process that runs `leasehold serve` on a free port."""

    def __init__(
        self,
        database: Database,
        log: Path,
        *arguments: str,
        url: str | None = None,
        **environment: str,
    ) -> None:
        self.token = make_token(database, "ingest", "read", "operate", "audit")
        super().__init__(
            url or database.url,
            log,
            *("serve", "--port", "0", *arguments),
            module="leasehold",
            environment={
                "LEASEHOLD_HTTP_DRAIN_SECONDS": "0",
                **{f"LEASEHOLD_{name.upper()}": value for name, value in environment.items()},
            },
        )

    async def url(self) -> str:
        """Wait until it serves; return its URL."""
        lines = await until(lambda: self.lines("server_started") or self._fail_if_dead())
        return lines[0]["url"]

    async def client(self, **more: Any) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.AsyncClient(base_url=await self.url(), headers=headers, timeout=60, **more)

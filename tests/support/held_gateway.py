"""A gateway that notes each submission as it arrives, and answers all of them when a test says so.

So a test knows what was sent, also of calls that nobody has heard the answer of.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class HeldGateway:
    """POST submits under the key in the header `Idempotency-Key`; GET /<key> looks it up."""

    def __init__(self) -> None:
        self.received: Counter[str] = Counter()
        self.may_answer = asyncio.Event()
        self.answer_seconds = 0.0  # once it may answer
        self.url = ""

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[HeldGateway]:
        """Listen on a local port, by default a free one."""
        server = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0)
        await server.setup()
        site = web.TCPSite(server, "127.0.0.1", port)
        await site.start()
        host, port = server.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        try:
            yield self
        finally:
            self.may_answer.set()
            await server.cleanup()

    def terms(self, guarantee: str) -> dict[str, Any]:
        """Return the gateway's terms for a contract."""
        terms = {"kind": "http", "url": f"{self.url}/", "allow_private": True}
        if guarantee == "lookup":
            terms["lookup_url"] = f"{self.url}/{{key}}"
        return terms

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.method == "GET":
            is_known = request.path.removeprefix("/") in self.received
            text = json.dumps({"status": "accepted", "reference": "known"} if is_known else {})
            return web.Response(
                status=200 if is_known else 404, text=text, content_type="application/json"
            )
        self.received[request.headers["Idempotency-Key"]] += 1
        await self.may_answer.wait()
        await asyncio.sleep(self.answer_seconds)
        return web.Response(text='{"status": "accepted"}', content_type="application/json")

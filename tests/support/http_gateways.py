"""Builders for gateway tests: submissions, HTTP and ledger gateways, and a raw HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid4

from leasehold.domain.contract import Contract
from leasehold.domain.intent import IntentId, JsonDocument
from leasehold.gateway.http.terms import HttpTerms
from leasehold.gateway.ledger.terms import LedgerTerms
from leasehold.gateway.protocol import Submission
from leasehold.gateway.registry import open_gateway

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable

    from leasehold.gateway.protocol import Gateway


class WrittenTrace(NamedTuple):
    """A trace with any `traceparent` header that a test wants to send."""

    traceparent: str
    trace_id: str = "0" * 32


def make_submission(*, key: UUID | None = None, attempt_no: int = 1, **changes: Any) -> Submission:
    """Make a submission with default values, except for what is given."""
    given: dict[str, Any] = {
        "intent_id": IntentId(uuid4()),
        "target": "sms",
        "attempt_no": attempt_no,
        "submission_key": key or uuid4(),
        "fencing_token": attempt_no,
        "worker_id": "worker-1",
        "payload": JsonDocument(b'{"amount": 1}'),
    }
    return Submission(**(given | changes))


def batch_id(name: str) -> str:
    """Return an id as a ledger has it."""
    return hashlib.sha512(name.encode()).hexdigest()


def make_batch(name: str, **changes: Any) -> Submission:
    """Make the submission of a signed batch, whose id is `batch_id(name)`."""
    given: dict[str, Any] = {
        "payload": None,
        "body": f"signed {name}".encode(),
        "metadata": JsonDocument(json.dumps({"batch_id": batch_id(name)}).encode()),
    }
    return make_submission(**(given | changes))


def http_contract(
    url: str,
    *,
    guarantee: str = "keyed",
    kind: type[HttpTerms | LedgerTerms] = HttpTerms,
    **changes: Any,
) -> Contract:
    """Make a contract for a local gateway; `changes` may name terms of either."""
    of_gateway = {name: changes.pop(name) for name in list(changes) if name in kind.model_fields}
    terms = kind(url=url, **({"allow_private": True} | of_gateway))
    together = "submissions_max" in of_gateway
    timings = {"call_timeout_seconds": 5.0, "connect_timeout_seconds": 2.0}
    return Contract(
        target="sms",
        scope="stream" if together else "item",
        guarantee=guarantee,
        gateway=terms,
        pipeline_max=terms.submissions_max if terms.confirms_later and together else None,
        **(timings | changes),
    )


@contextlib.asynccontextmanager
async def http_gateway(url: str, **changes: Any) -> AsyncIterator[Gateway]:
    """Open a gateway, of kind http unless `kind` says so; close it afterwards."""
    given = {name: changes.pop(name, ()) for name in ("environment", "secrets")}
    gateway = open_gateway(
        http_contract(url, **changes),
        environment=dict(given["environment"]),
        secrets=given["secrets"],
    )
    try:
        yield gateway
    finally:
        await gateway.close()


def ledger_gateway(url: str, **changes: Any) -> contextlib.AbstractAsyncContextManager[Any]:
    """Open a ledger gateway with the guarantee lookup; close it afterwards."""
    return http_gateway(url, **({"kind": LedgerTerms, "guarantee": "lookup"} | changes))


class RawServer:
    """An HTTP server that records each request and lets `act` write any bytes as response."""

    def __init__(
        self, act: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> None:
        self._act = act
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[bytes] = []
        self.connections = 0
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
        """Listen on a free local port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while True:
                self.requests.append(await self._read_request(reader))
                await self._act(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _read_request(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        ]
        return head + await reader.readexactly(sum(lengths))


def abort(writer: asyncio.StreamWriter) -> None:
    """Reset the connection instead of closing it."""
    writer.transport.abort()

"""AsyncClient, the source of both clients: `make generate` writes sync_client.py from this file."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpx

from leasehold.client import connection, requests, stream_requests
from leasehold.client.async_transport import AsyncTransport
from leasehold.client.bulk import BulkEnqueue
from leasehold.client.event_stream import SILENCE_SECONDS, EventStream
from leasehold.client.retry import RETRY_SECONDS, RetriedRequest, RetryBudget
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.intent import as_intent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path
    from typing import Unpack

    from leasehold.client.requests import IntentFilter, Request
    from leasehold.client.responses import BulkResult, IntentPage, Receipt
    from leasehold.domain.intent import IntentId, IntentOptions, NewIntent, Resolution
    from leasehold.domain.verdict import (
        CancelVerdict,
        PauseVerdict,
        ResolveVerdict,
        ResumeVerdict,
        RetryNowVerdict,
        SkipVerdict,
    )
    from leasehold.store.reader_rows import (
        Attempt,
        BlockedStream,
        IntentStatus,
        LedgerEvent,
        StreamSeen,
    )
    from leasehold.store.rows import Redriven

Result = TypeVar("Result")


class AsyncClient:
    """Enqueues intents over HTTP and reads their status. Use it as a context manager.

    A request that fails temporarily is retried for up to `retry_seconds` where that is safe. Each
    try takes at most `response_seconds`, and `wait_seconds` if the call has them. `ca_file` names
    the certificate authorities to trust instead of the default ones.
    """

    def __init__(
        self,
        api_url: str,
        token: str | None = None,
        *,
        retry_seconds: float = RETRY_SECONDS,
        response_seconds: float = connection.RESPONSE_SECONDS,
        ca_file: Path | None = None,
    ) -> None:
        self._retry_seconds = connection.checked_seconds("retry_seconds", retry_seconds)
        self._response_seconds = connection.checked_seconds(
            "response_seconds", response_seconds, seconds_min=connection.RESPONSE_SECONDS_MIN
        )
        url = connection.base_url(api_url)
        self._http = httpx.AsyncClient(
            base_url=url,
            headers=connection.headers(token),
            transport=AsyncTransport(connection.tls(url, ca_file), connection.proxy(url)),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._http.base_url)!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def enqueue(
        self,
        intent: NewIntent | str,
        payload: Any = None,  # noqa: ANN401 (any JSON)
        *,
        wait_seconds: float = 0,
        **options: Unpack[IntentOptions],
    ) -> Receipt:
        """Enqueue one intent. It is committed when this returns.

        With `wait_seconds` (at most 30) the call returns when the intent is finished, or after
        that time. If you give no idempotency key the client generates one and can retry safely.
        Raises IdempotencyConflict, UnknownTarget, InvalidArgument, AccessDenied or IntakeFull if
        the intent was refused. After an ApiError whose `outcome_unknown` is true it may have been
        accepted. To repeat the call, give the error's `idempotency_key`.
        """
        return await self._send(
            requests.enqueue(as_intent(intent, payload, **options), wait_seconds)
        )

    async def enqueue_many(self, intents: Iterable[NewIntent]) -> tuple[BulkResult, ...]:
        """Enqueue any number of intents in batches. Returns one result each, in their order.

        If this raises, earlier batches are committed. Enqueue everything again with your own
        idempotency keys, or with the error's `idempotency_keys`.
        """
        bulk = BulkEnqueue(intents, self._retry_seconds)
        while (retried := bulk.next_request()) is not None:
            try:
                pause = bulk.record(await self._send_retried(retried))
            except LeaseholdError as error:
                bulk.record_error(error)
            else:
                await asyncio.sleep(pause)
        return bulk.results

    async def get(self, intent_id: IntentId, *, wait_seconds: float = 0) -> IntentStatus:
        """Return the status of an intent, or raise UnknownIntent.

        With `wait_seconds` (at most 30) the call returns when the intent is finished, or after
        that time.
        """
        return await self._send(requests.get(intent_id, wait_seconds))

    async def attempts(self, intent_id: IntentId) -> tuple[Attempt, ...]:
        """Return the ledger of an intent, or raise UnknownIntent."""
        return await self._send(requests.attempts(intent_id))

    async def page(
        self,
        *,
        before: IntentId | None = None,
        limit: int = requests.PAGE_MAX,
        **where: Unpack[IntentFilter],
    ) -> IntentPage:
        """Return one page of intents, newest first. Its `next` is the next page's `before`."""
        return await self._send(requests.page(before=before, limit=limit, **where))

    async def list(self, **where: Unpack[IntentFilter]) -> AsyncIterator[IntentStatus]:
        """Iterate over all matching intents, newest first, and read page after page as needed."""
        page = await self.page(**where)
        while True:
            for one in page.intents:
                yield one
            if page.next is None:
                return
            page = await self.page(before=page.next, **where)

    async def cancel(self, intent_id: IntentId, note: str) -> CancelVerdict:
        """Cancel an intent that was never submitted. Any verdict but CANCELLED did nothing."""
        return await self._send(requests.cancel(intent_id, note))

    async def resolve(
        self,
        intent_id: IntentId,
        resolution: Resolution,
        note: str,
        *,
        reference: str | None = None,
    ) -> ResolveVerdict:
        """Decide the outcome of an intent that is in doubt, held or awaiting confirmation.

        Any verdict but RESOLVED did nothing.
        """
        return await self._send(requests.resolve(intent_id, resolution, note, reference))

    async def retry_now(self, intent_id: IntentId, note: str) -> RetryNowVerdict:
        """Make an intent due now that waits for a backoff, or whose call was deferred.

        Any verdict but DUE_NOW did nothing.
        """
        return await self._send(requests.retry_now(intent_id, note))

    async def retry(self, intent_id: IntentId, note: str) -> Redriven:
        """Submit a finished intent again, as a new one. Any verdict but REDRIVEN did nothing."""
        return await self._send(requests.retry(intent_id, note))

    async def blocked_streams(self, target: str | None = None) -> AsyncIterator[BlockedStream]:
        """Iterate over the blocked streams of all targets or of one, by target and name."""
        page = await self._send(stream_requests.blocked_page(target, None))
        while True:
            for one in page.streams:
                yield one
            if page.next is None:
                return
            page = await self._send(stream_requests.blocked_page(target, page.next))

    async def stream(self, target: str, stream: str) -> StreamSeen | None:
        """Return a stream, blocked or not; None if there is no such stream."""
        return await self._send(stream_requests.stream(target, stream))

    async def pause_stream(
        self, target: str, stream: str, note: str, *, seconds: float | None = None
    ) -> PauseVerdict:
        """Begin nothing more of a stream, for a time or until it is resumed."""
        return await self._send(stream_requests.pause(target, stream, note, seconds))

    async def resume_stream(
        self,
        target: str,
        stream: str,
        note: str,
        *,
        paused_by: str | None = None,
        paused_for: IntentId | None = None,
    ) -> ResumeVerdict:
        """End a pause of a stream: your own, or that of a person, or that for a failed intent (and
        for those that failed before it). STILL_PAUSED: the stream is paused for another reason.
        """
        return await self._send(stream_requests.resume(target, stream, note, paused_by, paused_for))

    async def skip_stream_head(
        self, target: str, stream: str, intent_id: IntentId, note: str
    ) -> SkipVerdict:
        """Cancel the head of a stream if it still is this intent. A pause stays."""
        return await self._send(stream_requests.skip(target, stream, intent_id, note))

    async def events(
        self, after: str | None = None, *, target: str | None = None
    ) -> AsyncIterator[LedgerEvent]:
        """Iterate over the rows of the ledger after a cursor, without end. None starts now.

        The client reconnects and resumes. To resume after a restart of your own, keep the `cursor`
        of the last event that you are done with.
        """
        stream = EventStream(after, target, self._retry_seconds)
        while True:
            retried = RetriedRequest(stream.request(), stream.budget)
            request = self._http_request(
                retried.request, connection.stream_timeouts(SILENCE_SECONDS)
            )
            try:
                sent = await self._http.send(request, stream=True)
                async with aclosing(sent) as response:
                    if response.is_success:
                        async for chunk in response.aiter_raw():
                            for event in stream.events(chunk):
                                yield event
                        pause = stream.pause()
                    else:
                        refusal = await self._receive(response)
                        pause = retried.pause_after(refusal)
                        if pause is None:
                            retried.result(refusal)
            except httpx.TransportError as error:
                pause = retried.pause_after_error(error)
            await asyncio.sleep(pause or 0.0)

    async def _send(self, request: Request[Result]) -> Result:
        return await self._send_retried(RetriedRequest(request, RetryBudget(self._retry_seconds)))

    async def _send_retried(self, retried: RetriedRequest[Result]) -> Result:
        try:
            return await self._send_until_final(retried)
        except LeaseholdError as error:
            error.idempotency_key = retried.request.idempotency_key
            raise

    async def _send_until_final(self, retried: RetriedRequest[Result]) -> Result:
        while True:
            seconds = self._response_seconds + retried.request.wait_seconds
            request = self._http_request(retried.request, connection.try_timeouts(seconds))
            try:
                async with aclosing(await self._http.send(request, stream=True)) as sent:
                    response = await self._receive(sent)
            except httpx.TransportError as error:
                pause = retried.pause_after_error(error)
            else:
                pause = retried.pause_after(response)
                if pause is None:
                    return retried.result(response)
            await asyncio.sleep(pause)

    async def _receive(self, response: httpx.Response) -> httpx.Response:
        """Read a response, but not more of it than the limit."""
        body = connection.ResponseBody(response)
        async for chunk in response.aiter_raw():
            if not body.add(chunk):
                break
        return body.response()

    def _http_request(self, request: Request[Any], timeouts: httpx.Timeout) -> httpx.Request:
        return self._http.build_request(
            request.method,
            request.path,
            params=request.query,
            headers=request.headers,
            content=request.body,
            timeout=timeouts,
        )

"""The client of the HTTP API for those who await; its twin is in `sync`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpx

from leasehold.client import address
from leasehold.client import requests as calls
from leasehold.client.bulk import Handing
from leasehold.client.event_stream import Following
from leasehold.client.retry import PATIENCE_SECONDS, Patience, Tries
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import as_intent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from pathlib import Path
    from typing import Unpack

    from leasehold.client.requests import Call, Resolution
    from leasehold.client.responses import Handed, IntentPage, Receipt
    from leasehold.domain.intent import IntentId, IntentOptions, NewIntent, Status
    from leasehold.domain.verdict import CancelVerdict, ResolveVerdict
    from leasehold.store.rows import Attempt, EventCursor, IntentStatus, LedgerEvent, Redriven

Answer = TypeVar("Answer")


class AsyncClient:
    """Hands intents in over HTTP, and asks about them:
    `async with AsyncClient("https://leasehold.example.org", token) as client`.

    A call that fails for a moment is made again for up to `patience_seconds`, where that can do no
    harm. The token is shown nowhere.
    """

    def __init__(
        self,
        api_url: str,
        token: str | None = None,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        ca_file: Path | None = None,
    ) -> None:
        self._patience_seconds = patience_seconds
        self._http = httpx.AsyncClient(
            base_url=address.base_url(api_url),
            headers=address.headers(token),
            verify=address.verification(ca_file),
            timeout=address.timeouts(0),
        )

    def __repr__(self) -> str:
        return f"AsyncClient({str(self._http.base_url)!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def enqueue(
        self,
        intent: NewIntent | str,
        payload: Any = None,  # noqa: ANN401 (any JSON)
        *,
        wait_seconds: float = 0,
        **options: Unpack[IntentOptions],
    ) -> Receipt:
        """Hand one intent in; when this returns it is committed.

        With `wait_seconds` (30 at most) it returns when the intent is finished, or after that time.
        Without an idempotency key one is made, so that this call can be repeated by itself; only
        with a key of your own can you repeat it yourself. Raises IdempotencyConflict,
        UnknownTarget, InvalidArgument, AccessDenied, IntakeFull; after ApiUnavailable nothing is
        known.
        """
        return await self._call(calls.enqueue(as_intent(intent, payload, **options), wait_seconds))

    async def enqueue_many(self, intents: Iterable[NewIntent]) -> tuple[Handed, ...]:
        """Hand in any number of intents, in batches; one verdict each, in their order.

        When it raises, what was handed in before is committed: with keys of your own it is safe to
        hand everything in again.
        """
        handing = Handing(intents, self._patience_seconds)
        while (tries := handing.next_tries()) is not None:
            try:
                pause = handing.saw(await self._tried(tries))
            except InvalidArgument as error:
                handing.refused(error)
            else:
                await asyncio.sleep(pause)
        return handing.verdicts

    async def get(self, intent_id: IntentId, *, wait_seconds: float = 0) -> IntentStatus:
        """Say where an intent stands, or raise UnknownIntent. With `wait_seconds` (30 at most) say
        it when the intent is finished, or after that time.
        """
        return await self._call(calls.get(intent_id, wait_seconds))

    async def attempts(self, intent_id: IntentId) -> tuple[Attempt, ...]:
        """Give the ledger of an intent, or raise UnknownIntent."""
        return await self._call(calls.attempts(intent_id))

    async def page(
        self,
        *,
        status: Status | None = None,
        target: str | None = None,
        stream: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: IntentId | None = None,
        limit: int = calls.PAGE_MAX,
    ) -> IntentPage:
        """Give one page of intents, newest first; `next` of it is `before` of the next one."""
        asked = calls.page(
            status=status,
            target=target,
            stream=stream,
            since=since,
            until=until,
            before=before,
            limit=limit,
        )
        return await self._call(asked)

    async def list(
        self,
        *,
        status: Status | None = None,
        target: str | None = None,
        stream: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncIterator[IntentStatus]:
        """Give all intents that are looked for, newest first, a page at a time as they are used."""
        before: IntentId | None = None
        while True:
            page = await self.page(
                status=status,
                target=target,
                stream=stream,
                since=since,
                until=until,
                before=before,
            )
            for one in page.intents:
                yield one
            before = page.next
            if before is None:
                return

    async def cancel(self, intent_id: IntentId, note: str) -> CancelVerdict:
        """Cancel an intent that no call was made for; only CANCELLED did."""
        return await self._call(calls.cancel(intent_id, note))

    async def resolve(
        self,
        intent_id: IntentId,
        resolution: Resolution,
        note: str,
        *,
        reference: str | None = None,
    ) -> ResolveVerdict:
        """Say what became of an intent that is in doubt, held or awaiting confirmation; only
        RESOLVED did.
        """
        return await self._call(calls.resolve(intent_id, resolution, note, reference))

    async def retry(self, intent_id: IntentId, note: str) -> Redriven:
        """Try a finished intent anew, as a new one; only REDRIVEN did."""
        return await self._call(calls.retry(intent_id, note))

    async def events(
        self, after: EventCursor | None = None, *, target: str | None = None
    ) -> AsyncIterator[LedgerEvent]:
        """Give every row of the ledger that follows one, for ever; None: from now on.

        It resumes by itself where it was cut off. Keep `cursor` of the last event that you are done
        with, to go on from there after a restart of your own.
        """
        following = Following(after, target, self._patience_seconds)
        while True:
            call = following.call()
            tries = Tries(call, following.patience)
            try:
                async with self._stream(call) as response:
                    if response.is_success:
                        async for piece in response.aiter_raw():
                            for event in following.events(piece):
                                yield event
                        pause = following.pause()
                    else:
                        await response.aread()
                        pause = tries.pause_after(response)
                        if pause is None:
                            tries.answer(response)
            except httpx.TransportError as error:
                pause = tries.pause_after_error(error)
            await asyncio.sleep(pause or 0.0)

    async def _call(self, call: Call[Answer]) -> Answer:
        return await self._tried(Tries(call, Patience(self._patience_seconds)))

    async def _tried(self, tries: Tries[Answer]) -> Answer:
        call = tries.call
        while True:
            try:
                response = await self._http.request(
                    call.method,
                    call.path,
                    params=call.query,
                    headers=call.headers,
                    content=call.body,
                    timeout=address.timeouts(call.wait_seconds),
                )
            except httpx.TransportError as error:
                pause = tries.pause_after_error(error)
            else:
                pause = tries.pause_after(response)
                if pause is None:
                    return tries.answer(response)
            await asyncio.sleep(pause)

    def _stream(self, call: Call[None]) -> AbstractAsyncContextManager[httpx.Response]:
        return self._http.stream(
            call.method,
            call.path,
            params=call.query,
            headers=call.headers,
            timeout=address.timeouts(call.wait_seconds),
        )

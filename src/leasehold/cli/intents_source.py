"""What `leasehold intents` asks of the database, or of the HTTP API; the answers are the same."""

from __future__ import annotations

import getpass
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from leasehold.client.requests import PAGE_MAX
from leasehold.domain.errors import InvalidArgument, UnknownIntent
from leasehold.domain.intent import AttemptState
from leasehold.store.rows import Listing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import datetime

    from leasehold.cli.place import Place
    from leasehold.client.asynchronous import AsyncClient
    from leasehold.client.requests import Resolution
    from leasehold.domain.intent import IntentId, Status
    from leasehold.domain.verdict import CancelVerdict, ResolveVerdict
    from leasehold.store.postgres.store import PostgresStore
    from leasehold.store.rows import Attempt, IntentStatus, Redriven

    Seen = tuple[IntentStatus, Sequence[Attempt]]

_STATES: dict[Resolution, AttemptState] = {
    "dispatched": AttemptState.DISPATCHED,
    "failed": AttemptState.FAILED,
    "retry": AttemptState.RETRYABLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is looked for; None is any."""

    status: Status | None
    target: str | None
    stream: str | None
    since: datetime | None
    until: datetime | None
    before: IntentId | None
    limit: int


class IntentsSource(Protocol):
    """Where intents are looked at and intervened in."""

    async def read(self, intent_id: IntentId) -> Seen:
        """Read an intent and its ledger, or raise UnknownIntent."""
        ...

    async def list(self, search: Search) -> Listing:
        """Find the newest intents."""
        ...

    async def cancel(self, intent_id: IntentId, note: str) -> CancelVerdict:
        """Cancel what no call was made for."""
        ...

    async def resolve(
        self, intent_id: IntentId, resolution: Resolution, note: str, reference: str | None
    ) -> ResolveVerdict:
        """Say what became of a doubt."""
        ...

    async def redrive(self, intent_ids: Sequence[IntentId], note: str) -> Sequence[Redriven]:
        """Try finished intents anew."""
        ...


@asynccontextmanager
async def opened_source(place: Place, operator: str | None) -> AsyncGenerator[IntentsSource]:
    """Open the database or the API."""
    if place.is_api:
        if operator is not None:
            raise InvalidArgument("over the API it is the token's name that counts, not --operator")
        async with place.client() as client:
            yield _Api(client)
    else:
        from leasehold.store.postgres.store import PostgresStore  # only who needs it waits for it

        settings = place.settings
        async with PostgresStore(settings.required_database_url(), settings.pool()) as store:
            yield _Database(store, operator)


class _Database:
    def __init__(self, store: PostgresStore, operator: str | None) -> None:
        self._store = store
        self._operator = operator

    async def read(self, intent_id: IntentId) -> Seen:
        statuses = await self._store.read_status([intent_id])
        if not statuses:
            raise UnknownIntent(f"no intent {intent_id} is known")
        return statuses[0], await self._store.read_ledger([intent_id])

    async def list(self, search: Search) -> Listing:
        return await self._store.list_intents(
            status=search.status,
            target=search.target,
            stream=search.stream,
            since=search.since,
            until=search.until,
            before=search.before,
            limit=search.limit,
        )

    async def cancel(self, intent_id: IntentId, note: str) -> CancelVerdict:
        return await self._store.cancel_intent(intent_id, self._name(), note)

    async def resolve(
        self, intent_id: IntentId, resolution: Resolution, note: str, reference: str | None
    ) -> ResolveVerdict:
        return await self._store.resolve_intent(
            intent_id, _STATES[resolution], self._name(), note, reference
        )

    async def redrive(self, intent_ids: Sequence[IntentId], note: str) -> Sequence[Redriven]:
        return await self._store.redrive_intents(intent_ids, self._name(), note)

    def _name(self) -> str:
        if self._operator is not None:
            return self._operator
        try:
            return getpass.getuser()
        except (OSError, KeyError):
            raise InvalidArgument("this user has no name: give --operator") from None


class _Api:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def read(self, intent_id: IntentId) -> Seen:
        return await self._client.get(intent_id), await self._client.attempts(intent_id)

    async def list(self, search: Search) -> Listing:
        found: list[IntentStatus] = []
        before = search.before
        while True:
            asked = min(PAGE_MAX, search.limit - len(found))
            page = await self._client.page(
                status=search.status,
                target=search.target,
                stream=search.stream,
                since=search.since,
                until=search.until,
                before=before,
                limit=asked,
            )
            found += page.intents
            before = page.next
            if len(page.intents) < asked or len(found) == search.limit or before is None:
                return Listing(found, None if len(found) == search.limit else before)

    async def cancel(self, intent_id: IntentId, note: str) -> CancelVerdict:
        return await self._client.cancel(intent_id, note)

    async def resolve(
        self, intent_id: IntentId, resolution: Resolution, note: str, reference: str | None
    ) -> ResolveVerdict:
        return await self._client.resolve(intent_id, resolution, note, reference=reference)

    async def redrive(self, intent_ids: Sequence[IntentId], note: str) -> Sequence[Redriven]:
        return [await self._client.retry(one, note) for one in intent_ids]

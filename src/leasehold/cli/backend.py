"""The two ways in which `enqueue`, `intents` and `streams` work: on the database or by the API."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar

from leasehold.cli.options import operator_name, read_command_settings
from leasehold.client.async_client import AsyncClient
from leasehold.client.requests import PAGE_MAX
from leasehold.client.responses import BulkResult, Receipt
from leasehold.domain.errors import AccessDenied, InvalidArgument, UnknownIntent, UnknownTarget
from leasehold.domain.intent import RESOLVED_STATES
from leasehold.domain.verdict import BatchVerdict, EnqueueVerdict
from leasehold.intake.validation import accepted_id, conflict_problem
from leasehold.store.reader_rows import Listing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
    from datetime import datetime

    from leasehold.config import Settings
    from leasehold.domain.intent import IntentId, NewIntent, Resolution, Status
    from leasehold.domain.verdict import (
        CancelVerdict,
        PauseVerdict,
        ResolveVerdict,
        ResumeVerdict,
        RetryNowVerdict,
        SkipVerdict,
    )
    from leasehold.intake.intake import Intake
    from leasehold.store.protocol import ConsoleStore
    from leasehold.store.reader_rows import (
        Attempt,
        BlockedStream,
        IntentStatus,
        PublishedContract,
        StreamSeen,
    )
    from leasehold.store.rows import Enqueued, Redriven

    StatusAndLedger = tuple[IntentStatus, Sequence[Attempt]]

# Someone is waiting at a terminal.
_API_RETRY_SECONDS = 10.0

Answer = TypeVar("Answer")


class Search(TypedDict):
    """The filters of a list; None matches everything."""

    status: Status | None
    target: str | None
    stream: str | None
    since: datetime | None
    until: datetime | None
    before: IntentId | None
    limit: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a command connects to."""

    settings: Settings
    is_api: bool

    @classmethod
    def choose(
        cls,
        database_url: str | None,
        api_url: str | None,
        application_name: str,
        **more: Any,  # noqa: ANN401 (settings, which pydantic checks)
    ) -> Endpoint:
        """Take the command line, else LEASEHOLD_API_URL, else LEASEHOLD_DATABASE_URL."""
        if database_url is not None and api_url is not None:
            raise InvalidArgument("--database-url and --api-url cannot be used together")
        settings = read_command_settings(
            prefers_api=True,
            database_url=database_url,
            api_url=api_url,
            application_name=application_name,
            **more,
        )
        return cls(settings, is_api=database_url is None and bool(settings.api_url))

    @asynccontextmanager
    async def connect(self, operator: str | None = None) -> AsyncGenerator[Backend]:
        """Connect. `operator` is the option as given; the API uses the token's name instead."""
        if self.is_api:
            if operator is not None:
                raise InvalidArgument(
                    "--operator cannot be used with the API: it records the name of the token"
                )
            async with self._client() as backend:
                try:
                    yield backend
                except AccessDenied as error:
                    if self._token:
                        raise
                    raise AccessDenied(
                        "the API needs a token: set LEASEHOLD_API_TOKEN (create one with "
                        "`leasehold tokens create`)"
                    ) from error
        else:
            # Imported late: the API needs none of it.
            from leasehold.intake.intake import Intake

            async with self.settings.database() as database, Intake(database.store) as intake:
                yield _DatabaseBackend(database.store, intake, operator)

    @property
    def _token(self) -> str | None:
        token = self.settings.api_token.get_secret_value() if self.settings.api_token else ""
        return token or None  # an empty variable counts as not set

    def _client(self) -> _ApiBackend:
        return _ApiBackend(
            self.settings.api_url or "",
            self._token,
            ca_file=self.settings.api_tls_ca,
            retry_seconds=_API_RETRY_SECONDS,
        )


class _DatabaseBackend:
    """Calls the database functions; the login needs the role for the command."""

    def __init__(self, store: ConsoleStore, intake: Intake, operator: str | None) -> None:
        self._store = store
        self._intake = intake
        self._operator = operator

    async def enqueue(self, intent: NewIntent) -> Receipt:
        [answer] = await self._intake.enqueue_many([intent])
        is_new = answer.verdict is EnqueueVerdict.ACCEPTED
        return Receipt(intent_id=accepted_id(intent, answer), is_new=is_new)

    async def enqueue_many(self, intents: Sequence[NewIntent]) -> Sequence[BulkResult]:
        answers = await self._intake.enqueue_many(intents)
        return [_as_api_result(new, answer) for new, answer in zip(intents, answers, strict=True)]

    async def unexecutable(self, targets: Collection[str]) -> Mapping[str, str]:
        """Return the targets whose intents no instance of this release submits, with the reason."""
        published = await self._store.read_published_contracts()
        reasons = {one.target: _unexecutable_reason(one) for one in published}
        return {target: reason for target in targets if (reason := reasons.get(target))}

    async def read(self, intent_id: IntentId) -> StatusAndLedger:
        statuses = await self._store.read_status([intent_id])
        if not statuses:
            raise UnknownIntent(f"no intent has the id {intent_id}")
        return statuses[0], await self._store.read_ledger([intent_id])

    async def search(self, search: Search) -> Listing:
        found = await self._store.list_intents(**search)
        if not found.intents and search["target"] is not None:
            await self._require_known([search["target"]])
        return found

    async def cancel(self, intent_id: IntentId, note: str) -> CancelVerdict:
        return await self._store.cancel_intent(intent_id, operator_name(self._operator), note)

    async def resolve(
        self, intent_id: IntentId, resolution: Resolution, note: str, *, reference: str | None
    ) -> ResolveVerdict:
        return await self._store.resolve_intent(
            intent_id, RESOLVED_STATES[resolution], operator_name(self._operator), note, reference
        )

    async def retry_now(self, intent_id: IntentId, note: str) -> RetryNowVerdict:
        return await self._store.retry_intent_now(intent_id, operator_name(self._operator), note)

    async def redrive(self, intent_ids: Sequence[IntentId], note: str) -> Sequence[Redriven]:
        return await self._store.redrive_intents(intent_ids, operator_name(self._operator), note)

    async def blocked(self, targets: Sequence[str] | None, limit: int) -> Sequence[BlockedStream]:
        await self._require_known(targets or ())
        return await self._store.read_blocked_streams(targets, None, limit)

    async def stream(self, target: str, stream: str) -> StreamSeen | None:
        return await self._store.read_stream(target, stream)

    async def pause_stream(
        self, target: str, stream: str, note: str, *, seconds: float | None
    ) -> PauseVerdict:
        operator = operator_name(self._operator)
        return await self._store.pause_stream(target, stream, operator, note, seconds)

    async def resume_stream(
        self,
        target: str,
        stream: str,
        note: str,
        *,
        paused_by: str | None,
        paused_for: IntentId | None,
    ) -> ResumeVerdict:
        return await self._store.resume_stream(
            target,
            stream,
            operator_name(self._operator),
            note,
            paused_by=paused_by,
            paused_for=paused_for,
        )

    async def skip_stream_head(
        self, target: str, stream: str, intent_id: IntentId, note: str
    ) -> SkipVerdict:
        operator = operator_name(self._operator)
        return await self._store.skip_stream_head(target, stream, intent_id, operator, note)

    async def _require_known(self, targets: Sequence[str]) -> None:
        """Refuse a target that no contract names: an empty list would look like good news."""
        for target in targets:
            if await self._store.read_published_contract(target) is None:
                raise UnknownTarget(
                    f"the target {target!r} has no published contract; `leasehold targets list`"
                    " shows those that have one",
                    target=target,
                )


class _ApiBackend(AsyncClient):
    """Calls the HTTP API; the token needs the scope for the command."""

    async def unexecutable(self, targets: Collection[str]) -> Mapping[str, str]:
        """Return nothing: the API may be of another release, which knows what it executes."""
        del targets
        return {}

    async def read(self, intent_id: IntentId) -> StatusAndLedger:
        return await self.get(intent_id), await self.attempts(intent_id)

    async def search(self, search: Search) -> Listing:
        page_search: Search = {**search, "limit": min(PAGE_MAX, search["limit"])}
        page = await self.page(**page_search)
        return Listing([*page.intents], page.next)

    async def redrive(self, intent_ids: Sequence[IntentId], note: str) -> Sequence[Redriven]:
        return [await self.retry(one, note) for one in intent_ids]

    async def blocked(self, targets: Sequence[str] | None, limit: int) -> Sequence[BlockedStream]:
        found: list[BlockedStream] = []
        for target in (None,) if targets is None else sorted(set(targets)):
            async for one in self.blocked_streams(target):
                if len(found) == limit:
                    return found
                found.append(one)
        return found


# What the commands use; both give the same answers.
Backend: TypeAlias = _DatabaseBackend | _ApiBackend


def call_backend(
    command: str,
    database_url: str | None,
    api_url: str | None,
    call: Callable[[Backend], Awaitable[Answer]],
    operator: str | None = None,
) -> Answer:
    """Connect to the database or the API, and make one call."""
    endpoint = Endpoint.choose(database_url, api_url, command, pool_size_max=1)

    async def connect_and_call() -> Answer:
        async with endpoint.connect(operator) as backend:
            return await call(backend)

    return asyncio.run(connect_and_call())


def _unexecutable_reason(published: PublishedContract) -> str | None:
    import_module("leasehold.gateway")  # the kinds that a contract may name
    try:
        return published.contract().unexecutable_reason
    except InvalidArgument as error:
        return str(error)


def _as_api_result(new: NewIntent, answer: Enqueued) -> BulkResult:
    is_conflict = answer.verdict is EnqueueVerdict.CONFLICT
    return BulkResult(
        ordinal=answer.ordinal,
        verdict=BatchVerdict(answer.verdict),
        intent_id=answer.intent_id,
        problem=conflict_problem(new, answer) if is_conflict else answer.problem,
    )

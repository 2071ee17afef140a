"""Everything that the roles leasehold_readonly and leasehold_auditor may read."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import AttemptState, IntentId, Status
from leasehold.store.postgres.contracts import PostgresContracts
from leasehold.store.postgres.query import rows_of
from leasehold.store.reader_rows import (
    Attempt,
    BlockedStream,
    Content,
    EventCursor,
    InstanceSeen,
    IntentStatus,
    LeaseSeen,
    LedgerEvent,
    Listing,
    StreamPause,
    StreamSeen,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from leasehold.store.postgres.query import Query
    from leasehold.store.reader_protocol import TargetKey


# A cursor is the transaction of a row, its intent and its attempt. Of fixed width, so that texts
# have the order of events; as long as a bigint and an integer.
_CURSOR = re.compile(r"([0-9]{18})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([0-9]{9})")
# Before and after every intent id.
_FIRST_ID = IntentId(UUID(int=0))
_LAST_ID = IntentId(UUID(int=2**128 - 1))


class PostgresEvents:
    """EventStore on PostgreSQL."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def read_events(self, after: EventCursor | None, limit: int) -> list[LedgerEvent]:
        """Read final ledger rows after a cursor; None starts at the beginning."""
        return await self._query.rows(
            rows_of(_event, state=AttemptState),
            "SELECT * FROM leasehold.read_events(%s, %s, %s, %s)",
            *((0, _FIRST_ID, 0) if after is None else read_cursor(after)),
            limit,
        )

    async def newest_event(self) -> EventCursor:
        newest: int = await self._query.value(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1"
        )
        return event_cursor(newest, _LAST_ID, 0)


def event_cursor(transaction: int, intent_id: IntentId, attempt_no: int) -> EventCursor:
    """Write a cursor."""
    return EventCursor(f"{transaction:018}-{intent_id}-{attempt_no:09}")


def read_cursor(cursor: EventCursor) -> tuple[int, IntentId, int]:
    """Read a cursor, or raise InvalidArgument."""
    parts = _CURSOR.fullmatch(cursor)
    if parts is None:
        raise InvalidArgument("the cursor must be the cursor of an event")
    transaction, intent_id, attempt_no = parts.groups()
    return int(transaction), IntentId(UUID(intent_id)), int(attempt_no)


def _event(transaction_id: int, target: str | None, **columns: Any) -> LedgerEvent:  # noqa: ANN401
    attempt = Attempt(**columns)
    cursor = event_cursor(transaction_id, attempt.intent_id, attempt.attempt_no)
    return LedgerEvent(cursor=cursor, target=target, attempt=attempt)


_ATTEMPT = rows_of(Attempt, state=AttemptState)
_STATUS = rows_of(IntentStatus, status=Status)
_CONTENT = rows_of(Content)
_INSTANCE = rows_of(InstanceSeen)
_LEASE = rows_of(LeaseSeen)
_BLOCKED = rows_of(BlockedStream, pauses=lambda found: [_pause(**one) for one in found.value()])
_STREAM = rows_of(StreamSeen, pauses=lambda found: [_pause(**one) for one in found.value()])
# Lease names are compared by bytes, and nothing in UTF-8 sorts after this character.
_LAST_CHARACTER = "\U0010ffff"


class PostgresReaders(PostgresEvents, PostgresContracts):
    """ReaderStore and AuditorStore on PostgreSQL."""

    async def read_ledger(self, intent_ids: Sequence[IntentId]) -> list[Attempt]:
        return await self._query.rows(
            _ATTEMPT,
            "SELECT intent_id, attempt_no, state, reason, holder, lease_name, lease_epoch,"
            "       started_at, finished_at, reference, code, detail"
            "  FROM leasehold.outbox_attempts WHERE intent_id = ANY (%s::uuid[])"
            " ORDER BY intent_id, attempt_no",
            list(intent_ids),
        )

    async def read_status(self, intent_ids: Sequence[IntentId]) -> list[IntentStatus]:
        return await self._query.rows(
            _STATUS,
            "SELECT intent_id, target, stream, stream_seq, idempotency_key, contract_version,"
            "       status, reason, attempts, reference, code, detail, priority,"
            "       nullif(due_at, 'infinity') AS due_at, claimed_by, created_at, deadline_at,"
            "       finished_at, redrive_of, deferred_since"
            "  FROM leasehold.intent_status WHERE intent_id = ANY (%s::uuid[])"
            " ORDER BY intent_id",
            list(intent_ids),
        )

    async def list_intents(
        self,
        *,
        status: Status | None = None,
        target: str | None = None,
        targets: Collection[str] | None = None,
        stream: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: IntentId | None = None,
        limit: int = 50,
        window: int | None = None,
    ) -> Listing:
        allowed = _either(target, targets)
        if allowed == []:
            return Listing([], None)
        [(found, searched_to)] = await self._query.rows(
            rows_of(_found),
            "SELECT * FROM leasehold.list_intents(%s, %s, %s::text[], %s, %s, %s, %s, %s)",
            limit,
            status,
            allowed,
            stream,
            _with_zone("since", since),
            _with_zone("until", until),
            before,
            window,
        )
        intents = await self.read_status(found) if found else []
        return Listing(intents[::-1], searched_to)

    async def read_known_keys(self, given: Collection[TargetKey]) -> set[TargetKey]:
        """Return those of these keys that belong to an intent.

        Each costs one or two index lookups.
        """
        return set(
            await self._query.rows(
                rows_of(_key),
                "SELECT given.target, given.key, given.is_of_all"
                "  FROM unnest(%s::text[], %s::text[], %s::boolean[])"
                "       AS given (target, key, is_of_all)"
                " CROSS JOIN LATERAL ("
                "  (SELECT FROM leasehold.intents i"
                "    WHERE i.target = given.target AND i.idempotency_key = given.key LIMIT 1)"
                "  UNION ALL"
                "  (SELECT FROM leasehold.intents i"
                "    WHERE given.is_of_all AND i.idempotency_key = given.key"
                "      AND i.is_key_of_all_targets LIMIT 1)"
                "  LIMIT 1) AS taken",
                *map(list, zip(*given, strict=True)),
            )
        )

    async def read_content(self, intent_id: IntentId) -> Content | None:
        found = await self._query.rows(
            _CONTENT,
            "SELECT payload, body, content_type, metadata FROM leasehold.intents"
            " WHERE intent_id = %s",
            intent_id,
        )
        return found[0] if found else None

    async def read_instances(self, after: str | None, limit: int) -> list[InstanceSeen]:
        return await self._query.rows(
            _INSTANCE,
            "SELECT instance_id, role, detail, started_at, last_seen_at AS seen_at,"
            "       alive_until AS expires_at, is_alive"
            "  FROM leasehold.instance_status WHERE instance_id > %s"
            " ORDER BY instance_id LIMIT %s",
            after or "",
            limit,
        )

    async def read_leases(
        self, prefix: str | None, after: str | None, limit: int
    ) -> list[LeaseSeen]:
        return await self._query.rows(
            _LEASE,
            # The expiry of a stream that nobody holds is -infinity; Python has no such time.
            "SELECT lease_name, holder_id, lease_epoch, acquired_at, renewed_at,"
            "       nullif(expires_at, '-infinity') AS expires_at,"
            "       expires_at > clock_timestamp() AS is_live"
            "  FROM leasehold.leases"
            " WHERE lease_name > %s AND lease_name >= %s AND lease_name < %s AND lease_epoch > 0"
            " ORDER BY lease_name LIMIT %s",
            after or "",
            prefix or "",
            f"{prefix or ''}{_LAST_CHARACTER}",
            limit,
        )

    async def read_blocked_streams(
        self, targets: Sequence[str] | None, after: tuple[str, str] | None, limit: int
    ) -> list[BlockedStream]:
        return await self._query.rows(
            _BLOCKED,
            "SELECT target, stream, head, state, reason, blocked_since,"
            "       nullif(paused_until, 'infinity') AS paused_until, paused_by, paused_for,"
            "       attempts, nullif(due_at, 'infinity') AS due_at, waiting, submitted, pauses"
            "  FROM leasehold.read_blocked_streams(%s, %s::text[], %s, %s)",
            limit,
            None if targets is None else list(targets),
            *(after or (None, None)),
        )

    async def read_stream(self, target: str, stream: str) -> StreamSeen | None:
        found = await self._query.rows(
            _STREAM,
            "SELECT target, stream, head, state, reason, blocked_since,"
            "       nullif(paused_until, 'infinity') AS paused_until, paused_by, paused_for,"
            "       attempts, nullif(due_at, 'infinity') AS due_at, waiting, submitted, pauses,"
            "       in_flight_since, holder_id, lease_epoch, lease_expires_at, grace_expires_at"
            "  FROM leasehold.read_stream(%s, %s)",
            target,
            stream,
        )
        return found[0] if found else None


def _found(
    intent_ids: list[IntentId], searched_to: IntentId | None
) -> tuple[list[IntentId], IntentId | None]:
    return intent_ids, searched_to


def _pause(
    *,
    paused_by: str,
    paused_for: str | None,
    paused_since: str,
    paused_until: str | None,
    note: str | None,
) -> StreamPause:
    return StreamPause(
        paused_by=paused_by,
        paused_for=None if paused_for is None else IntentId(UUID(paused_for)),
        paused_since=datetime.fromisoformat(paused_since),
        paused_until=None if paused_until is None else datetime.fromisoformat(paused_until),
        note=note,
    )


def _key(target: str, key: str, is_of_all: bool) -> tuple[str, str, bool]:
    return target, key, is_of_all


def _either(target: str | None, targets: Collection[str] | None) -> list[str] | None:
    """Return the targets that both allow; None for all."""
    if target is None:
        return None if targets is None else sorted(targets)
    return [target] if targets is None or target in targets else []


def _with_zone(name: str, moment: datetime | None) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise InvalidArgument(f"{name} ({moment}) must have a time zone")
    return moment

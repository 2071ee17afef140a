"""Streams: claim, look again, renew, begin, record, release. One call for many streams."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leasehold.domain.intent import AttemptState, Claimed, IntentId
from leasehold.domain.lease import Lease, StreamLease, StreamState
from leasehold.domain.verdict import BeginVerdict, RecordVerdict, ReleaseVerdict, RenewVerdict
from leasehold.store.postgres.json_arguments import results_argument
from leasehold.store.postgres.leases import fences
from leasehold.store.postgres.query import Query, members_by_text, rows_of, tuple_maker
from leasehold.store.rows import (
    BegunInStream,
    Recorded,
    RecordedStreams,
    ReleasedStream,
    RenewedStream,
    StreamWork,
    SurplusStreams,
    WaitingStreams,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from psycopg.rows import RowMaker

    from leasehold.domain.outcome import Deferral, Result
    from leasehold.store.postgres.connection import HasResult

_RENEWED = rows_of(RenewedStream, verdict=RenewVerdict)
_RELEASED = rows_of(ReleasedStream, verdict=ReleaseVerdict)
_BEGUN = rows_of(BegunInStream, verdict=BeginVerdict)
_SURPLUS = rows_of(SurplusStreams)
_WAITING = rows_of(WaitingStreams)
_STATES = members_by_text(AttemptState)
# The expiry of a stream that is not held.
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class _Row(NamedTuple):
    """The lease and the state of a stream, and one of its heads as the fields of Claimed."""

    lease_name: str
    lease_epoch: int
    expires_at: datetime | None
    grace_expires_at: datetime | None
    lease_target: str | None
    lease_stream: str | None
    stream_state: str
    wait_seconds: float | None
    is_held: bool
    is_taken_over: bool | None
    begun_at: datetime | None
    intent_id: IntentId | None
    lease_token: None
    last_state: str | None
    target: str
    contract_version: int
    attempt_no: int | None
    reference: str | None
    priority: int
    stream: str
    submission_key: Any
    fencing_token: int
    payload: Any
    body: bytes | None
    content_type: str | None
    metadata: Any
    trace_context: str | None
    created_at: datetime
    due_at: datetime | None
    deadline_at: datetime | None
    first_tried_at: datetime
    claimed_at: datetime


class _Result(NamedTuple):
    """A result as the fields of Recorded; without a verdict, the row is the work of a stream."""

    result_id: IntentId
    verdict: str | None
    result_no: int | None
    state: str | None
    reason: str | None
    result_due_at: datetime | None
    is_held_for_a_person: bool


_ROW = rows_of(_Row)
_claimed = tuple_maker(Claimed)
_result = tuple_maker(_Result)
_row = tuple_maker(_Row)
_RESULT_COLUMNS = len(_Result._fields)
_HEAD = _Row._fields.index("intent_id")
# The due_at of a held row, infinity, is read as NULL, because Python has no such time.
_COLUMNS: Final = (
    "lease_name, lease_epoch, nullif(expires_at, '-infinity') AS expires_at,"
    "       nullif(grace_expires_at, '-infinity') AS grace_expires_at, target AS lease_target,"
    "       stream AS lease_stream, stream_state, wait_seconds, is_held, is_taken_over, begun_at,"
    "       intent_id, NULL AS lease_token, last_state, target, contract_version, attempt_no,"
    "       reference, priority, stream, submission_key, fencing_token, payload, body,"
    "       content_type, metadata, trace_context, created_at,"
    "       nullif(due_at, 'infinity') AS due_at, deadline_at,"
    "       coalesce(first_tried_at, seen_at) AS first_tried_at, seen_at AS claimed_at"
)
_SELECT: Final = f"SELECT {_COLUMNS} FROM"
# Each row of record_stream_attempts has a result or work.
_SELECT_RESULT: Final = (
    "SELECT (told.result).intent_id AS result_id, (told.result).verdict,"
    "       (told.result).attempt_no AS result_no, (told.result).state, (told.result).reason,"
    "       nullif((told.result).due_at, 'infinity') AS result_due_at,"
    "       coalesce((told.result).due_at = 'infinity', false) AS is_held_for_a_person, next.* FROM"
)
_NEXT: Final = f"CROSS JOIN LATERAL ({_SELECT} (SELECT (told.work).*) AS work) AS next"


class PostgresStreams:
    """StreamStore on PostgreSQL."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def claim_streams(
        self,
        streams_max: int,
        holder_id: str,
        lease_seconds: float,
        grace_seconds: float,
        targets: Sequence[str],
        target_limits: Sequence[int] | None = None,
        due_from: Sequence[datetime] | None = None,
        *,
        begin: bool = False,
    ) -> list[StreamWork]:
        found = await self._query.rows(
            _ROW,
            f"{_SELECT} leasehold.claim_streams("
            "%s, %s, %s, %s, %s::text[], %s::integer[], %s::timestamptz[], %s)",
            streams_max,
            holder_id,
            lease_seconds,
            grace_seconds,
            list(targets),
            None if target_limits is None else list(target_limits),
            None if due_from is None else list(due_from),
            begin,
        )
        return _by_stream(holder_id, found)

    async def refresh_streams(
        self,
        holder_id: str,
        leases: Sequence[Lease],
        *,
        free_idle: bool = True,
        begin: bool = False,
    ) -> list[StreamWork]:
        found = await self._query.rows(
            _ROW,
            f"{_SELECT} leasehold.refresh_streams(%s, %s::text[], %s::bigint[], %s, %s)",
            *fences(holder_id, leases),
            free_idle,
            begin,
        )
        return _by_stream(holder_id, found)

    async def renew_streams(
        self, holder_id: str, leases: Sequence[Lease], lease_seconds: float, grace_seconds: float
    ) -> list[RenewedStream]:
        return await self._query.rows(
            _RENEWED,
            "SELECT * FROM leasehold.renew_streams(%s, %s::text[], %s::bigint[], %s, %s)",
            *fences(holder_id, leases),
            lease_seconds,
            grace_seconds,
        )

    async def release_streams(
        self, holder_id: str, leases: Sequence[Lease], unsent: Sequence[IntentId] = ()
    ) -> list[ReleasedStream]:
        return await self._query.rows(
            _RELEASED,
            "SELECT * FROM leasehold.release_streams(%s, %s::text[], %s::bigint[], %s::uuid[])",
            *fences(holder_id, leases),
            list(unsent),
        )

    async def begin_stream_attempts(
        self, holder_id: str, leases: Sequence[Lease], intent_ids: Sequence[IntentId]
    ) -> list[BegunInStream]:
        return await self._query.rows(
            _BEGUN,
            "SELECT * FROM leasehold.begin_stream_attempts("
            "%s, %s::text[], %s::bigint[], %s::uuid[])",
            *fences(holder_id, leases),
            list(intent_ids),
        )

    async def record_stream_attempts(
        self,
        holder_id: str,
        leases: Sequence[Lease],
        results: Sequence[Result],
        *,
        deferred: Sequence[Deferral] = (),
        kept: Sequence[Lease] | None = None,
        free_idle: bool = True,
        begin: bool = False,
        tell_dispatched: bool = True,
    ) -> RecordedStreams:
        found = await self._query.rows(
            _told,
            f"{_SELECT_RESULT} leasehold.record_stream_attempts("
            f"%s, %s::text[], %s::bigint[], %s::jsonb, %s::text[], %s, %s) AS told {_NEXT}"
            " WHERE %s OR (told.result).verdict IS NULL OR (told.result).verdict <> 'applied'"
            "    OR (told.result).state IS DISTINCT FROM 'DISPATCHED'",
            *fences(holder_id, leases),
            results_argument(results, deferred),
            None if kept is None else [lease.name for lease in kept],
            free_idle,
            begin,
            tell_dispatched,
        )
        recorded = [_recorded(result) for result, _ in found if result.verdict is not None]
        work = (row for result, row in found if result.verdict is None)
        return RecordedStreams(recorded, _by_stream(holder_id, work))

    async def surplus_streams(self, instance_id: str) -> list[SurplusStreams]:
        return await self._query.rows(
            _SURPLUS, "SELECT * FROM leasehold.surplus_streams(%s)", instance_id
        )

    async def waiting_streams(
        self, targets: Sequence[str], streams_max: int
    ) -> list[WaitingStreams]:
        return await self._query.rows(
            _WAITING,
            "SELECT * FROM leasehold.waiting_streams(%s::text[], %s)",
            list(targets),
            streams_max,
        )


def _told(_source: HasResult) -> RowMaker[tuple[_Result, _Row]]:
    """Make rows of record_stream_attempts into a result and work, one of which is empty."""
    return lambda values: (_result(values[:_RESULT_COLUMNS]), _row(values[_RESULT_COLUMNS:]))


def _by_stream(holder_id: str, found: Iterable[_Row]) -> list[StreamWork]:
    """Collect the heads of each stream; the rows of a stream follow one another."""
    streams: dict[str, StreamWork] = {}
    for row in found:
        work = streams.get(row.lease_name)
        if work is None:
            work = streams[row.lease_name] = _work(holder_id, row)
        if row.intent_id is not None:
            head = _claimed(row[_HEAD:])
            if row.last_state is not None:
                head = head._replace(last_state=_STATES[row.last_state])
            work.heads.append(head)
    return list(streams.values())


def _work(holder_id: str, row: _Row) -> StreamWork:
    _, target, stream = row.lease_name.split("/", 2)
    lease = Lease(
        name=row.lease_name,
        holder_id=holder_id,
        epoch=row.lease_epoch,
        expires_at=row.expires_at or _LONG_AGO,
        grace_expires_at=row.grace_expires_at or _LONG_AGO,
    )
    return StreamWork(
        lease=StreamLease(target=target, stream=stream, lease=lease),
        state=StreamState(row.stream_state),
        wait_seconds=row.wait_seconds,
        is_held=row.is_held,
        is_begun=row.begun_at is not None,
        heads=[],
        is_taken_over=row.is_taken_over is True,
    )


def _recorded(row: _Result) -> Recorded:
    return Recorded(
        row.result_id,
        RecordVerdict(row.verdict),
        row.result_no,
        _STATES[row.state],
        row.reason,
        row.result_due_at,
        row.is_held_for_a_person,
    )

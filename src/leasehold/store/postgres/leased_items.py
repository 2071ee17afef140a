"""Items under a cluster lease: read what is due, mark, begin, record."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from leasehold.domain.intent import PRIORITIES, IntentId
from leasehold.domain.verdict import BeginVerdict
from leasehold.store.postgres.changes import OpenWriters, PostgresChanges
from leasehold.store.postgres.claims import RECORDED, SELECT_RECORDED, WHERE_TOLD, with_states
from leasehold.store.postgres.json_arguments import results_argument
from leasehold.store.postgres.leases import fence, fences
from leasehold.store.postgres.query import Query, as_tuples, rows_of
from leasehold.store.rows import BegunLeased, DueRow, Marked, Recorded, as_claimed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.domain.intent import JsonDocument
    from leasehold.domain.lease import Lease
    from leasehold.domain.outcome import Result
    from leasehold.store.rows import Position

# Before every modification time, and after every due time.
_BEGINNING = (datetime.min.replace(tzinfo=UTC), IntentId(UUID(int=0)))
_END = (datetime.max.replace(tzinfo=UTC), IntentId(UUID(int=0)))
# The columns of DueRow, in order. The due_at of a held row, infinity, is read as NULL, because
# Python has no such time.
_POSITION: Final = (
    "SELECT intent_id, NULL AS lease_token, last_state, target, contract_version,"
    "       attempt_count + 1 AS attempt_no, reference, priority, stream,"
)
_CONTENT: Final = (
    "submission_key, fencing_token, payload, body, content_type, metadata, trace_context,"
    " created_at"
)
_NO_CONTENT: Final = (
    "NULL AS submission_key, NULL AS fencing_token, NULL AS payload, NULL AS body,"
    " NULL AS content_type, NULL AS metadata, NULL AS trace_context, NULL AS created_at"
)
_TIMES: Final = (
    "       nullif(due_at, 'infinity') AS due_at, deadline_at, first_tried_at, begun_at,"
    "       last_modified_at AS version"
)
_WAIT_SECONDS: Final = (
    "date_part('epoch', nullif(due_at, 'infinity') - clock_timestamp()) AS wait_seconds,"
    "       content_bytes"
)


class _MarkedRow(NamedTuple):
    """A row of mark_calls. Only the first has `left_out`; only the others have an intent."""

    marked_at: datetime
    left_out: list[IntentId]
    intent_id: IntentId
    submission_key: UUID
    fencing_token: int
    payload: JsonDocument | None
    body: bytes | None
    content_type: str | None
    metadata: JsonDocument | None
    trace_context: str | None
    created_at: datetime


_DUE_ROW = rows_of(DueRow)
_MARKED = rows_of(_MarkedRow)
_BEGUN = rows_of(BegunLeased, verdict=BeginVerdict)


class PostgresLeasedItems:
    """LeaderStore on PostgreSQL."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def changes(self, lease: Lease) -> PostgresChanges:
        return PostgresChanges(self, lease)

    async def refresh_schedule(
        self,
        holder_id: str,
        leases: Sequence[Lease],
        after: tuple[datetime, IntentId] | None,
        limit: int,
    ) -> list[DueRow]:
        """Read the rows that changed after a position; None reads from the beginning."""
        changed = await self._query.rows(
            _DUE_ROW,
            f"{_POSITION} {_NO_CONTENT}, {_TIMES}, {_WAIT_SECONDS}"
            "  FROM leasehold.refresh_schedule(%s, %s::text[], %s::bigint[], %s, %s, %s)"
            " ORDER BY last_modified_at, intent_id",
            *fences(holder_id, leases),
            *(after or _BEGINNING),
            limit,
        )
        return with_states(changed)

    async def read_open_writers(self) -> OpenWriters:
        """Read which transactions may still commit rows that leaders read."""
        [(seen_at, writers, began_at)] = await self._query.rows(
            as_tuples, "SELECT * FROM leasehold.read_open_writers()"
        )
        return OpenWriters(seen_at, dict(zip(writers, began_at, strict=True)))

    async def refresh_due_rows(
        self,
        holder_id: str,
        leases: Sequence[Lease],
        targets: Sequence[str],
        limit: int,
        content_bytes: int = 0,
        after: Mapping[str, Mapping[int, Position]] | None = None,
    ) -> list[DueRow]:
        positions = (
            [
                after.get(target, {}).get(priority, _END)
                for target in targets
                for priority in range(PRIORITIES)
            ]
            if after is not None
            else None
        )
        due = await self._query.rows(
            _DUE_ROW,
            f"{_POSITION} {_CONTENT}, {_TIMES},"
            f"       {_WAIT_SECONDS}"
            "  FROM leasehold.refresh_due_rows(%s, %s::text[], %s::bigint[], %s::text[], %s, %s,"
            "                                    %s::timestamptz[], %s::uuid[])",
            *fences(holder_id, leases),
            list(targets),
            limit,
            content_bytes,
            positions and [due_at for due_at, _ in positions],
            positions and [intent_id for _, intent_id in positions],
        )
        return with_states(due)

    async def mark_calls(self, lease: Lease, due: Sequence[DueRow], mark_no: int) -> Marked:
        """Mark calls as in flight, and read the content of those rows that came without it."""
        needs_content = [not row.has_content for row in due]
        [first, *found] = await self._query.rows(
            _MARKED,
            "SELECT marked_at, left_out, intent_id, submission_key, fencing_token, payload, body,"
            "       content_type, metadata, trace_context, created_at"
            "  FROM leasehold.mark_calls(%s, %s, %s, %s::uuid[], %s::integer[], %s, %s::boolean[])",
            *fence(lease),
            [row.intent_id for row in due],
            [row.attempt_no for row in due],
            mark_no,
            needs_content if any(needs_content) else None,
            lease_name=lease.name,
        )
        if first.left_out:
            left_out = set(first.left_out)
            due = [row for row in due if row.intent_id not in left_out]
        if found:
            contents = {one.intent_id: one for one in found}
            due = [
                row if row.has_content else _with_content(row, contents[row.intent_id])
                for row in due
            ]
        return Marked(first.marked_at, first.left_out, as_claimed(due, first.marked_at))

    async def unmark_calls(self, lease: Lease, keep: Sequence[IntentId]) -> None:
        await self._query.value(
            "SELECT leasehold.unmark_calls(%s, %s, %s, %s::uuid[])",
            *fence(lease),
            list(keep),
            lease_name=lease.name,
        )

    async def begin_leased_attempts(
        self, lease: Lease, intent_ids: Sequence[IntentId]
    ) -> list[BegunLeased]:
        return await self._query.rows(
            _BEGUN,
            "SELECT * FROM leasehold.begin_leased_attempts(%s, %s, %s, %s::uuid[])",
            *fence(lease),
            list(intent_ids),
            lease_name=lease.name,
        )

    async def release_leased_attempts(self, lease: Lease, intent_ids: Sequence[IntentId]) -> int:
        return await self._query.value(
            "SELECT leasehold.release_leased_attempts(%s, %s, %s, %s::uuid[])",
            *fence(lease),
            list(intent_ids),
            lease_name=lease.name,
        )

    async def record_attempts(
        self, lease: Lease, results: Sequence[Result], *, tell_dispatched: bool = True
    ) -> list[Recorded]:
        """Record results under a lease."""
        return await self._query.rows(
            RECORDED,
            f"{SELECT_RECORDED} leasehold.record_attempts(%s, %s, %s, %s::jsonb) {WHERE_TOLD}",
            *fence(lease),
            results_argument(results),
            tell_dispatched,
            lease_name=lease.name,
        )


def _with_content(row: DueRow, found: _MarkedRow) -> DueRow:
    return row._replace(
        submission_key=found.submission_key,
        fencing_token=found.fencing_token,
        payload=found.payload,
        body=found.body,
        content_type=found.content_type,
        metadata=found.metadata,
        trace_context=found.trace_context,
        created_at=found.created_at,
    )

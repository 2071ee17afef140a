"""The calls of the role leasehold_executor that a scheduled executor makes under its leases."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from leasehold.domain.intent import PRIORITIES, Claimed, IntentId
from leasehold.domain.verdict import BeginVerdict
from leasehold.store.answers import BegunLeased, Marked, Recorded, Scheduled
from leasehold.store.postgres.arguments import results_argument
from leasehold.store.postgres.calls import Calls, rows_of, tuple_maker
from leasehold.store.postgres.ids import Ids, Integers
from leasehold.store.postgres.items import RECORDED, SELECT_RECORDED, WHERE_TOLD, claimed_rows
from leasehold.store.postgres.leases import fence, fences

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg.rows import RowMaker

    from leasehold.domain.lease import Lease
    from leasehold.domain.outcome import Result
    from leasehold.store.answers import Position
    from leasehold.store.postgres.wire import Answered

# Before anything that was ever modified.
_BEGINNING = (datetime.min.replace(tzinfo=UTC), IntentId(UUID(int=0)))
# After anything that will ever be due.
_END = (datetime.max.replace(tzinfo=UTC), IntentId(UUID(int=0)))
_SCHEDULED = rows_of(Scheduled)
# A held row's due_at, infinity, is read as NULL: Python does not have that moment.
_SELECT_SCHEDULED: Final = (
    "SELECT intent_id, target, priority, nullif(due_at, 'infinity') AS due_at, begun_at,"
    "       last_modified_at, horizon,"
    "       date_part('epoch', nullif(due_at, 'infinity') - clock_timestamp()) AS wait_seconds,"
    "       NULL AS content"
)
_BEGUN = rows_of(BegunLeased, verdict=BeginVerdict)
_MARKED = rows_of(Marked)
_CREATED_AT, _DUE_AT, _FIRST_TRIED_AT = map(
    Claimed._fields.index, ("created_at", "due_at", "first_tried_at")
)


def _window_rows(answered: Answered) -> RowMaker[Scheduled]:
    """Make rows that are the columns of Claimed but for the last, and then those that only
    Scheduled has. Content is as of when it was due; see Claimed.handed_out.
    """
    as_claimed, as_scheduled = claimed_rows(answered), tuple_maker(Scheduled)
    horizon: datetime | None = None

    def make(row: Sequence[Any]) -> Scheduled:
        nonlocal horizon
        begun_at, modified_at, told_horizon, wait_seconds = row[_FIRST_TRIED_AT + 1 :]
        horizon = told_horizon or horizon  # the first row of an answer has it
        content, due_at = None, row[_DUE_AT]
        if row[_CREATED_AT] is not None:
            tried = (row[_FIRST_TRIED_AT] or due_at, due_at)
            content = as_claimed((*row[:_FIRST_TRIED_AT], *tried))
        place = (row[0], row[3], row[7], due_at)
        return as_scheduled((*place, begun_at, modified_at, horizon, wait_seconds, content))

    return make


class PostgresSchedule:
    """The part of ExecutorStore that a scheduled executor uses."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def refresh_schedule(
        self,
        holder_id: str,
        leases: Sequence[Lease],
        after: tuple[datetime, IntentId] | None,
        limit: int,
    ) -> list[Scheduled]:
        """Read what changed after a cursor; None is the beginning."""
        return await self._calls.rows(
            _SCHEDULED,
            f"{_SELECT_SCHEDULED}"
            "  FROM leasehold.refresh_schedule(%s, %s::text[], %s::bigint[], %s, %s, %s)"
            " ORDER BY last_modified_at, intent_id",
            *fences(holder_id, leases),
            *(after or _BEGINNING),
            limit,
        )

    async def refresh_due_window(
        self,
        holder_id: str,
        leases: Sequence[Lease],
        targets: Sequence[str],
        limit: int,
        content_bytes: int = 0,
        after: Mapping[str, Mapping[int, Position]] | None = None,
    ) -> list[Scheduled]:
        """Read what is to be done next: so many of each target and priority, or of each stream;
        with its content, up to so many bytes each, where mark_scheduled_calls is all that is left.
        `after` reads on, of the priorities that it names for each target.
        """
        positions = (
            [
                after.get(target, {}).get(priority, _END)
                for target in targets
                for priority in range(PRIORITIES)
            ]
            if after is not None
            else None
        )
        return await self._calls.rows(
            _window_rows,
            "SELECT intent_id, NULL AS lease_token, last_state, target, contract_version,"
            "       attempt_count + 1 AS attempt_no, reference, priority, submission_key, payload,"
            "       body, content_type, metadata, trace_context, stream, created_at,"
            "       nullif(due_at, 'infinity') AS due_at, deadline_at, first_tried_at,"
            "       begun_at, last_modified_at,"
            "       CASE WHEN row_number() OVER () = 1 THEN horizon END AS horizon,"
            "       date_part('epoch', nullif(due_at, 'infinity') - clock_timestamp())"
            "  FROM leasehold.refresh_due_window(%s, %s::text[], %s::bigint[], %s::text[], %s, %s,"
            "                                    %s::timestamptz[], %s::uuid[])",
            *fences(holder_id, leases),
            list(targets),
            limit,
            content_bytes,
            positions and [due_at for due_at, _ in positions],
            positions and Ids([intent_id for _, intent_id in positions]),
        )

    async def mark_scheduled_calls(
        self, lease: Lease, content: Sequence[Claimed], mark_no: int
    ) -> Marked:
        """Mark calls as in flight whose content is there already."""
        [marked] = await self._calls.rows(
            _MARKED,
            "SELECT marked_at, left_out"
            "  FROM leasehold.mark_scheduled_calls(%s, %s, %s, %s::uuid[], %s::integer[], %s)",
            *fence(lease),
            Ids([one.intent_id for one in content]),
            Integers([one.attempt_no for one in content]),
            mark_no,
            lease_name=lease.name,
        )
        return marked

    async def hand_out_scheduled(
        self, lease: Lease, intent_ids: Sequence[IntentId], mark_no: int
    ) -> list[Claimed]:
        """Get what calls need, and mark them as in flight."""
        return await self._calls.rows(
            claimed_rows,
            "SELECT intent_id, NULL AS lease_token, last_state, target, contract_version,"
            "       attempt_no, reference, priority, submission_key, payload, body, content_type,"
            "       metadata, trace_context, stream, created_at, due_at, deadline_at,"
            "       first_tried_at, read_at"
            "  FROM leasehold.hand_out_scheduled(%s, %s, %s, %s::uuid[], %s)",
            *fence(lease),
            Ids(intent_ids),
            mark_no,
            lease_name=lease.name,
        )

    async def keep_scheduled_calls(self, lease: Lease, in_flight: Sequence[IntentId]) -> None:
        """Forget the marks of all calls that are not in flight."""
        await self._calls.value(
            "SELECT leasehold.keep_scheduled_calls(%s, %s, %s, %s::uuid[])",
            *fence(lease),
            Ids(in_flight),
            lease_name=lease.name,
        )

    async def begin_leased_attempts(
        self, lease: Lease, intent_ids: Sequence[IntentId]
    ) -> list[BegunLeased]:
        """Make "about to call" durable under a lease, and get the content."""
        return await self._calls.rows(
            _BEGUN,
            "SELECT * FROM leasehold.begin_leased_attempts(%s, %s, %s, %s::uuid[])",
            *fence(lease),
            Ids(intent_ids),
            lease_name=lease.name,
        )

    async def record_attempts(
        self, lease: Lease, results: Sequence[Result], *, tell_dispatched: bool = True
    ) -> list[Recorded]:
        """Record outcomes under a lease."""
        return await self._calls.rows(
            RECORDED,
            f"{SELECT_RECORDED} leasehold.record_attempts(%s, %s, %s, %s::jsonb) {WHERE_TOLD}",
            *fence(lease),
            results_argument(results),
            tell_dispatched,
            lease_name=lease.name,
        )

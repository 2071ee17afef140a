"""The calls of the role leasehold_executor that a scheduled executor makes under its leases."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from leasehold.domain.intent import AttemptState, Claimed, IntentId
from leasehold.domain.verdict import BeginVerdict
from leasehold.store.answers import BegunLeased, Recorded, Scheduled
from leasehold.store.postgres.arguments import results_argument
from leasehold.store.postgres.calls import Calls, members_by_text, rows_of, tuple_maker
from leasehold.store.postgres.ids import Ids
from leasehold.store.postgres.items import RECORDED
from leasehold.store.postgres.leases import fence, fences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.rows import RowMaker

    from leasehold.domain.lease import Lease
    from leasehold.domain.outcome import Result

# Before anything that was ever modified.
_BEGINNING = (datetime.min.replace(tzinfo=UTC), IntentId(UUID(int=0)))
# Its statements read a held row's due_at, infinity, as NULL: Python does not have that moment.
_SCHEDULED = rows_of(Scheduled)
_BEGUN = rows_of(BegunLeased, verdict=BeginVerdict)
_STATES = members_by_text(AttemptState)


def _under_lease(_cursor: object) -> RowMaker[Claimed]:
    """Make rows of content: the columns of Claimed in their order, the claim being NULL."""
    whole = tuple_maker(Claimed)

    def make(row: Sequence[Any]) -> Claimed:
        made = whole(row)
        if made.last_state is None:  # as on most first tries
            return made
        return made._replace(last_state=_STATES[made.last_state])

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
            "SELECT intent_id, target, priority, nullif(due_at, 'infinity') AS due_at, begun_at,"
            "       last_modified_at, horizon, clock_timestamp() AS read_at"
            "  FROM leasehold.refresh_schedule(%s, %s::text[], %s::bigint[], %s, %s, %s)"
            " ORDER BY last_modified_at, intent_id",
            *fences(holder_id, leases),
            *(after or _BEGINNING),
            limit,
        )

    async def refresh_due_window(
        self, holder_id: str, leases: Sequence[Lease], targets: Sequence[str], limit: int
    ) -> list[Scheduled]:
        """Read what is to be done next: so many of each target and priority, or of each stream."""
        return await self._calls.rows(
            _SCHEDULED,
            "SELECT intent_id, target, priority, nullif(due_at, 'infinity') AS due_at, begun_at,"
            "       last_modified_at, horizon, clock_timestamp() AS read_at"
            "  FROM leasehold.refresh_due_window(%s, %s::text[], %s::bigint[], %s::text[], %s)",
            *fences(holder_id, leases),
            list(targets),
            limit,
        )

    async def hand_out_scheduled(
        self, lease: Lease, intent_ids: Sequence[IntentId], mark_no: int
    ) -> list[Claimed]:
        """Get what calls need, and mark them as in flight."""
        return await self._calls.rows(
            _under_lease,
            "SELECT intent_id, NULL AS claim, last_state, target, contract_version, attempt_no,"
            "       reference, priority, submission_key, payload, body, content_type, metadata,"
            "       trace_context, stream, created_at, due_at, deadline_at, first_tried_at, read_at"
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

    async def record_attempts(self, lease: Lease, results: Sequence[Result]) -> list[Recorded]:
        """Record outcomes under a lease."""
        return await self._calls.rows(
            RECORDED,
            "SELECT intent_id, verdict, attempt_no, state, reason,"
            "       nullif(due_at, 'infinity') AS due_at,"
            "       coalesce(due_at = 'infinity', false) AS is_held"
            "  FROM leasehold.record_attempts(%s, %s, %s, %s::jsonb)",
            *fence(lease),
            results_argument(results),
            lease_name=lease.name,
        )

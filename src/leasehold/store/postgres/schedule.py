"""The calls of the role leasehold_executor that a scheduled executor makes under its leases."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from leasehold.domain.intent import IntentId
from leasehold.domain.verdict import BeginVerdict
from leasehold.store.answers import BegunLeased, Recorded, Scheduled
from leasehold.store.postgres.arguments import results_argument
from leasehold.store.postgres.calls import Calls, rows_of
from leasehold.store.postgres.ids import Ids
from leasehold.store.postgres.items import RECORDED, SELECT_RECORDED, WHERE_TOLD, claimed_rows
from leasehold.store.postgres.leases import fence, fences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.domain.intent import Claimed
    from leasehold.domain.lease import Lease
    from leasehold.domain.outcome import Result

# Before anything that was ever modified.
_BEGINNING = (datetime.min.replace(tzinfo=UTC), IntentId(UUID(int=0)))
_SCHEDULED = rows_of(Scheduled)
# A held row's due_at, infinity, is read as NULL: Python does not have that moment.
_SELECT_SCHEDULED: Final = (
    "SELECT intent_id, target, priority, nullif(due_at, 'infinity') AS due_at, begun_at,"
    "       last_modified_at, horizon,"
    "       date_part('epoch', nullif(due_at, 'infinity') - clock_timestamp()) AS wait_seconds"
)
_BEGUN = rows_of(BegunLeased, verdict=BeginVerdict)


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
        self, holder_id: str, leases: Sequence[Lease], targets: Sequence[str], limit: int
    ) -> list[Scheduled]:
        """Read what is to be done next: so many of each target and priority, or of each stream."""
        return await self._calls.rows(
            _SCHEDULED,
            f"{_SELECT_SCHEDULED}"
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

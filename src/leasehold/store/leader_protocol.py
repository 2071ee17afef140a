"""What a leader needs of a database: one protocol for each consumer, and their sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import Lease
    from leasehold.domain.outcome import Result
    from leasehold.store import rows


class ScheduleStore(Protocol):
    """Reads what a leader has to do. A read under a lease raises LeaseLost if it is lost."""

    async def refresh_schedule(
        self,
        holder_id: str,
        leases: Sequence[Lease],
        after: tuple[datetime, IntentId] | None,
        limit: int,
    ) -> list[rows.DueRow]:
        """Read the rows that changed after a position; None reads from the beginning."""
        ...

    async def read_open_writers(self) -> rows.OpenWriters:
        """Read which transactions may still commit rows that leaders read."""
        ...

    async def refresh_due_rows(
        self,
        holder_id: str,
        leases: Sequence[Lease],
        targets: Sequence[str],
        limit: int,
        content_bytes: int = 0,
        after: Mapping[str, Mapping[int, rows.Position]] | None = None,
    ) -> list[rows.DueRow]:
        """Read what is due next: up to `limit` rows of each target and priority.

        Content of up to `content_bytes` comes along if the call can be marked. `after` continues
        after a position, only for the priorities that it names of each target.
        """
        ...


class CallMarkStore(Protocol):
    """Marks calls before they are made. Each method raises LeaseLost if the lease is lost."""

    async def mark_calls(
        self, lease: Lease, due: Sequence[rows.DueRow], mark_no: int
    ) -> rows.Marked:
        """Mark calls as in flight before they are made, and read the content that is missing.

        DueRow.has_content says which rows came without content. The batch takes the place of the
        one that was marked under `mark_no` before: reuse a number only when all calls under it have
        ended.
        """
        ...

    async def unmark_calls(self, lease: Lease, keep: Sequence[IntentId]) -> None:
        """Remove the marks of all calls under a lease except `keep`."""
        ...


class LeasedWriteStore(Protocol):
    """Writes under a lease. Each method raises LeaseLost if the lease is lost."""

    async def begin_leased_attempts(
        self, lease: Lease, intent_ids: Sequence[IntentId]
    ) -> list[rows.BegunLeased]:
        """Record durably that these calls are about to be made, and return their content."""
        ...

    async def record_attempts(
        self, lease: Lease, results: Sequence[Result], *, tell_dispatched: bool = True
    ) -> list[rows.Recorded]:
        """Record results under a lease; the rows are those of complete_outbox_attempts."""
        ...


class LeaderStore(ScheduleStore, CallMarkStore, LeasedWriteStore, Protocol):
    """What the leader executor needs: it reads, marks and records."""

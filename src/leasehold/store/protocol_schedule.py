"""What a scheduled executor needs of a database, under its leases; a part of ExecutorStore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from leasehold.domain import intent
    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import Lease
    from leasehold.domain.outcome import Result
    from leasehold.store import rows as answers


class ScheduleStore(Protocol):
    """For whoever executes by a schedule. Every method raises LeaseLost where the lease is."""

    async def refresh_schedule(
        self,
        holder_id: str,
        leases: Sequence[Lease],
        after: tuple[datetime, IntentId] | None,
        limit: int,
    ) -> list[answers.DueRow]:
        """Read what changed after a cursor; None is the beginning."""
        ...

    async def refresh_due_window(
        self,
        holder_id: str,
        leases: Sequence[Lease],
        targets: Sequence[str],
        limit: int,
        content_bytes: int = 0,
        after: Mapping[str, Mapping[int, answers.Position]] | None = None,
    ) -> list[answers.DueRow]:
        """Read what is to be done next: so many of each target and priority, or of each stream;
        with its content, up to so many bytes each, where mark_calls is all that is left.
        `after` reads on, of the priorities that it names for each target.
        """
        ...

    async def mark_calls(
        self, lease: Lease, rows: Sequence[answers.DueRow], mark_no: int
    ) -> answers.Marked:
        """Mark the calls of these rows as in flight under a lease before they are made, and get
        the content of those rows that came without it (see DueRow.has_content).

        The batch takes the place of the one that was marked under `mark_no` before: reuse a number
        only when all calls under it have ended.
        """
        ...

    async def unmark_calls(self, lease: Lease, keep: Sequence[IntentId]) -> None:
        """Remove the marks of all calls under a lease except `keep`."""
        ...

    async def mark_scheduled_calls(
        self, lease: Lease, rows: Sequence[answers.DueRow], mark_no: int
    ) -> answers.Marked:
        """Mark calls as in flight whose content came with the window, in the place of those that
        `mark_no` marked before.
        """
        ...

    async def hand_out_scheduled(
        self, lease: Lease, intent_ids: Sequence[IntentId], mark_no: int
    ) -> list[intent.Claimed]:
        """Get what calls need under a lease, and mark them as in flight, in the place of those that
        `mark_no` marked before; what is not to be called now is left out.
        """
        ...

    async def keep_scheduled_calls(self, lease: Lease, in_flight: Sequence[IntentId]) -> None:
        """Forget the marks of all calls that are not in flight."""
        ...

    async def begin_leased_attempts(
        self, lease: Lease, intent_ids: Sequence[IntentId]
    ) -> list[answers.BegunLeased]:
        """Make "about to call" durable under a lease, and get the content."""
        ...

    async def record_attempts(
        self, lease: Lease, results: Sequence[Result], *, tell_dispatched: bool = True
    ) -> list[answers.Recorded]:
        """Record outcomes under a lease; the answer is that of complete_outbox_attempts."""
        ...

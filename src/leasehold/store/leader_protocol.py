"""What a leader needs of a database: one protocol for each consumer, and their sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import Lease
    from leasehold.domain.outcome import Result
    from leasehold.store import rows


class Changes(Protocol):
    """The changes of rows since `begin`. Each comes once at least, however late it is committed."""

    @property
    def has_more(self) -> bool:
        """Whether something that was seen by a look is not read yet."""
        ...

    @property
    def is_behind(self) -> bool:
        """Whether so much is left that the next look should wait."""
        ...

    async def begin(self) -> None:
        """Begin now: the caller reads everything that was there before."""
        ...

    async def look(self) -> None:
        """See up to where there are changes since the last look."""
        ...

    async def read(self, learn: Callable[[Sequence[rows.DueRow]], None]) -> None:
        """Read some pages of what was seen, and give each to `learn` as soon as it arrives."""
        ...

    def certainly_read(self) -> Callable[[rows.DueRow], bool]:
        """Say of which rows the change is certainly read by now, by whomever it was written."""
        ...


class ScheduleStore(Protocol):
    """Reads what a leader has to do. A read under a lease raises LeaseLost if it is lost."""

    def changes(self, lease: Lease) -> Changes:
        """Return the changes under a lease, to be read from now on."""
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


class LockWatchStore(Protocol):
    """Who holds the advisory locks of leases."""

    async def read_lock_squatters(
        self, lease_names: Sequence[str], lock_keys: Sequence[int]
    ) -> list[rows.LockSquatter]:
        """Read which sessions hold locks of these leases; the keys are of those elected by lock."""
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

    async def release_leased_attempts(self, lease: Lease, intent_ids: Sequence[IntentId]) -> int:
        """Take back the marks of calls that were begun, but for which nothing was sent."""
        ...

    async def record_attempts(
        self, lease: Lease, results: Sequence[Result], *, tell_dispatched: bool = True
    ) -> list[rows.Recorded]:
        """Record results under a lease; the rows are those of complete_outbox_attempts."""
        ...


class LeaderStore(CallMarkStore, LeasedWriteStore, LockWatchStore, ScheduleStore, Protocol):
    """What the leader executor needs: it reads, marks and records."""

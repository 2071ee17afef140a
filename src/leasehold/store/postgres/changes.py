"""The changes of pending rows, in the order of (last_modified_at, intent_id), without a gap.

A row becomes visible when its transaction commits, which may be after rows with a later timestamp.
So a look also remembers which writers were open. When one of them has ended, the changes since it
began are read again. A writer that stays open costs nothing, and no row is missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from leasehold.domain.intent import IntentId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.domain.lease import Lease
    from leasehold.store.rows import DueRow

    Cursor = tuple[datetime, IntentId]

# Changes are read in pages; after so many of each pass, the other reads have their turn.
PAGE = 1_000
PAGES_AT_ONCE = 5
PASSES_MAX = 4
_FIRST_ID = IntentId(UUID(int=0))


@dataclass(frozen=True, slots=True)
class OpenWriters:
    """The transactions that may still commit rows with a timestamp before `seen_at`.

    `began_at` has the second in which each began: its rows have no earlier timestamp.
    """

    seen_at: datetime
    began_at: Mapping[str, datetime]


class ChangeSource(Protocol):
    """The two statements that it takes."""

    async def read_open_writers(self) -> OpenWriters:
        """Read which transactions may still commit rows that leaders read."""
        ...

    async def refresh_schedule(
        self, holder_id: str, leases: Sequence[Lease], after: Cursor | None, limit: int
    ) -> list[DueRow]:
        """Read the rows that changed after a position; None reads from the beginning."""
        ...


@dataclass(slots=True)
class _Pass:
    """A read of all changes after a position up to another, in pages."""

    after: Cursor
    until: Cursor


class PostgresChanges:
    """Changes on PostgreSQL."""

    def __init__(self, source: ChangeSource, lease: Lease) -> None:
        self._source = source
        self._lease = lease
        # Every change up to here is read, except what is left of the passes and what these writers,
        # who were open at that moment, have written.
        self._read_to: Cursor = (datetime.min.replace(tzinfo=UTC), _FIRST_ID)
        self._writers: Mapping[str, datetime] = {}
        self._passes: list[_Pass] = []

    @property
    def has_more(self) -> bool:
        return bool(self._passes)

    @property
    def is_behind(self) -> bool:
        return len(self._passes) >= PASSES_MAX

    async def begin(self) -> None:
        seen = await self._source.read_open_writers()
        self._read_to, self._writers = (seen.seen_at, _FIRST_ID), seen.began_at

    async def look(self) -> None:
        read_to, writers = self._read_to, self._writers
        await self.begin()
        ended = [at for writer, at in writers.items() if writer not in self._writers]
        if ended:
            self._passes.append(_Pass((min(ended), _FIRST_ID), read_to))
        self._passes.append(_Pass(read_to, self._read_to))

    async def read(self, learn: Callable[[Sequence[DueRow]], None]) -> None:
        """Read some pages of each pass, so that a long pass keeps no other waiting."""
        self._passes = [one for one in self._passes if not await self._read_pages(one, learn)]

    def certainly_read(self) -> Callable[[DueRow], bool]:
        open_since = [(at, _FIRST_ID) for at in self._writers.values()]
        until = min([self._read_to, *open_since, *(one.after for one in self._passes)])
        return lambda row: _cursor_of(row) <= until

    async def _read_pages(self, one: _Pass, learn: Callable[[Sequence[DueRow]], None]) -> bool:
        """Read some pages; return whether the pass is complete."""
        for _ in range(PAGES_AT_ONCE):
            rows = await self._source.refresh_schedule(
                self._lease.holder_id, [self._lease], one.after, PAGE
            )
            learn(rows)
            if len(rows) < PAGE:
                return True
            one.after = _cursor_of(rows[-1])
            if one.after >= one.until:
                return True
        return False


def _cursor_of(row: DueRow) -> Cursor:
    return (row.version, row.intent_id)

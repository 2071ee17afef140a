"""What has changed since a leader last asked, by a cursor over (last_modified_at, intent_id).

A row becomes visible when its transaction commits, which may be after rows with a later stamp; so
the cursor never passes the horizon behind which a writer may still come. Some rows are read twice
for that, none is passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from leasehold.domain.intent import IntentId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from datetime import datetime

    from leasehold.coordination.term import Term
    from leasehold.store.protocol import ExecutorStore
    from leasehold.store.rows import DueRow

    Cursor = tuple[datetime, IntentId]

# Changes are read in pages; after so many, work goes on before the next.
PAGE = 1_000
PAGES_AT_ONCE = 5
_FIRST_ID = IntentId(UUID(int=0))


class Changes:
    """Reads for one term."""

    def __init__(self, store: ExecutorStore, term: Term) -> None:
        self.cursor: Cursor | None = None
        self._store = store
        self._term = term
        # How far this reading has come, and the horizon of its first page.
        self._come_to: Cursor | None = None
        self._horizon: datetime | None = None

    @property
    def is_reading(self) -> bool:
        """Whether there may be more of what was asked for last."""
        return self._come_to is not None

    def begin_at(self, horizon: datetime) -> None:
        """Take everything as known that was read under a horizon: what is stamped later comes."""
        self.cursor = (horizon, _FIRST_ID)

    async def pages(self) -> AsyncIterator[Sequence[DueRow]]:
        """Read on, some pages; `is_reading` says afterwards whether that was all."""
        lease = self._term.lease
        for _ in range(PAGES_AT_ONCE):
            after = self._come_to or self.cursor
            rows = await self._store.refresh_schedule(lease.holder_id, [lease], after, PAGE)
            if rows:
                yield rows
                self._horizon = self._horizon or rows[0].horizon
                self._come_to = (rows[-1].last_modified_at, rows[-1].intent_id)
            if len(rows) < PAGE:
                self._end()
                return

    def _end(self) -> None:
        """Advance the cursor to the last row, but not past the horizon of the first page."""
        if self._come_to is not None and self._horizon is not None:
            self.cursor = min(self._come_to, (self._horizon, _FIRST_ID))
        self._come_to = self._horizon = None

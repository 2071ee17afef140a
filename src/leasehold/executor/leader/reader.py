"""The reader fills the due queue from the database. It reads in three ways:

- a window: what is due next by the index of due times, from the beginning or on from where the last
  window ended. The beginning is a low-water mark, so that a window does not pass over the dead rows
  of everything that was finished since the last vacuum;
- changes since the last refresh. The store gives each of them, however late its transaction commits
  (`Changes`);
- once a minute everything from the very beginning (the reconcile), and what the refreshes had
  missed is counted: it must be 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.observe.logs import get_logger
from leasehold.service.service import AGAIN, Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.coordination.term import Term
    from leasehold.domain.timing import Timings
    from leasehold.executor.leader.due_queue import DueQueue
    from leasehold.executor.slots import Slots
    from leasehold.executor.targets import Targets
    from leasehold.observe.metrics import Metrics
    from leasehold.store.leader_protocol import ScheduleStore
    from leasehold.store.rows import DueRow, Position

RECONCILE_SECONDS = 60.0
LIMIT_MAX = 10_000  # rows of each target and priority; the database refuses more
CONTENT_BYTES = 1_000  # of content that come with each row, at most
_IDLE = Pause(60.0)

_LOG = get_logger(__name__)


class Reader:
    """The service that reads rows into the due queue, for one term."""

    def __init__(
        self,
        store: ScheduleStore,
        term: Term,
        queue: DueQueue,
        slots: Slots,
        targets: Targets,
        metrics: Metrics,
        timings: Callable[[], Timings],
        *,
        on_error: Callable[[Exception], None],
    ) -> None:
        self.name = f"reader {term.lease.name}"
        self.wake = queue.reader_wake
        self._store = store
        self._term = term
        self._queue = queue
        self._slots = slots
        self._targets = targets
        self._metrics = metrics
        self._timings = timings
        self._on_error = on_error
        self._is_built = False
        self._is_hinted = False  # something has changed since the last refresh
        self._refresh_at = 0.0
        self._reconcile_at = 0.0
        self._changes = store.changes(term.lease)

    def hint(self) -> None:
        """Refresh now: something has changed."""
        self._is_hinted = True
        self.wake.set()

    async def build(self) -> None:
        """Read everything for the first time, before the leader acts."""
        self._queue.serve(self._served())
        await self._changes.begin()
        await self._read_from_beginning(self._served(), is_full=True)
        now = self._slots.clock()
        self._refresh_at = now + self._timings().schedule_refresh_seconds
        self._reconcile_at = now + RECONCILE_SECONDS
        self._is_built = True
        self.wake.set()

    async def step(self) -> Pause:
        """Read what is needed now. Any error makes the leader step down."""
        if not self._is_built or self._term.is_closing:
            return _IDLE
        try:
            return await self._step()
        except Exception as error:  # noqa: BLE001 (whatever it is, the leader steps down)
            self._on_error(error)
            return _IDLE

    async def _step(self) -> Pause:
        self._queue.serve(self._served())
        now = self._slots.clock()
        if (now >= self._refresh_at or self._is_hinted) and not self._changes.is_behind:
            await self._begin_refresh()
        if self._changes.has_more:
            with self._queue.reading():
                await self._changes.read(self._learn)
        if self._queue.has_left_out:
            soon = self._slots.clock() + self._timings().schedule_refresh_seconds
            self._reconcile_at = min(self._reconcile_at, soon)
        if self._slots.clock() >= self._reconcile_at:
            await self._reconcile()
        elif lacking := self._queue.lacking():
            await self._read_from_beginning(lacking)
        elif positions := self._queue.running_low():
            await self._read_on(positions)
        self._metrics.schedule(self._term.lease.name, len(self._queue))
        if self._is_hinted or self._changes.has_more:
            return AGAIN
        return Pause(max(0.0, min(self._refresh_at, self._reconcile_at) - self._slots.clock()))

    def _served(self) -> list[str]:
        return self._targets.of_group(self._term.lease.name)

    async def _read_from_beginning(
        self, targets: Sequence[str], *, is_full: bool = False
    ) -> Sequence[DueRow]:
        """Read the first rows of targets, in place of what is known of them.

        Unless it is a full read, it begins at the low-water marks: before them are only the dead
        rows of what was finished.
        """
        if not targets:
            return []
        with self._queue.reading():
            # What is in flight is found too, and must not hide the rows behind it.
            limit = min(LIMIT_MAX, self._queue.page + self._queue.in_flight)
            after = None if is_full else self._queue.beginning(targets)
            rows = await self._read_window(targets, limit, after)
            self._queue.relearn(targets, rows, self._slots.clock(), limit)
        return rows

    async def _read_on(self, positions: Mapping[str, Mapping[int, Position]]) -> None:
        """Read the rows that come after those that were read."""
        self._queue.read_on(positions)
        with self._queue.reading():
            limit = min(LIMIT_MAX, self._queue.page)
            rows = await self._read_window(list(positions), limit, positions)
            self._queue.learn_page(rows, self._slots.clock(), limit)

    async def _read_window(
        self,
        targets: Sequence[str],
        limit: int,
        after: Mapping[str, Mapping[int, Position]] | None = None,
    ) -> Sequence[DueRow]:
        lease = self._term.lease
        return await self._store.refresh_due_rows(
            lease.holder_id, [lease], targets, limit, CONTENT_BYTES, after
        )

    async def _begin_refresh(self) -> None:
        """Look for what has changed since the last refresh."""
        self._is_hinted = False
        self._refresh_at = self._slots.clock() + self._timings().schedule_refresh_seconds
        await self._changes.look()

    def _learn(self, rows: Sequence[DueRow]) -> None:
        received_at = self._slots.clock()
        for row in rows:
            self._queue.learn(row, received_at)

    async def _reconcile(self) -> None:
        """Read everything from the beginning, and count the rows that the refreshes missed."""
        self._reconcile_at = self._slots.clock() + RECONCILE_SECONDS
        known, partial = self._queue.known(), self._queue.partial()
        is_certain = self._changes.certainly_read()
        rows = await self._read_from_beginning(self._served(), is_full=True)
        missed = [
            row
            for row in rows
            if row.target not in partial
            and row.intent_id.int not in known
            and self._queue.find(row.intent_id.int) is not None
            and is_certain(row)
        ]
        if missed:
            _LOG.error(
                "cursor_missed_changes",
                lease_name=self._term.lease.name,
                missed=len(missed),
                first=str(missed[0].intent_id),
            )
            self._metrics.schedule(self._term.lease.name, len(self._queue), len(missed))

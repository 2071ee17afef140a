"""Reading what is to be done next, by the index of due times: from the beginning, or on from where
we are, beside the work that is being done meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leasehold.executor.leader.beside import Beside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.coordination.claims import Clock
    from leasehold.coordination.term import Term
    from leasehold.executor.leader.due_queue import DueQueue
    from leasehold.store.protocol import ExecutorStore
    from leasehold.store.rows import DueRow, Position

LIMIT_MAX = 10_000  # of each target and priority; the database refuses more
CONTENT_BYTES = 1_000  # that come along with each row, at most


class Read(NamedTuple):
    """A window as it was answered, the most of each target and priority that it could have, and
    when it was here.
    """

    rows: Sequence[DueRow]
    limit: int
    received_at: float


class Window:
    """Reads for one schedule, under one term."""

    def __init__(
        self,
        store: ExecutorStore,
        term: Term,
        schedule: DueQueue,
        clock: Clock,
        told: Callable[[], None],
    ) -> None:
        self._store = store
        self._term = term
        self._schedule = schedule
        self._clock = clock
        self._ahead: Beside[Read] = Beside(told)

    async def read(self, targets: Sequence[str], in_flight: int) -> Read:
        """Read from the beginning. What is in flight is found too, and must not hide what comes
        after it.
        """
        return await self._read(targets, self._schedule.page + in_flight)

    def read_ahead(self) -> None:
        """Read on, where little is left; `told` says when that is here."""
        after = {} if self._ahead.is_begun else self._schedule.running_low()
        if after:
            for target in after:
                self._schedule.reads_on(target)
            self._ahead.begin(self._read(list(after), self._schedule.page, after))

    @property
    def is_read_ahead(self) -> bool:
        """Whether something that was read ahead is here."""
        return self._ahead.is_done

    async def ahead(self) -> Read | None:
        """Give what was read ahead, once it is here; None, where nothing was."""
        return await self._ahead.result()

    async def _read(
        self,
        targets: Sequence[str],
        limit: int,
        after: Mapping[str, Mapping[int, Position]] | None = None,
    ) -> Read:
        lease, limit = self._term.lease, min(LIMIT_MAX, limit)
        rows = await self._store.refresh_due_window(
            lease.holder_id, [lease], targets, limit, CONTENT_BYTES, after
        )
        return Read(rows, limit, self._clock())

"""`leasehold.leadership(...)`: run your own code as the one leader of a group, without intents.

    async with leasehold.leadership("nightly-report", database_url=url) as leader:
        await make_the_report(leader)

The block is entered when this process is elected. While it waits, an unreachable database is asked
again; an error that only a person can mend, such as a missing role, is raised. When the lease is
lost, the block is cancelled and `LeaseLost` is raised from it. Fence what the block does:

- Calls to other systems carry the epoch as a fencing token: `leader.lease.epoch`, which only rises.
- Each database transaction begins with `SELECT leasehold.hold_lease(name, holder_id, epoch)`;
  `leader.fence` is these three arguments. It raises P7002 for a former leader.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.config import read_settings
from leasehold.coordination.elector import TRUST_ENDED, Elector
from leasehold.coordination.row_lease import RowLease
from leasehold.domain.errors import (
    AccessDenied,
    GenerationChanged,
    InvalidArgument,
    LeaseLost,
    MigrationError,
    NotLeader,
)
from leasehold.observe.metrics import Metrics
from leasehold.runtime.registration import new_worker_id
from leasehold.service.service import Loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from leasehold.config import Settings
    from leasehold.coordination.elector import TermSession
    from leasehold.coordination.term import Term
    from leasehold.domain.lease import Lease
    from leasehold.service.service import Pause
    from leasehold.store.executor_protocol import GenerationStore

_JOIN_SECONDS = 3.0
# Asking again does not cure these: a missing role, no schema or an old one, an impossible name.
_PERMANENT = (AccessDenied, MigrationError, InvalidArgument)


@dataclass(frozen=True, slots=True)
class Leader:
    """The leadership of the block: its lease, its fence, and whether it still holds."""

    lease: Lease
    _elector: Elector
    _term: Term

    @property
    def fence(self) -> tuple[str, str, int]:
        """The arguments of leasehold.hold_lease."""
        return self.lease.name, self.lease.holder_id, self.lease.epoch

    @property
    def is_over(self) -> bool:
        """Whether this process knows that it may no longer act as the leader."""
        return self._term.is_closing or self._elector.term is not self._term

    async def confirm(self) -> None:
        """Ask the database whether we still lead; raises LeaseLost if not."""
        try:
            await self._elector.confirm(self._term)
        except NotLeader as error:
            raise LeaseLost(str(error), lease_name=self.lease.name) from error


@asynccontextmanager
async def leadership(
    name: str,
    *,
    database_url: str | None = None,
    settings: Settings | None = None,
    holder_id: str | None = None,
    timeout_seconds: float | None = None,
) -> AsyncGenerator[Leader]:
    """Wait until this process leads the group `name`, and run the block as its leader.

    The login needs the role leasehold_executor. The lease is released when the block ends.
    Raises AccessDenied if the login lacks the role, MigrationError if the schema does not fit this
    release, NotLeader if this process is not elected within `timeout_seconds` (None: wait as long
    as it takes), and LeaseLost if the lease is lost while the block runs.
    """
    if timeout_seconds is not None and not timeout_seconds > 0:
        raise InvalidArgument(f"timeout_seconds ({timeout_seconds}) must be greater than 0")
    settings = settings or read_settings(database_url=database_url)
    holder = holder_id or new_worker_id()
    async with settings.database() as database:
        backend = RowLease(database.store, name, holder, settings.timings)
        block = _BlockSession()
        elector = Elector(name, holder, backend, Metrics(holder), block.begin)
        candidate = _Candidate(elector, block, database.store)
        loop = Loop(candidate, holder)
        try:
            term = await candidate.elected(timeout_seconds)
            leader = Leader(term.lease, elector, term)
            with block.cancelled_when_lost(leader, term):
                yield leader
        finally:
            loop.stop()
            await loop.join(_JOIN_SECONDS)
            await elector.resign(0)


class _Candidate:
    """The elector as a service that ends the wait for an election that cannot come."""

    def __init__(self, elector: Elector, block: _BlockSession, store: GenerationStore) -> None:
        self.name = elector.name
        self.wake = elector.wake
        self._elector = elector
        self._block = block
        self._store = store
        self._error: Exception | None = None  # of the last step

    async def step(self) -> Pause:
        """Take the elector's next step."""
        try:
            pause = await self._elector.step()
        except Exception as error:
            self._error = error
            if isinstance(error, GenerationChanged):
                await self._store.begin_generation(self._elector.holder_id)
            if isinstance(error, _PERMANENT):
                self._block.refuse(error)
            raise
        self._error = None
        return pause

    async def elected(self, timeout_seconds: float | None) -> Term:
        """Wait for the election. Raises a permanent error, or NotLeader after the timeout."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._block.term
        except TimeoutError:
            raise self._not_elected(f"{timeout_seconds:g} seconds") from self._error

    def _not_elected(self, time_waited: str) -> NotLeader:
        seen = self._elector.seen
        if self._error is not None:
            why = str(self._error)
        else:
            why = f"{seen.holder_id} leads" if seen else "the database has not answered yet"
        return NotLeader(
            f"{self._elector.holder_id} was not elected within {time_waited}: {why}",
            lease_name=self._elector.lease_name,
            holder_id=seen.holder_id if seen else None,
        )


class _BlockSession:
    """The user's block as a TermSession. It cannot be finished early, only cancelled."""

    def __init__(self) -> None:
        self.term: asyncio.Future[Term] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[object] | None = None  # while the block runs
        self._is_lost = False

    def begin(self, elector: Elector, term: Term) -> TermSession:
        """Let the block begin. There is no second term: the end of the first ends the block."""
        del elector
        if not self.term.done():
            self.term.set_result(term)
        else:
            term.close("the block has ended")
        return self

    def refuse(self, error: Exception) -> None:
        """Raise this error from the wait for the election."""
        if not self.term.done():
            self.term.set_exception(error)

    async def finish(self, seconds: float) -> None:
        """Cancel the block: it cannot be told to hurry."""
        del seconds
        await self.abandon()

    async def abandon(self) -> None:
        """Cancel the block."""
        if self._task is not None and not self._is_lost:
            self._is_lost = True
            self._task.cancel()

    @contextmanager
    def cancelled_when_lost(self, leader: Leader, term: Term) -> Generator[None]:
        """Run the block; if we cancelled it, raise LeaseLost instead of CancelledError.

        A lease that was lost before the block begins raises LeaseLost too.
        """
        if leader.is_over:
            raise _lost(term)
        task = self._task = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_lost or task is None or task.uncancel() > 0:
                raise
            raise _lost(term) from None
        finally:
            self._task = None


def _lost(term: Term) -> LeaseLost:
    return LeaseLost(
        f"the lease {term.lease.name!r} (epoch {term.lease.epoch}) is lost: "
        f"{term.closing_reason or TRUST_ENDED}; drop unfinished work",
        lease_name=term.lease.name,
    )

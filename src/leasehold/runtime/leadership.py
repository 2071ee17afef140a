"""`leasehold.leadership(...)`: run any code of yours as the one leader of a group, with or without
intents.

    async with leasehold.leadership("nightly-report", database_url=url) as leader:
        await make_the_report(leader)

The block is entered when this process is elected, and cancelled when it is not the leader any more;
`LeaseLost` then comes out of it. What it does in the outside world in the meantime carries the
epoch as a fencing token (`leader.lease.epoch`, it only rises), and what it writes in the database
begins each transaction with `SELECT leasehold.hold_lease(name, holder_id, epoch)` (`leader.fence`
has the three), which raises P7002 instead of letting a former leader write.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.config import read_settings
from leasehold.coordination.elector import Elector
from leasehold.coordination.row_lease import RowLease
from leasehold.domain.errors import LeaseLost, NotLeader
from leasehold.observe.metrics import Metrics
from leasehold.runtime.registration import new_worker_id
from leasehold.service.loop import Loop
from leasehold.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from leasehold.config import Settings
    from leasehold.coordination.elector import TermSession
    from leasehold.coordination.term import Term
    from leasehold.domain.lease import Lease

_JOIN_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Leader:
    """What the block may know of its leadership."""

    lease: Lease
    _elector: Elector
    _term: Term

    @property
    def fence(self) -> tuple[str, str, int]:
        """The arguments of leasehold.hold_lease."""
        return self.lease.name, self.lease.holder_id, self.lease.epoch

    @property
    def is_over(self) -> bool:
        """Whether nothing may be done any more, as far as this process can tell by itself."""
        return self._term.is_closing or self._elector.term is not self._term

    async def confirm(self) -> None:
        """Have the database say that we still lead; raises LeaseLost where it does not."""
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
) -> AsyncGenerator[Leader]:
    """Wait until this process leads the group `name`, and run the block as its leader.

    The login needs the role leasehold_executor. A block that ends gives leadership up at once.
    Raises LeaseLost when leadership was lost while the block ran.
    """
    settings = settings or read_settings(database_url=database_url)
    holder = holder_id or new_worker_id()
    block = _Block()
    async with PostgresStore(settings.required_database_url(), settings.pool()) as store:
        backend = RowLease(store, name, holder, settings.timings)
        elector = Elector(name, holder, backend, Metrics(holder), block.begin)
        loop = Loop(elector, holder)
        try:
            term = await block.elected()
            with block.cancelled_when_lost(term):
                yield Leader(term.lease, elector, term)
        finally:
            block.is_running = False
            loop.stop()
            await loop.join(_JOIN_SECONDS)
            await elector.resign(0)


class _Block:
    """The user's block as a leader's session: there is nothing to finish, only to cancel."""

    def __init__(self) -> None:
        self.is_running = False
        self._term: asyncio.Future[Term] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[object] | None = None
        self._is_lost = False

    def begin(self, elector: Elector, term: Term) -> TermSession:
        """Let the block begin. A second term does not come: the first one's end ends the block."""
        del elector
        if not self._term.done():
            self._term.set_result(term)
        else:
            term.close("the block has ended")
        return self

    async def elected(self) -> Term:
        """Wait for the election."""
        return await self._term

    async def finish(self, seconds: float) -> None:
        """In trouble: the block cannot be told to hurry, so it is ended."""
        del seconds
        await self.abandon()

    async def abandon(self) -> None:
        """Cancel the block."""
        if self.is_running and self._task is not None and not self._is_lost:
            self._is_lost = True
            self._task.cancel()

    @contextmanager
    def cancelled_when_lost(self, term: Term) -> Generator[None]:
        """Run the block here; what our cancellation made of it becomes LeaseLost."""
        self._task, self.is_running = asyncio.current_task(), True
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_lost or self._task is None or self._task.uncancel() > 0:
                raise
            raise LeaseLost(
                f"leadership of {term.lease.name!r} (epoch {term.lease.epoch}) is lost: "
                f"{term.why_closing}; drop what was not finished",
                lease_name=term.lease.name,
            ) from None
        finally:
            self.is_running = False

"""The groups of an instance: for each lease that its targets with scope cluster name, it stands for
election, and while it leads it has a tenure.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.coordination.elector import Leadership
from leasehold.domain.errors import InvalidArgument
from leasehold.observe.logs import get_logger
from leasehold.runtime.leader_session import LeaderTenure
from leasehold.runtime.whole_groups import WholeGroups
from leasehold.service.loop import Loop
from leasehold.service.service import Pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.coordination.elector import Tenure
    from leasehold.coordination.term import Elector, Term
    from leasehold.domain.lease import Lease
    from leasehold.domain.timing import Timings
    from leasehold.executor.faults import Faults
    from leasehold.executor.targets import Targets
    from leasehold.observe.metrics import Metrics
    from leasehold.store.protocol import ExecutorStore

_JOIN_SECONDS = 5.0

_LOG = get_logger(__name__)


class Cluster:
    """The service that begins and ends this instance's part in elections."""

    name = "cluster"

    def __init__(
        self,
        store: ExecutorStore,
        targets: Targets,
        metrics: Metrics,
        timings: Callable[[], Timings],
        holder_id: str,
        slots: Callable[[], int],
        elector: Callable[[str], Elector],
        faults: Faults,
    ) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._targets = targets
        self._metrics = metrics
        self._timings = timings
        self._holder_id = holder_id
        self._slots = slots
        self._elector = elector
        self._faults = faults
        self._groups = WholeGroups(targets, holder_id)
        self._leaderships: dict[str, Leadership] = {}
        self._loops: dict[str, Loop] = {}
        self._tenures: dict[str, LeaderTenure] = {}

    @property
    def leaderships(self) -> list[Leadership]:
        """The groups that this instance stands for election in, by name."""
        return [self._leaderships[name] for name in sorted(self._leaderships)]

    @property
    def in_flight(self) -> int:
        """How much is being worked on under leases."""
        return sum(tenure.in_flight for tenure in self._tenures.values())

    def work_is_due(self, target: str) -> None:
        """Take the hint that something was accepted for a target."""
        served = self._targets.current.get(target)
        tenure = self._tenures.get(served.contract.lease_name or "") if served else None
        if tenure is not None:
            tenure.executor.hint()

    def lease_is_free(self, lease_name: str) -> None:
        """Take the hint that a leader has let go: stand for election now."""
        leadership = self._leaderships.get(lease_name)
        if leadership is not None:
            leadership.wake.set()

    def look_everywhere(self) -> None:
        """Take the hint that nobody knows what has changed."""
        for tenure in self._tenures.values():
            tenure.executor.hint()

    @property
    def lease_names(self) -> set[str]:
        """The groups in which the targets of this instance are executed."""
        return set(self._targets.groups)

    def require_lease(self, lease_name: str) -> Lease:
        """Give the lease under which this instance leads a group now, or raise NotLeader."""
        leadership = self._leaderships.get(lease_name)
        if leadership is None:
            raise InvalidArgument(f"no target of this instance belongs to the group {lease_name!r}")
        return leadership.require_lease()

    def require_whole_groups(self) -> None:
        """Refuse to start where a part of a group would be led and the rest left undone."""
        self._groups.require()

    def apply(self) -> None:
        """Let a change of the concurrency reach the terms that run."""
        for tenure in self._tenures.values():
            tenure.set_slots(self._slots())

    async def stand_alone(self) -> None:
        """Lead every group from now on, or refuse where somebody else does."""
        for lease_name in sorted(self.lease_names):
            leadership = self._leaderships[lease_name] = self._leadership(lease_name)
            await leadership.step()
            if not leadership.is_leader:
                holder_id = leadership.seen.holder_id if leadership.seen else "somebody else"
                raise InvalidArgument(
                    f"standalone is refused: {holder_id} leads {lease_name!r}; stop it first, or, "
                    f"where it is dead, wait for the end of its lease in "
                    f"{leadership.seconds_left:.0f} seconds, or start this instance without "
                    "--standalone, as one among others"
                )
            self._loops[lease_name] = Loop(leadership, self._holder_id)

    async def step(self) -> Pause:
        """Stand for election wherever a target asks for it, and nowhere else."""
        wanted = self.lease_names
        for lease_name in wanted - self._leaderships.keys():
            self._leaderships[lease_name] = leadership = self._leadership(lease_name)
            self._loops[lease_name] = Loop(leadership, self._holder_id)
        for lease_name in self._leaderships.keys() - wanted:
            await self._withdraw(lease_name, self._timings().shutdown_seconds)
        self._groups.look()
        return Pause(self._timings().contracts_seconds)

    async def resign(self) -> None:
        """End every term in order, so that others lead at once."""
        seconds = self._timings().shutdown_seconds
        names = list(self._leaderships)
        ends = await asyncio.gather(
            *(self._withdraw(name, seconds) for name in names), return_exceptions=True
        )
        for name, error in zip(names, ends, strict=True):
            # The lease of this one expires by itself; the others' must not wait for that.
            if isinstance(error, BaseException):
                _LOG.error("resignation_failed", lease_name=name, exc_info=error)

    def _leadership(self, lease_name: str) -> Leadership:
        return Leadership(
            lease_name,
            self._holder_id,
            self._elector(lease_name),
            self._metrics,
            self._begin_tenure,
        )

    async def _withdraw(self, lease_name: str, seconds: float) -> None:
        loop, leadership = self._loops.pop(lease_name, None), self._leaderships.pop(lease_name)
        if loop is not None:
            loop.stop()
            await loop.join(_JOIN_SECONDS)
        await leadership.resign(seconds)
        self._tenures.pop(lease_name, None)

    def _begin_tenure(self, leadership: Leadership, term: Term) -> Tenure:
        tenure = self._tenures[leadership.lease_name] = LeaderTenure(
            self._store,
            self._targets,
            self._metrics,
            self._timings,
            self._slots(),
            leadership,
            term,
            self._faults,
        )
        return tenure

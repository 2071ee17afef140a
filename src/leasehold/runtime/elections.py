"""The elections of one instance: an elector for every lease that its cluster targets name.

All targets that share a `lease_name` form a group, and one leader executes the whole group. While
this instance leads a group, a `LeaderSession` does the work.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from leasehold.coordination.advisory_lock import AdvisoryLock, require_election_by_lock
from leasehold.coordination.elector import Elector
from leasehold.coordination.row_lease import RowLease
from leasehold.domain.errors import GenerationChanged, InvalidArgument
from leasehold.observe.logs import get_logger
from leasehold.runtime.leader_session import LeaderSession
from leasehold.runtime.registration import ScopeState
from leasehold.service.service import Loop, Pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.coordination.advisory_lock import OpenSession
    from leasehold.coordination.elector import LeaseBackend, TermSession
    from leasehold.coordination.term import Term
    from leasehold.domain.lease import Lease
    from leasehold.executor.targets import Targets
    from leasehold.runtime.sessions import Parts

_JOIN_SECONDS = 5.0

_LOG = get_logger(__name__)


class Contracts:
    """The service that reads the contracts again, for all scopes.

    Any error makes leaders step down: whoever cannot read the database must not lead.
    """

    name = "contracts"

    def __init__(self, targets: Targets, on_error: Callable[[Exception], None]) -> None:
        self.wake = targets.wake
        self._targets = targets
        self._on_error = on_error

    async def step(self) -> Pause:
        """Read contracts again."""
        try:
            return await self._targets.step()
        except Exception as error:
            self._on_error(error)
            raise


class Elections:
    """The service that starts and stops one elector per group.

    Without `open_lock_session`, the electors use the lease row instead of an advisory lock.
    """

    name = "elections"

    def __init__(
        self,
        parts: Parts,
        open_lock_session: OpenSession | None,
    ) -> None:
        self.wake = asyncio.Event()
        self._parts = parts
        self._store = parts.store
        self._targets = parts.targets
        self._metrics = parts.metrics
        self._timings = parts.timings
        self._holder_id = parts.worker_id
        self._open_lock_session = open_lock_session
        self._electors: dict[str, Elector] = {}
        self._loops: dict[str, Loop] = {}
        self._sessions: dict[str, LeaderSession] = {}
        self._reported_partial: dict[str, list[str]] = {}

    @property
    def electors(self) -> list[Elector]:
        """The electors of this instance, sorted by lease name."""
        return [self._electors[name] for name in sorted(self._electors)]

    def scopes(self, as_leader: str) -> dict[str, ScopeState]:
        """Return the state of this instance in each group; `as_leader` is its mode if it leads."""
        return {
            f"cluster/{elector.lease_name}": ScopeState(
                mode=as_leader if elector.is_leader else "follower",
                holder_id=elector.seen.holder_id if elector.seen else None,
                lease_expires_at=elector.seen.expires_at if elector.seen else None,
            )
            for elector in self.electors
        }

    @property
    def in_flight(self) -> int:
        """How many intents this instance is executing as a leader."""
        return sum(session.in_flight for session in self._sessions.values())

    @property
    def is_by_lock(self) -> bool:
        """Whether leaders are elected by advisory lock."""
        return self._open_lock_session is not None

    @property
    def lease_names(self) -> set[str]:
        """The groups that the targets of this instance belong to."""
        return set(self._targets.groups)

    def work_is_due(self, target: str) -> None:
        """Hint: an intent for this target was enqueued."""
        served = self._targets.current("cluster").get(target)
        session = self._sessions.get(served.contract.lease_name or "") if served else None
        if session is not None:
            session.hint()

    def lease_is_free(self, lease_name: str) -> None:
        """Hint: a leader released this lease. Ask for it now."""
        elector = self._electors.get(lease_name)
        if elector is not None:
            elector.wake.set()

    def look_everywhere(self) -> None:
        """Hint: notifications may have been missed, so any group may have work."""
        for session in self._sessions.values():
            session.hint()

    def require_lease(self, lease_name: str) -> Lease:
        """Return the lease under which this instance leads the group, or raise NotLeader."""
        elector = self._electors.get(lease_name)
        if elector is None:
            raise InvalidArgument(f"no target of this instance belongs to the group {lease_name!r}")
        return elector.require_lease()

    def step_down(self, error: Exception) -> None:
        """Give up every group that this instance leads, because of an error of the database."""
        for elector in self._electors.values():
            if elector.term is not None:
                elector.step_down(elector.term, error)

    async def drop_leases(self) -> None:
        """Step down everywhere. Calls in flight end, then the leases are released."""
        self.step_down(GenerationChanged("the database may have lost commits"))

    async def start(self, *, standalone: bool) -> None:
        """Refuse what cannot work. A standalone instance becomes the leader of every group now."""
        self._require_whole_groups()
        if standalone:
            await self._stand_alone()
        elif self._open_lock_session is not None:
            await require_election_by_lock(
                self._open_lock_session, self._timings().cluster_lease_seconds, self.lease_names
            )

    async def step(self) -> Pause:
        """Start an elector for each group that has targets here, and stop the others."""
        wanted = self.lease_names
        for lease_name in wanted - self._electors.keys():
            self._electors[lease_name] = elector = self._new_elector(lease_name)
            self._loops[lease_name] = Loop(elector, self._holder_id)
        for lease_name in self._electors.keys() - wanted:
            await self._withdraw(lease_name, self._timings().finish_seconds)
        self._report_partial_groups()
        return Pause(self._timings().contracts_seconds)

    async def resign(self, seconds: float) -> None:
        """End every term in order, so that other instances can lead at once. Calls may go on for
        so long.
        """
        names = list(self._electors)
        ends = await asyncio.gather(
            *(self._withdraw(name, seconds) for name in names), return_exceptions=True
        )
        for name, error in zip(names, ends, strict=True):
            # A lease that could not be released expires by itself; it must not delay the others.
            if isinstance(error, BaseException):
                _LOG.error("resignation_failed", lease_name=name, exc_info=error)

    def _require_whole_groups(self) -> None:
        """Refuse to start if this instance serves only some targets of a group.

        If it were elected, it would keep every other instance from executing the rest.
        """
        for lease_name, missing in sorted(self._targets.left_out.items()):
            raise InvalidArgument(
                f"this instance serves only part of the group {lease_name!r}: while it leads, "
                f"nobody executes {', '.join(missing)}; name all targets of the group, or publish "
                "the missing ones with another lease_name"
            )

    async def _stand_alone(self) -> None:
        """Lead every group now, or refuse if another instance leads one."""
        # A start that is repeated after a database error keeps the groups that it already leads.
        for lease_name in sorted(self.lease_names - self._loops.keys()):
            if lease_name not in self._electors:
                self._electors[lease_name] = self._new_elector(lease_name)
            elector = self._electors[lease_name]
            await elector.step()
            if not elector.is_leader:
                holder_id = elector.seen.holder_id if elector.seen else "another instance"
                raise InvalidArgument(
                    f"standalone is refused: {holder_id} leads {lease_name!r}. Stop it first. If "
                    f"it is dead, its lease ends in {elector.seconds_left:.0f} seconds. Or start "
                    "without --standalone, as one of several instances"
                )
            self._loops[lease_name] = Loop(elector, self._holder_id)

    def _new_elector(self, lease_name: str) -> Elector:
        backend = self._lease_backend(lease_name)
        return Elector(lease_name, self._holder_id, backend, self._metrics, self._begin_session)

    def _lease_backend(self, lease_name: str) -> LeaseBackend:
        if self._open_lock_session is None:
            return RowLease(self._store, lease_name, self._holder_id, self._timings)
        return AdvisoryLock(
            self._store, self._open_lock_session, lease_name, self._holder_id, self._timings
        )

    async def _withdraw(self, lease_name: str, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        loop, elector = self._loops.pop(lease_name, None), self._electors.pop(lease_name)
        if loop is not None:
            loop.stop()
            await loop.join(_JOIN_SECONDS)
        await elector.resign(max(0.0, ends_at - time.monotonic()))
        self._sessions.pop(lease_name, None)
        self._metrics.forget_group(lease_name)

    def _begin_session(self, elector: Elector, term: Term) -> TermSession:
        session = LeaderSession(self._parts, elector, term)
        self._sessions[elector.lease_name] = session
        return session

    def _report_partial_groups(self) -> None:
        """Log which targets of our groups were published later and are not served here; once."""
        left_out = self._targets.left_out
        for lease_name, missing in left_out.items():
            if self._reported_partial.get(lease_name) != missing:
                _LOG.error(
                    "group_served_in_part",
                    worker_id=self._holder_id,
                    lease_name=lease_name,
                    not_executed=missing,
                )
        self._reported_partial = left_out

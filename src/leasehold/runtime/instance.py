"""Instance: one process of Leasehold, put together from its parts. The only place that knows all.

    async with Instance(read_settings()) as instance:
        await instance.run()  # until instance.request_stop()

What may change while it runs: contracts, which are read again every few seconds (with them lease
durations, concurrency and rates per target), and the timings and the concurrency of the process
itself, by `apply`. Everything else is read once.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any, Self

from leasehold.coordination.advisory_lock import AdvisoryLock, require_election_by_lock
from leasehold.coordination.claims import Claims
from leasehold.coordination.heartbeat import Renewal
from leasehold.coordination.reaper import Reaper, ReaperWatch, require_other_reaper
from leasehold.coordination.row_lease import RowLease
from leasehold.executor.competing import CompetingExecutor
from leasehold.executor.completer import Completion
from leasehold.executor.faults import NO_FAULTS
from leasehold.executor.fence import ClaimFence
from leasehold.executor.runner import Attempts
from leasehold.executor.targets import Targets
from leasehold.gateway.registry import open_gateway
from leasehold.observe.logs import get_logger
from leasehold.observe.metrics import Metrics
from leasehold.runtime.elections import Cluster
from leasehold.runtime.identity import new_worker_id
from leasehold.runtime.notifier import Listener
from leasehold.runtime.queue_watch import QueueWatch
from leasehold.runtime.registration import Presence
from leasehold.runtime.scopes import ScopeState
from leasehold.service.loop import Loop
from leasehold.store.postgres.lock_session import PostgresLockSession
from leasehold.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from leasehold.config import Settings
    from leasehold.coordination.term import Elector
    from leasehold.domain.contract import Contract
    from leasehold.domain.lease import Lease
    from leasehold.domain.timing import Timings
    from leasehold.executor.faults import Faults
    from leasehold.gateway.protocol import Gateway
    from leasehold.service.service import Service
    from leasehold.store.lock_session import LockSession

# For the last results to be written, after the time for calls to end is over.
FLUSH_SECONDS = 3.0
# For a service's last step to end.
_JOIN_SECONDS = 3.0

_LOG = get_logger(__name__)


class Instance:
    """Claims, submits, records, renews and repairs, from start to drain."""

    def __init__(
        self,
        settings: Settings,
        *,
        metrics: Metrics | None = None,
        environment: Mapping[str, str] = os.environ,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.worker_id = settings.holder_id or new_worker_id()
        self.metrics = metrics or Metrics(self.worker_id)
        self._settings = settings
        self._environment = environment
        self._is_standalone = settings.standalone
        self._is_elected_by_lock = settings.elector == "advisory" and not settings.standalone
        self._stop = asyncio.Event()
        self._loops: dict[str, Loop] = {}
        self._store = PostgresStore(settings.required_database_url(), settings.pool())
        self._claims = Claims(self.worker_id, settings.concurrency)
        self._targets = Targets(
            self._store, self._opened, self.timings, self._claims.clock, settings.targets
        )
        fence = ClaimFence(self._store, self.worker_id)
        self._completion = Completion(
            fence, self._claims, self.metrics, trouble=self._trouble, faults=faults
        )
        self._attempts = Attempts(
            fence,
            self._claims,
            self._targets,
            self._completion,
            self.metrics,
            trouble=self._trouble,
            faults=faults,
        )
        self._renewal = Renewal(
            self._store, self._claims, self.timings, self.metrics, self._attempts.abort
        )
        self._executor = CompetingExecutor(
            self._store,
            self._claims,
            self._targets,
            self._attempts,
            self.metrics,
            self.timings,
            trouble=self._trouble,
        )
        self._cluster_targets = Targets(
            self._store,
            self._opened,
            self.timings,
            self._claims.clock,
            settings.targets,
            scope="cluster",
        )
        self.cluster = Cluster(
            self._store,
            self._cluster_targets,
            self.metrics,
            self.timings,
            self.worker_id,
            lambda: self._settings.concurrency,
            self._elector,
            faults,
        )
        self._presence = Presence(
            self._store, self.worker_id, self.timings, self._role, self._detail
        )
        self._reaper = Reaper(self._store, self.worker_id, self.timings, self.metrics)
        self._listener: Listener | None = None

    def timings(self) -> Timings:
        """Give the timings as they are now."""
        return self._settings.timings()

    def scopes(self) -> dict[str, ScopeState]:
        """Say what this instance is in each scope, for those who ask whether it is well."""
        found = {"item": ScopeState(mode="competing", holder_id=self.worker_id)}
        as_leader = "standalone" if self._is_standalone else "leader"
        for one in self.cluster.leaderships:
            # The lease as the database last told of it, on the database's clock.
            seen = one.seen
            found[f"cluster/{one.lease_name}"] = ScopeState(
                mode=as_leader if one.is_leader else "follower",
                holder_id=seen.holder_id if seen else None,
                lease_expires_at=seen.expires_at if seen else None,
            )
        return found

    def apply(self, settings: Settings) -> None:
        """Take over timings and concurrency while running."""
        self._settings = settings
        self._claims.slots = settings.concurrency
        self.cluster.apply()
        for service in (self._renewal, self._reaper, self._targets, self._executor):
            service.wake.set()
        _LOG.info("settings_applied", worker_id=self.worker_id)

    def require_lease(self, lease_name: str) -> Lease:
        """Give the lease under which this instance leads a group now, for what only its leader may
        do; raises NotLeader, and logs a warning, where it does not lead.
        """
        return self.cluster.require_lease(lease_name)

    @property
    def stuck_calls(self) -> int:
        """How many calls ignore that they were cancelled; an event loop waits for them forever."""
        return self._claims.stuck_calls

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.drain()

    async def start(self) -> None:
        """Connect, check what cannot work, and begin to claim."""
        await self._store.pool.open()
        try:
            await self._targets.start()
            await self._cluster_targets.start()
            self.cluster.require_whole_groups()
            if not self._settings.reaper:
                await require_other_reaper(self._store, self.worker_id)
            await self._prepare_elections()
        except BaseException:
            await self.cluster.resign()
            await self._store.pool.close()
            raise
        for service in self._services():
            self._loops[service.name] = Loop(service, self.worker_id)
        _LOG.info(
            "worker_started",
            worker_id=self.worker_id,
            targets=sorted([*self._targets.current, *self._cluster_targets.current]),
            concurrency=self._claims.slots,
        )

    async def run(self) -> None:
        """Work until somebody asks for a stop."""
        await self._stop.wait()

    def request_stop(self) -> None:
        """Have `run` return; may be called from a signal handler of the loop."""
        self._stop.set()

    async def drain(self) -> None:
        """End in order: claim nothing, give back what was not begun, finish what was, and go."""
        self._stop_services("executor", "listener", "targets", "cluster targets", "cluster")
        await self._join("cluster")
        resigned = asyncio.create_task(self.cluster.resign())
        self._attempts.close()
        await self._join("listener", seconds=0)
        is_done = await self._wait_until_empty(self.timings().shutdown_seconds)
        if not is_done:
            for held in self._claims.all():
                self._attempts.abort(held, reason="shutdown")
            await self._wait_until_empty(FLUSH_SECONDS)
        await resigned
        self._stop_services(*self._loops)
        for name in list(self._loops):
            await self._join(name)
        await self._say_goodbye()
        _LOG.info("worker_stopped", worker_id=self.worker_id, left_to_the_reaper=len(self._claims))

    def _services(self) -> list[Service]:
        services: list[Service] = [
            self._renewal,
            self._completion,
            self._executor,
            self._targets,
            self._cluster_targets,
            self.cluster,
            self._presence,
        ]
        if self._settings.reaper:
            services.append(self._reaper)
        else:
            services.append(ReaperWatch(self._store, self.worker_id, self.timings))
        if self._settings.metrics_port is not None:
            services.append(QueueWatch(self._store, self.metrics))
        if self._settings.listen and not self._settings.through_pooler:
            address = self._settings.required_database_url()
            self._listener = Listener(
                address, [self._executor, self.cluster], self.worker_id, self._role
            )
            services.append(self._listener)
        return services

    def _opened(self, contract: Contract) -> Gateway:
        return open_gateway(contract, environment=self._environment)

    async def _prepare_elections(self) -> None:
        if self._is_standalone:
            await self.cluster.stand_alone()
        elif self._is_elected_by_lock:
            await require_election_by_lock(
                self._open_lock_session,
                self.timings().cluster_lease_seconds,
                self.cluster.lease_names,
            )

    def _elector(self, lease_name: str) -> Elector:
        if self._is_elected_by_lock:
            return AdvisoryLock(
                self._store, self._open_lock_session, lease_name, self.worker_id, self.timings
            )
        return RowLease(self._store, lease_name, self.worker_id, self.timings)

    async def _open_lock_session(
        self, lease_seconds: float, replaces: LockSession | None
    ) -> PostgresLockSession:
        return await PostgresLockSession.open(
            self._settings.required_database_url(),
            self._settings.pool(),
            lease_seconds=lease_seconds,
            holder_id=self.worker_id,
            replaces=replaces,
        )

    def _role(self) -> str:
        """Say what this instance is, for people."""
        if self._is_standalone:
            return "standalone"
        leaderships = self.cluster.leaderships
        if not leaderships:
            return "worker"
        return "leader" if any(one.is_leader for one in leaderships) else "follower"

    def _trouble(self, error: Exception) -> None:
        """A call of the database failed: let the heartbeat find out at once whether all is lost."""
        del error
        self._renewal.wake.set()

    def _detail(self) -> dict[str, Any]:
        return {
            "version": metadata.version("leasehold"),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "targets": sorted([*self._targets.current, *self._cluster_targets.current])[:100],
            "leads": [one.lease_name for one in self.cluster.leaderships if one.is_leader][:100],
            "concurrency": self._claims.slots,
            "in_flight": len(self._claims) + self.cluster.in_flight,
            "reaper": self._settings.reaper,
        }

    def _stop_services(self, *names: str) -> None:
        for name in names:
            if name in self._loops:
                self._loops[name].stop()

    async def _join(self, name: str, seconds: float = _JOIN_SECONDS) -> None:
        if name in self._loops:
            await self._loops.pop(name).join(seconds)

    async def _wait_until_empty(self, seconds: float) -> bool:
        is_free = asyncio.Event()
        self._claims.on_free(lambda _: is_free.set())
        ends_at = time.monotonic() + seconds
        # A claim may be under way: what it brings is given back.
        while len(self._claims) or not self._loops["executor"].is_done:
            is_free.clear()
            left = ends_at - time.monotonic()
            if left <= 0:
                return False
            try:
                async with asyncio.timeout(min(left, 0.1)):
                    await is_free.wait()
            except TimeoutError:
                continue
        return True

    async def _say_goodbye(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._reaper.release()
                await self._presence.release()
        await self._targets.close()
        await self._cluster_targets.close()
        await self._store.pool.close()

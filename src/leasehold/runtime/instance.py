"""Instance: one process of Leasehold. This is the composition root, the only module that knows all
parts.

    async with Instance(read_settings()) as instance:
        await instance.run()  # until instance.request_stop()

Contracts are read again every few seconds, so lease durations, concurrency and rates of a target
may change at runtime. `apply` changes the timings and the concurrency of the process. Every other
setting is read once, at start.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any, Self

from leasehold.coordination.reaper import Reaper, ReaperWatch, require_other_reaper
from leasehold.executor.faults import NO_FAULTS
from leasehold.executor.observer import ObserverThread, find_observer
from leasehold.executor.slots import SlotPool
from leasehold.executor.targets import Targets
from leasehold.gateway.python import Threads
from leasehold.gateway.registry import open_gateway
from leasehold.observe.logs import get_logger
from leasehold.observe.metrics import Metrics
from leasehold.runtime.database_wait import DatabaseWait
from leasehold.runtime.elections import ClusterContracts, Elections
from leasehold.runtime.generation import GenerationWatch
from leasehold.runtime.lock_watch import LockWatch
from leasehold.runtime.notifier import Notifier
from leasehold.runtime.registration import Registration, ScopeState, new_worker_id
from leasehold.runtime.sessions import ItemSession, Parts, StreamSession
from leasehold.runtime.watches import LoopWatch, QueueWatch, TargetWatch
from leasehold.service.service import Loop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.config import Settings
    from leasehold.domain.contract import Contract, Scope
    from leasehold.domain.lease import Lease
    from leasehold.domain.timing import Timings
    from leasehold.executor.faults import Faults
    from leasehold.executor.observer import Observer
    from leasehold.gateway.protocol import Gateway
    from leasehold.service.service import Service
    from leasehold.store.lock_session import LockSession

# Time to write the last results, after `finish_seconds` has passed.
FLUSH_SECONDS = 3.0
# Time for the last step of a service.
_JOIN_SECONDS = 3.0
_LOOK_SECONDS = 0.02

_LOG = get_logger(__name__)


class Instance:
    """Claims, submits, records, renews and repairs, from `start` to `drain`."""

    def __init__(
        self,
        settings: Settings,
        *,
        metrics: Metrics | None = None,
        environment: Mapping[str, str] = os.environ,
        faults: Faults = NO_FAULTS,
        observer: Observer | None = None,
    ) -> None:
        """Observe with `observer`, or with what the setting of that name names."""
        self.worker_id = settings.holder_id or new_worker_id()
        self.metrics = metrics or Metrics(self.worker_id)
        self._settings = settings
        self._timings = settings.timings()
        self._environment = environment
        self._is_standalone = settings.standalone
        is_elected_by_lock = settings.elector == "advisory" and not settings.standalone
        self._stop = asyncio.Event()
        self._drain: asyncio.Task[None] | None = None
        self._loops: dict[Service, Loop] = {}
        refused = asyncio.Event()
        self._database = settings.database(on_generation_changed=refused.set)
        self._store = self._database.store
        self._pool = SlotPool(settings.concurrency)
        self.metrics.watch_calls(lambda: self._pool.in_flight, lambda: self._pool.stuck_calls)
        self._threads = Threads(self._pool.keep_slot)
        self._loop_watch = LoopWatch(self.worker_id, self.metrics)
        self._targets = self._targets_of("item")
        self._cluster_targets = self._targets_of("cluster")
        observer = find_observer(observer, settings.observer, self._database.secrets, environment)
        self._observer = (
            None if observer is None else ObserverThread(observer, self.metrics, self.worker_id)
        )
        parts = Parts(
            self._store,
            self.metrics,
            self.timings,
            self.worker_id,
            self._pool,
            faults,
            self._observer,
        )
        self._items = ItemSession(parts, self._targets)
        self._streams = StreamSession(parts, self._targets_of("stream"))
        open_session = self._open_lock_session if is_elected_by_lock else None
        self.elections = Elections(parts, self._cluster_targets, open_session)
        self._contracts = ClusterContracts(self._cluster_targets, self.elections.step_down)
        holders = self._items, self._streams, self.elections
        self._generation = GenerationWatch(parts, holders, refused)
        shares = self._streams.shares
        self._registration = Registration(
            self._store, self.worker_id, self.timings, self._role, self._detail, shares
        )
        served = [self._targets, self._cluster_targets, self._streams.targets]
        target_watch = TargetWatch(served, settings.targets, self.metrics, self.timings)
        self._watches = target_watch, LockWatch(parts, self.elections), self._loop_watch
        self._reaper = Reaper(self._store, self.worker_id, self.timings, self.metrics)
        hinted = [self._items.executor, self._streams.executor, self.elections]
        hints = self._database.notifications(self.worker_id) if settings.listen else None
        # None without hints: then everything polls.
        self._notifiers = (
            [] if hints is None else [Notifier(hints, hinted, self.worker_id, self._role)]
        )

    def timings(self) -> Timings:
        """Return the current timings."""
        return self._timings

    def scopes(self) -> dict[str, ScopeState]:
        """Return the state of this instance in each scope, for health checks."""
        item = ScopeState(mode="competing", holder_id=self.worker_id)
        as_leader = "standalone" if self._is_standalone else "leader"
        scopes = {"item": item, "stream": item} if self._streams.targets.current else {"item": item}
        return scopes | self.elections.scopes(as_leader)

    def apply(self, settings: Settings) -> None:
        """Adopt new timings and a new concurrency while running."""
        self._settings = settings
        self._timings = settings.timings()
        self._pool.total = settings.concurrency
        self._pool.wake_waiting()
        for service in (self._reaper, *self._items.services, *self._streams.services):
            service.wake.set()
        _LOG.info("settings_applied", worker_id=self.worker_id)

    def require_lease(self, lease_name: str) -> Lease:
        """Return the lease under which this instance leads the group now.

        For work that only the leader may do. Raises NotLeader, and logs a warning, if this instance
        does not lead.
        """
        return self.elections.require_lease(lease_name)

    @property
    def stuck_calls(self) -> int:
        """How many calls ignore their cancellation; an event loop would wait for them forever."""
        return self._pool.stuck_calls

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain()

    async def start(self, wait: DatabaseWait | None = None) -> None:
        """Wait for the database, refuse what cannot work, and start all services."""
        wait = wait or DatabaseWait(self._settings.start_seconds, self._stop)
        await wait.retry(self._database.open)
        try:
            await wait.retry(lambda: self._database.check_schema(role="leasehold_executor"))
            await wait.retry(self._generation.step)
            await wait.retry(self._targets.start)
            await wait.retry(self._cluster_targets.start)
            await wait.retry(self._streams.targets.start)
            if not self._settings.reaper:
                await wait.retry(lambda: require_other_reaper(self._store, self.worker_id))
            await wait.retry(lambda: self.elections.start(standalone=self._is_standalone))
        except BaseException:
            await self.elections.resign(0)
            await self._database.close()
            raise
        if self._observer is not None:
            self._observer.start()
        for service in self._services():
            self._loops[service] = Loop(service, self.worker_id)
        _LOG.info(
            "worker_started",
            worker_id=self.worker_id,
            targets=self._target_names(),
            concurrency=self._pool.total,
        )

    async def run(self) -> None:
        """Work until `request_stop` is called."""
        await self._stop.wait()

    def request_stop(self) -> None:
        """Make `run` return; safe to call from a signal handler of the event loop."""
        self._stop.set()

    async def drain(self) -> None:
        """Stop in order: claim nothing more, give back what has not begun, finish the rest.

        A second call waits for the first.
        """
        if self._drain is None:
            self._drain = asyncio.create_task(self._drain_once())
        await self._drain

    async def _drain_once(self) -> None:
        ends_at = time.monotonic() + self.timings().finish_seconds
        self._stop_services(self._items.executor, self._streams.executor)
        self._stop_services(*self._notifiers, self.elections)
        self._stop_services(self._targets, self._contracts, self._streams.targets)
        self._items.close()
        self._streams.close()
        await self._join(self.elections)
        resigned = asyncio.create_task(self.elections.resign(ends_at - time.monotonic()))
        for notifier in self._notifiers:
            await self._join(notifier, seconds=0)
        if not await self._wait_until_empty(ends_at - time.monotonic()):
            self._items.abort()
            self._streams.abort()
        self._stop_services(self._streams.holder)
        await self._join(self._streams.holder)  # its last look may have begun a head
        await self._wait_until_empty(FLUSH_SECONDS)
        await self._streams.leave()
        await resigned
        self._loop_watch.close()
        self._stop_services(*self._loops)
        await asyncio.gather(*(self._join(service) for service in list(self._loops)))
        await self._close()
        _LOG.info("worker_stopped", worker_id=self.worker_id, left_to_the_reaper=self._in_flight())

    def _services(self) -> list[Service]:
        settings = self._settings
        services: list[Service] = [
            *self._items.services,
            *self._streams.services,
            self._contracts,
            self.elections,
            self._generation,
            self._registration,
            *self._watches,
            *self._notifiers,
        ]
        if settings.reaper:
            services.append(self._reaper)
        else:
            services.append(ReaperWatch(self._store, self.worker_id, self.timings))
        if settings.metrics_port is not None:
            services.append(QueueWatch(self._store, self.metrics))
        return services

    def _targets_of(self, scope: Scope) -> Targets:
        return Targets(
            self._store,
            self._open_gateway,
            self.timings,
            self._pool.clock,
            self._settings.targets,
            scope,
        )

    def _open_gateway(self, contract: Contract) -> Gateway:
        return open_gateway(
            contract,
            environment=self._environment,
            secrets=self._database.secrets,
            threads=self._threads,
        )

    async def _open_lock_session(
        self, lease_seconds: float, replaces: LockSession | None
    ) -> LockSession:
        return await self._database.open_lock_session(
            lease_seconds=lease_seconds, holder_id=self.worker_id, replaces=replaces
        )

    def _role(self) -> str:
        """Return the role shown to people: standalone, worker, leader or follower."""
        if self._is_standalone:
            return "standalone"
        electors = self.elections.electors
        if not electors:
            return "worker"
        return "leader" if any(one.is_leader for one in electors) else "follower"

    def _in_flight(self) -> int:
        return len(self._items.slots) + len(self._streams.slots)

    def _target_names(self) -> list[str]:
        by_scope = self._targets, self._cluster_targets, self._streams.targets
        return sorted(target for targets in by_scope for target in targets.current)

    def _detail(self) -> dict[str, Any]:
        return {
            "version": metadata.version("leasehold"),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "targets": self._target_names()[:100],
            "leads": [one.lease_name for one in self.elections.electors if one.is_leader][:100],
            "concurrency": self._pool.total,
            "in_flight": self._in_flight() + self.elections.in_flight,
            "reaper": self._settings.reaper,
        }

    def _stop_services(self, *services: Service) -> None:
        for service in services:
            if service in self._loops:
                self._loops[service].stop()

    async def _join(self, service: Service, seconds: float = _JOIN_SECONDS) -> None:
        if service in self._loops:
            await self._loops.pop(service).join(seconds)

    async def _wait_until_empty(self, seconds: float) -> bool:
        """Wait until no claim is left. A claim that is still arriving is given back."""
        ends_at = time.monotonic() + seconds
        claiming = self._loops[self._items.executor], self._loops[self._streams.executor]
        while self._in_flight() or not all(loop.is_done for loop in claiming):
            left = ends_at - time.monotonic()
            if left <= 0:
                return False
            await asyncio.sleep(min(left, _LOOK_SECONDS))
        return True

    async def _close(self) -> None:
        for notifier in self._notifiers:
            await notifier.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._reaper.release()
                await self._registration.release()
        await self._targets.close()
        await self._cluster_targets.close()
        await self._streams.targets.close()
        self._threads.close()
        if self._observer is not None:
            await self._observer.close(FLUSH_SECONDS)
        await self._database.close()

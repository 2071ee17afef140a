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
from leasehold.runtime.elections import Contracts, Elections
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
    from leasehold.domain.contract import Contract
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
        clock, only = self._pool.clock, settings.targets
        self._targets = Targets(self._store, self._open_gateway, self.timings, clock, only)
        observer = find_observer(observer, settings.observer, self._database.secrets, environment)
        self._observer = (
            None if observer is None else ObserverThread(observer, self.metrics, self.worker_id)
        )
        parts = Parts(
            self._store,
            self._targets,
            self.metrics,
            self.timings,
            self.worker_id,
            self._pool,
            faults,
            self._observer,
        )
        self._items = ItemSession(parts)
        self._streams = StreamSession(parts)
        open_session = self._open_lock_session if is_elected_by_lock else None
        self.elections = Elections(parts, open_session)
        self._contracts = Contracts(self._targets, self.elections.step_down)
        holders = self._items, self._streams, self.elections
        self._generation = GenerationWatch(parts, holders, refused)
        shares = self._streams.shares
        self._registration = Registration(
            self._store, self.worker_id, self.timings, self._role, self._detail, shares
        )
        target_watch = TargetWatch(self._targets, settings.targets, self.metrics, self.timings)
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
        competing = ScopeState(mode="competing", holder_id=self.worker_id)
        as_leader = "standalone" if self._is_standalone else "leader"
        here = {"item", "stream"} if self._streams.targets.current else {"item"}
        served = sorted(here & self._database.scopes)
        return dict.fromkeys(served, competing) | self.elections.scopes(as_leader)

    def apply(self, settings: Settings) -> None:
        """Adopt new timings and a new concurrency while running."""
        self._settings = settings
        self._timings = settings.timings()
        self._pool.total = settings.concurrency
        self._pool.wake_waiting()
        running = *self._items.services, *self._streams.services, self._contracts, self._reaper
        for service in running:
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
            if not self._settings.reaper:
                await wait.retry(lambda: require_other_reaper(self._store, self.worker_id))
            if "cluster" in self._database.scopes:
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
        # First, so that nothing comes that would only be given back.
        self._stop_services(self._items.executor, self._streams.executor)
        # Before resigning: hints wake electors, and a step of the elections starts new ones.
        self._stop_services(*self._notifiers, self.elections)
        # New contracts would open gateways, and close some that calls in flight came with.
        self._stop_services(self._contracts)
        # After the claims: whatever they still bring, a closed session gives back.
        self._items.close()
        self._streams.close()
        # Else its last step could start an elector that nobody resigns.
        await self._join(self.elections)
        # Beside the rest: calls of leaders and of workers end within the same time.
        resigned = asyncio.create_task(self.elections.resign(ends_at - time.monotonic()))
        # Cancelled, because its step lasts for as long as nobody sends a hint.
        for notifier in self._notifiers:
            await self._join(notifier, seconds=0)
        # Calls may end by themselves for as long as the settings permit; then they are aborted.
        if not await self._wait_until_empty(ends_at - time.monotonic()):
            self._items.abort()
            self._streams.abort()
        # Only now: while calls ended, it freed streams. It may have begun one more head.
        self._stop_services(self._streams.holder)
        await self._join(self._streams.holder)
        # The completers still run: they write what has ended or was aborted.
        await self._wait_until_empty(FLUSH_SECONDS)
        # After the last result, for a stream with a call in flight cannot be released.
        await self._streams.leave()
        # Before the services stop: a leader's calls may last for as long as a worker's.
        await resigned
        # Heartbeats stop last: they kept the leases of what was still to be written.
        self._loop_watch.close()
        self._stop_services(*self._loops)
        await asyncio.gather(*(self._join(service) for service in list(self._loops)))
        await self._close()
        _LOG.info("worker_stopped", worker_id=self.worker_id, left_to_the_reaper=self._in_flight())

    def _services(self) -> list[Service]:
        settings = self._settings
        scopes = self._database.scopes
        services: list[Service] = [
            *(self._items.services if "item" in scopes else ()),
            *(self._streams.services if "stream" in scopes else ()),
            *([self.elections] if "cluster" in scopes else ()),
            self._contracts,
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
        return sorted(self._targets.names)

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
        executors = self._items.executor, self._streams.executor
        claiming = [self._loops[one] for one in executors if one in self._loops]
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
        self._threads.close()
        if self._observer is not None:
            await self._observer.close(FLUSH_SECONDS)
        await self._database.close()

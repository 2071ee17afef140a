"""What an instance runs for the scopes that it competes in: items, and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leasehold.executor.claim_loop import ClaimLoop, ItemClaimer
from leasehold.executor.completer import Completer
from leasehold.executor.heartbeat import Heartbeat
from leasehold.executor.item import CALLING
from leasehold.executor.runner import Runner
from leasehold.executor.slots import Slots
from leasehold.executor.streams.heartbeat import StreamHeartbeat
from leasehold.executor.streams.held import HeldStreams
from leasehold.executor.streams.holder import StreamHolder
from leasehold.executor.targets import ScopeTargets
from leasehold.observe.logs import get_logger
from leasehold.service.deadline import within_deadline

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.domain.contract import Scope
    from leasehold.domain.timing import Timings
    from leasehold.executor.claim_loop import Claimer
    from leasehold.executor.faults import Faults
    from leasehold.executor.observer import ObserverThread
    from leasehold.executor.slots import SlotPool
    from leasehold.executor.targets import Targets
    from leasehold.observe.metrics import Metrics
    from leasehold.service.service import Service
    from leasehold.store.executor_protocol import ExecutorStore

_LEAVE_SECONDS = 2.0

_LOG = get_logger(__name__)


class Parts(NamedTuple):
    """What all sessions of an instance share."""

    store: ExecutorStore
    targets: Targets
    metrics: Metrics
    timings: Callable[[], Timings]
    worker_id: str
    pool: SlotPool
    faults: Faults
    observer: ObserverThread | None


class Session:
    """What both scopes have: slots, a runner, a completer and a loop that claims."""

    heartbeat: Service

    def __init__(self, parts: Parts, scope: Scope) -> None:
        self.targets = ScopeTargets(parts.targets, scope)
        self.slots = Slots(parts.worker_id, parts.pool)
        self._parts = parts
        self._completer = Completer(
            self.slots,
            parts.metrics,
            on_error=self._on_error,
            faults=parts.faults,
            observer=parts.observer,
        )
        self._runner = Runner(
            self.slots,
            parts.targets,
            self._completer,
            parts.metrics,
            on_error=self._on_error,
            faults=parts.faults,
            observer=parts.observer,
        )

    def close(self) -> None:
        """Begin nothing more, and give back what has not begun."""
        self._runner.close()

    def abort(self) -> None:
        """Give back the calls that were not sent, and give up the others."""
        self._runner.withdraw(self.slots.all())
        for item in self.slots.all():
            self._runner.abort(item, reason="shutdown")

    async def drop_leases(self) -> None:
        """Make no call that has not begun. Those that have may end and be recorded."""
        lost = self.slots.lose(item for item in self.slots.all() if item.state < CALLING)
        if lost:
            self._parts.metrics.lease_lost(lost)
            _LOG.warning(
                "lease_lost",
                worker_id=self._parts.worker_id,
                claims=lost,
                reason="the database may have lost commits",
            )

    def _executor(
        self, name: str, claimer: Claimer, lease_seconds: Callable[[str], float]
    ) -> ClaimLoop:
        return ClaimLoop(
            name,
            self._parts.store,
            claimer,
            self.slots,
            self.targets,
            self._runner,
            self._parts.metrics,
            self._parts.timings,
            lease_seconds=lease_seconds,
            on_error=self._on_error,
            faults=self._parts.faults,
        )

    def _on_error(self, error: Exception) -> None:
        """A database call failed: let the heartbeat check at once whether our leases are lost."""
        del error
        self.heartbeat.wake.set()


class ItemSession(Session):
    """Claims items."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts, "item")
        store, metrics, timings = parts.store, parts.metrics, parts.timings
        self.executor = self._executor(
            "executor",
            ItemClaimer(store, self.slots),
            lambda target: self.targets.current[target].lease_seconds,
        )
        self.heartbeat = Heartbeat(store, self.slots, timings, metrics, self._runner.abort)
        self.services: list[Service] = [
            self.heartbeat,
            self._completer,
            self._completer.repeater,
            self.executor,
        ]


class StreamSession(Session):
    """Claims streams, and works on their heads."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts, "stream")
        store, metrics, timings = parts.store, parts.metrics, parts.timings
        self._streams = HeldStreams(parts.worker_id)
        self.holder = StreamHolder(
            store, self.slots, self._streams, self.targets, self._runner, metrics, timings
        )
        self.executor = self._executor(
            "stream executor", self.holder, lambda _: timings().stream_claim_seconds
        )
        self.heartbeat = StreamHeartbeat(
            store,
            self.slots,
            self._streams,
            timings,
            metrics,
            self._runner,
            self.executor,
            parts.faults,
        )
        self.services: list[Service] = [
            self.heartbeat,
            self._completer,
            self._completer.repeater,
            self.executor,
            self.holder,
        ]

    def shares(self) -> tuple[list[str], list[int], list[int]]:
        """Return the targets, the streams held of each, and for how many more there are slots.

        Whoever is closing has no share.
        """
        targets = [] if self._streams.is_closing else sorted(self.targets.current)[:1000]
        held = self._streams.count()
        return (
            targets,
            [held[target] for target in targets],
            [self.executor.wanted(target) for target in targets],
        )

    async def drop_leases(self) -> None:
        """Begin nothing more, and free each stream: at once, or after its present call."""
        await super().drop_leases()
        self._streams.give_up()
        await self.leave()

    def close(self) -> None:
        """Begin nothing more: free each stream after its present call."""
        self._streams.is_closing = True
        self.holder.wake.set()
        super().close()

    async def leave(self) -> None:
        """Release the streams that have no call, so that others need not wait for their expiry."""
        try:
            await within_deadline(_LEAVE_SECONDS, self.holder.leave(), "releasing streams")
        except Exception as error:  # noqa: BLE001 (a courtesy: the leases expire by themselves)
            _LOG.warning("release_failed", worker_id=self._streams.holder_id, error=str(error))

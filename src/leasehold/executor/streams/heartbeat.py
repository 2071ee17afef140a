"""The heartbeat that renews the leases of streams, and gives streams up for others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.domain.verdict import RenewVerdict
from leasehold.executor.faults import NO_FAULTS, FaultPoint, while_reaching
from leasehold.executor.streams.held import STREAMS_MAX
from leasehold.observe.logs import get_logger
from leasehold.service.deadline import within_deadline
from leasehold.service.service import Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leasehold.domain.timing import Timings
    from leasehold.executor.claim_loop import ClaimLoop
    from leasehold.executor.faults import Faults
    from leasehold.executor.runner import Runner
    from leasehold.executor.slots import Slots
    from leasehold.executor.streams.held import HeldStream, HeldStreams
    from leasehold.observe.metrics import Metrics
    from leasehold.store.executor_protocol import StreamHeartbeatStore

TARGETS_MAX = 1000  # of one call
LOCKED_SECONDS = 1.0  # until a lease that somebody had locked is renewed
_STILL_OURS = (RenewVerdict.RENEWED, RenewVerdict.LOCKED)

_LOG = get_logger(__name__)


class StreamHeartbeat:
    """The service that renews the streams, aborts calls that take too long, and gives streams up
    for instances that have none and for other streams that wait.
    """

    name = "stream heartbeat"

    def __init__(
        self,
        store: StreamHeartbeatStore,
        slots: Slots,
        streams: HeldStreams,
        timings: Callable[[], Timings],
        metrics: Metrics,
        runner: Runner,
        claims: ClaimLoop,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._slots = slots
        self._streams = streams
        self._timings = timings
        self._metrics = metrics
        self._runner = runner
        self._claims = claims
        self._faults = faults
        self._next_at = 0.0
        self._locked: set[str] = set()  # leases that others had locked when they were to be renewed

    async def step(self) -> Pause:
        """Renew every stream once. If that fails, trust runs out by itself.

        A lease that somebody else has locked for the moment is asked about again soon: often it is
        our own write of a result.
        """
        timings = self._timings()
        started_at = self._slots.clock()
        for item in self._slots.overdue():
            self._runner.abort(item)
        self._lose([one for one in self._streams.all() if one.is_over(started_at)], "trust ended")
        renewable = [one for one in self._streams.all() if self._is_renewable(one)]
        is_repeated = bool(self._locked) and started_at < self._next_at
        if is_repeated:
            renewable = [one for one in renewable if one.lease.name in self._locked]
        self._locked = set()
        for start in range(0, len(renewable), STREAMS_MAX):
            await self._renew(renewable[start : start + STREAMS_MAX], timings)
        if is_repeated:
            return self._pause()
        self._next_at = started_at + timings.heartbeat_seconds
        await self._end_turns(started_at - timings.heartbeat_seconds)
        if len(self._streams):
            for one in await self._store.surplus_streams(self._streams.holder_id):
                self._streams.keep_at_most(one.target, one.kept)
                self._claims.leave_to_others(one.target, timings.heartbeat_seconds)
        return self._pause()

    def _pause(self) -> Pause:
        left = max(0.0, self._next_at - self._slots.clock())
        return Pause(min(left, LOCKED_SECONDS) if self._locked else left)

    async def _end_turns(self, since: float) -> None:
        crowded = [target for target in self._streams.count() if self._claims.is_crowded(target)]
        if crowded:
            for one in await self._store.waiting_streams(crowded[:TARGETS_MAX], STREAMS_MAX):
                self._streams.end_turns(one.target, one.waiting, since)

    def _is_renewable(self, held: HeldStream) -> bool:
        now = self._slots.clock()
        return all(item.abort_at > now and not item.is_lost for item in held.items)

    async def _renew(self, streams: Sequence[HeldStream], timings: Timings) -> None:
        sent_at = self._slots.clock()
        seconds = timings.stream_claim_seconds, timings.stream_grace_seconds
        call = self._store.renew_streams(
            self._streams.holder_id, [one.lease for one in streams], *seconds
        )
        left = min(one.seconds_left(sent_at) for one in streams)
        renewal = within_deadline(left, call, "the stream heartbeat")
        answers = await while_reaching(FaultPoint.DURING_RENEWAL, renewal, self._faults)
        verdicts = {one.lease_name: one.verdict for one in answers}
        # A stream that was freed meanwhile is not lost: we do not hold it any more.
        held = [one for one in streams if self._streams.find(one.lease.name) is one]
        lost = [one for one in held if verdicts.get(one.lease.name) not in _STILL_OURS]
        self._lose(lost, "refused")
        self._locked |= {name for name, told in verdicts.items() if told is RenewVerdict.LOCKED}
        now = self._slots.clock()
        granted = [one for one in held if verdicts.get(one.lease.name) is RenewVerdict.RENEWED]
        late = [one for one in granted if not one.extend(now, sent_at, *seconds)]
        self._lose(late, "the answer to the renewal is late")

    def _lose(self, streams: Iterable[HeldStream], reason: str) -> None:
        for held in streams:
            items = held.items
            self._streams.forget(held)
            self._metrics.lease_lost()
            _LOG.warning(
                "lease_lost",
                worker_id=self._streams.holder_id,
                lease_name=held.lease.name,
                lease_epoch=held.lease.epoch,
                reason=reason,
            )
            self._slots.lose(items)

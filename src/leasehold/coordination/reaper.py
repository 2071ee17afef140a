"""The reaper: ends what dead workers left, and keeps the ledger's partitions ahead of time.

It runs in every instance, and a lease decides which one does the work: the holder renews it with
every run, the others ask for it as often, so that a dead reaper is replaced within three intervals.
The lease spares the database work and nothing more: two reapers at once never repair the same row.

A worker without a reaper is only allowed where another instance has one; `require_other_reaper`
asks the same lease.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from leasehold.domain.errors import DatabaseUnavailable, InvalidArgument, LeaseLost
from leasehold.domain.lease import TrustWindow
from leasehold.observe.logs import get_logger
from leasehold.service.service import AGAIN, Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.coordination.claims import Clock
    from leasehold.domain.lease import Lease
    from leasehold.domain.timing import Timings
    from leasehold.observe.metrics import Metrics
    from leasehold.store.protocol import ExecutorStore
    from leasehold.store.rows import Repaired

REAPER_LEASE = "leasehold-reaper"
BATCH = 1000
PARTITION_MONTHS_AHEAD = 3
PARTITIONS_SECONDS = 6 * 3600.0
# For this many runs a dead instance is looked for, so that a new reaper still finds it.
SILENT_INTERVALS = 10
# A lease that was only asked for to learn whether anybody holds it.
_PROBE_SECONDS = 1.0

_LOG = get_logger(__name__)


class Reaper:
    """The service that repairs. Its lease is an argument of the work, not a belief."""

    name = "reaper"

    def __init__(
        self,
        store: ExecutorStore,
        worker_id: str,
        timings: Callable[[], Timings],
        metrics: Metrics,
        clock: Clock = time.monotonic,
    ) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._worker_id = worker_id
        self._timings = timings
        self._metrics = metrics
        self._clock = clock
        self._lease: Lease | None = None
        self._partitions_due_at = clock()
        self._dead: dict[str, float] = {}  # reported, and until when not to report them again

    async def step(self) -> Pause:
        """Repair if the reaper's lease is ours or free; at once again while there is more."""
        pause = Pause(self._timings().reaper_seconds)
        held = self._lease
        self._lease = None  # until the database says again that it is ours
        asked_at = self._clock()
        lease = await self._renewed(held) if held else await self._acquired()
        if lease is None:
            return pause
        self._lease = lease
        trust = TrustWindow.counted_from(asked_at, self._lease_seconds())
        is_more = await self._repair(trust)
        await self._make_partitions()
        return AGAIN if is_more else pause

    async def release(self) -> None:
        """Let another instance reap at once."""
        held, self._lease = self._lease, None
        if held is not None:
            with suppress(DatabaseUnavailable):
                await self._store.release_lease(held)

    def _lease_seconds(self) -> float:
        return max(_PROBE_SECONDS, 2 * self._timings().reaper_seconds)

    async def _renewed(self, held: Lease) -> Lease | None:
        try:
            await self._store.renew_lease(held, self._lease_seconds())
        except LeaseLost:
            self._metrics.lease_lost()
            _LOG.warning("lease_lost", worker_id=self._worker_id, lease_name=held.name)
            return None
        return held

    async def _acquired(self) -> Lease | None:
        answer = await self._store.acquire_lease(
            REAPER_LEASE, self._worker_id, self._lease_seconds()
        )
        if not answer.is_ours:
            return None
        _LOG.info("reaping", worker_id=self._worker_id, lease_epoch=answer.lease.epoch)
        return answer.lease

    async def _repair(self, trust: TrustWindow) -> bool:
        if trust.is_over(self._clock()):
            return False
        repaired = await self._store.repair_expired_leases(BATCH, self._worker_id)
        missed = await self._store.repair_missed_deadlines(BATCH, self._worker_id)
        self._metrics.reaper_run(len(repaired), [one.stale_seconds for one in repaired])
        self._report(repaired)
        await self._look_for_the_dead()
        for one in missed:
            self._tell("deadline_missed", intent_id=str(one.intent_id), attempt_no=one.attempt_no)
        return len(repaired) == BATCH or len(missed) == BATCH

    def _report(self, repaired: Sequence[Repaired]) -> None:
        """No worker dies in silence: say whose work was recovered, and what became of it."""
        for holder in sorted({one.replaced_holder for one in repaired}):
            self._report_death(holder)
        for one in repaired:
            self._metrics.attempts(one.target, one.state, 1)
            self._tell(
                "recovered",
                intent_id=str(one.intent_id),
                attempt_no=one.attempt_no,
                state=str(one.state),
                dead_worker=one.replaced_holder,
                stale_seconds=round(one.stale_seconds, 3),
            )

    async def _look_for_the_dead(self) -> None:
        """Also of those whose claims were taken over by a claim, or that had none."""
        within_seconds = SILENT_INTERVALS * self._timings().reaper_seconds
        for instance_id in await self._store.read_silent_instances(within_seconds):
            self._report_death(instance_id)

    def _report_death(self, dead_worker: str) -> None:
        now = self._clock()
        self._dead = {name: until for name, until in self._dead.items() if until > now}
        if dead_worker not in self._dead:
            self._metrics.worker_death(dead_worker)
            _LOG.warning("worker_fell_silent", worker_id=self._worker_id, dead_worker=dead_worker)
        self._dead[dead_worker] = now + 2 * SILENT_INTERVALS * self._timings().reaper_seconds

    def _tell(self, event: str, **fields: object) -> None:
        _LOG.info(event, worker_id=self._worker_id, **fields)

    async def _make_partitions(self) -> None:
        if self._clock() < self._partitions_due_at:
            return
        made = await self._store.create_ledger_partitions(PARTITION_MONTHS_AHEAD)
        self._partitions_due_at = self._clock() + PARTITIONS_SECONDS
        if made:
            self._tell("partitions_made", partitions=made)


class ReaperWatch:
    """For a worker that does not reap itself: says so as loudly as it can when nobody does."""

    name = "reaper watch"

    def __init__(
        self, store: ExecutorStore, worker_id: str, timings: Callable[[], Timings]
    ) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._worker_id = worker_id
        self._timings = timings

    async def step(self) -> Pause:
        """Look whether somebody reaps."""
        if not await is_reaped(self._store, self._worker_id):
            _LOG.error(
                "nothing_reaps", worker_id=self._worker_id, advice="start an instance with a reaper"
            )
        return Pause(self._timings().reaper_seconds)


async def is_reaped(store: ExecutorStore, worker_id: str) -> bool:
    """Learn whether an instance reaps: then it holds the lease, and we do not get it."""
    answer = await store.acquire_lease(REAPER_LEASE, worker_id, _PROBE_SECONDS)
    if answer.is_ours:
        await store.release_lease(answer.lease)
    return not answer.is_ours


async def require_other_reaper(store: ExecutorStore, worker_id: str) -> None:
    """Refuse to work where nothing would recover what this worker leaves when it dies."""
    if not await is_reaped(store, worker_id):
        raise InvalidArgument(
            "--no-reaper is refused: no running instance holds the lease "
            f"{REAPER_LEASE!r}, so nothing would recover what a dead worker leaves; "
            "start an instance with a reaper first"
        )

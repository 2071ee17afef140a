"""The reaper: ends the expired claims of dead workers, creates the ledger's partitions in time, and
deletes streams that have been empty for long.

Every instance has a reaper, and the lease `leasehold-reaper` decides which one works. Its holder
renews the lease with every run; the others ask for it just as often, so a dead reaper is replaced
within three intervals. The lease only saves the database work: two reapers at once never repair
the same row.

An instance may run without a reaper only if another instance has one. `require_other_reaper` finds
out by asking for the same lease.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from leasehold.domain.errors import DatabaseUnavailable, InvalidArgument, LeaseLost
from leasehold.domain.lease import TrustWindow, trust_clock
from leasehold.observe.logs import get_logger
from leasehold.observe.traces import parse_traceparent
from leasehold.service.service import AGAIN, Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.domain.lease import Clock, Lease
    from leasehold.domain.timing import Timings
    from leasehold.observe.metrics import Metrics
    from leasehold.store.executor_protocol import LeaseStore, ReaperStore
    from leasehold.store.rows import MissedDeadline, Repaired

REAPER_LEASE = "leasehold-reaper"
BATCH = 1000
PARTITION_MONTHS_AHEAD = 3
MOVED_ROWS = 5_000  # of the ledger's default partition, in one step of a fraction of a second
# Repair takes at most this share of the time, unless it would come more rarely than once per lease.
# It walks over dead rows, of which there are millions if a transaction stays open for long.
REPAIR_SHARE = 0.02
PARTITIONS_SECONDS = 6 * 3600.0
# Empty streams are looked for in a walk over all streams, so many with each run; then it rests.
PRUNE_BATCH = 5000
PRUNE_SECONDS = 300.0
# A dead instance stays visible for this many runs, so that a newly elected reaper still sees it.
SILENT_INTERVALS = 10
# The duration of a lease that is only acquired to find out whether it is free.
_PROBE_SECONDS = 1.0

_LOG = get_logger(__name__)


class Reaper:
    """The service that repairs what dead workers left."""

    name = "reaper"

    def __init__(
        self,
        store: ReaperStore,
        worker_id: str,
        timings: Callable[[], Timings],
        metrics: Metrics,
        clock: Clock = trust_clock,
    ) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._worker_id = worker_id
        self._timings = timings
        self._metrics = metrics
        self._clock = clock
        self._lease: Lease | None = None
        self._partitions_due_at = clock()
        self._repair_due_at = clock()
        self._full_due_at = clock()
        self._prune_due_at = clock()
        self._pruned_to: str | None = None
        # When a dead worker was reported, and until when it is not reported again.
        self._reported: dict[str, tuple[float, float]] = {}

    async def step(self) -> Pause:
        """Repair one batch if we hold the reaper's lease; again at once if there is more."""
        pause = Pause(self._timings().reaper_seconds)
        held = self._lease
        self._lease = None  # until the database confirms it
        sent_at = self._clock()
        lease = await self._renew(held) if held else await self._acquire()
        if lease is None:
            return pause
        self._lease = lease
        started_at = self._clock()
        if started_at < self._repair_due_at:
            # We keep the lease meanwhile, or another instance would repair now.
            return Pause(min(pause.seconds, self._repair_due_at - started_at))
        trust = TrustWindow.counted_from(sent_at, self._lease_seconds())
        is_more = await self._repair(trust)
        ended_at = self._clock()
        await self._create_partitions()
        if is_more:
            return AGAIN
        await self._prune_streams()
        took_seconds = ended_at - started_at
        self._repair_due_at = ended_at + min(
            took_seconds / REPAIR_SHARE, self._timings().item_lease_seconds
        )
        return pause

    async def release(self) -> None:
        """Release the lease, so that another instance can reap at once."""
        held, self._lease = self._lease, None
        if held is not None:
            with suppress(DatabaseUnavailable):
                await self._store.release_lease(held)

    def _lease_seconds(self) -> float:
        return max(_PROBE_SECONDS, 2 * self._timings().reaper_seconds)

    async def _renew(self, held: Lease) -> Lease | None:
        try:
            await self._store.renew_lease(held, self._lease_seconds())
        except LeaseLost:
            self._metrics.lease_lost()
            _LOG.warning("lease_lost", worker_id=self._worker_id, lease_name=held.name)
            return None
        return held

    async def _acquire(self) -> Lease | None:
        answer = await self._store.acquire_lease(
            REAPER_LEASE, self._worker_id, self._lease_seconds()
        )
        if not answer.is_ours:
            return None
        _LOG.info("reaper_elected", worker_id=self._worker_id, lease_epoch=answer.lease.epoch)
        return answer.lease

    async def _repair(self, trust: TrustWindow) -> bool:
        if trust.is_over(self._clock()):
            return False
        now = self._clock()
        is_full = now >= self._full_due_at
        if is_full:
            # Once per lease all pending rows are read; in between, only the heads of the queues.
            # Before it is known to work: if it takes too long, the heads are repaired next time.
            self._full_due_at = now + self._timings().item_lease_seconds
        repaired = await self._store.repair_expired_leases(BATCH, self._worker_id, is_full=is_full)
        if is_full and len(repaired) == BATCH:
            self._full_due_at = now
        missed = await self._store.repair_missed_deadlines(BATCH, self._worker_id)
        self._metrics.reaper_run(len(repaired), [one.stale_seconds for one in repaired])
        await self._forget_returned()
        self._report_repaired(repaired)
        await self._report_silent_instances()
        for one in missed:
            if not self._is_guard_hit(one):
                self._log_intent("deadline_missed", one)
        return len(repaired) == BATCH or len(missed) == BATCH

    def _report_repaired(self, repaired: Sequence[Repaired]) -> None:
        for holder in sorted({one.replaced_holder for one in repaired}):
            self._report_death(holder)
        for one in repaired:
            if self._is_guard_hit(one) or one.state is None:
                continue
            self._metrics.attempts(one.target, one.state, 1)
            self._log_intent(
                "intent_recovered",
                one,
                state=str(one.state),
                dead_worker=one.replaced_holder,
                stale_seconds=round(one.stale_seconds, 3),
            )

    def _is_guard_hit(self, row: Repaired | MissedDeadline) -> bool:
        """Report an intent that only the unique index kept from ending twice."""
        if row.attempt_no is not None:
            return False
        self._metrics.terminal_guard_hit()
        self._log_intent("terminal_guard_hit", row, level=logging.ERROR)
        return True

    async def _forget_returned(self) -> None:
        """Find workers that were reported as dead and reported since then: they were paused."""
        now = self._clock()
        silent_for = {worker: now - at for worker, (at, _) in self._reported.items()}
        if silent_for:
            for worker in await self._store.read_returned_instances(silent_for):
                del self._reported[worker]
                _LOG.warning("worker_returned", worker_id=self._worker_id, returned_worker=worker)

    async def _report_silent_instances(self) -> None:
        """Report the dead that left nothing to repair, or whose claims another worker replaced."""
        within_seconds = SILENT_INTERVALS * self._timings().reaper_seconds
        for instance_id in await self._store.read_silent_instances(within_seconds):
            self._report_death(instance_id)

    def _report_death(self, dead_worker: str) -> None:
        """Count and log the death of a worker once, however often it is found."""
        now = self._clock()
        self._reported = {
            name: (at, til) for name, (at, til) in self._reported.items() if til > now
        }
        reported_at, _ = self._reported.get(dead_worker, (now, now))
        if dead_worker not in self._reported:
            self._metrics.worker_death(dead_worker)
            _LOG.warning("worker_died", worker_id=self._worker_id, dead_worker=dead_worker)
        quiet_seconds = 2 * SILENT_INTERVALS * self._timings().reaper_seconds
        self._reported[dead_worker] = reported_at, now + quiet_seconds

    def _log_intent(
        self,
        event: str,
        row: Repaired | MissedDeadline,
        level: int = logging.INFO,
        **fields: object,
    ) -> None:
        trace = parse_traceparent(row.trace_context)
        _LOG.log(
            level,
            event,
            intent_id=str(row.intent_id),
            attempt_no=row.attempt_no,
            worker_id=self._worker_id,
            trace_id=trace.trace_id if trace else None,
            **fields,
        )

    async def _create_partitions(self) -> None:
        if self._clock() < self._partitions_due_at:
            return
        if not await self._move_ledger_rows():
            return
        created = await self._store.create_ledger_partitions(PARTITION_MONTHS_AHEAD)
        self._partitions_due_at = self._clock() + PARTITIONS_SECONDS
        if created:
            _LOG.info("partitions_created", worker_id=self._worker_id, partitions=created)

    async def _move_ledger_rows(self) -> bool:
        """Empty the ledger's default partition, for half the time of a pass; say if it is empty."""
        ends_at = self._clock() + self._timings().reaper_seconds / 2
        while True:
            move = await self._store.move_ledger_rows(MOVED_ROWS)
            if move.partitions:
                _LOG.warning(
                    "ledger_rows_moved", worker_id=self._worker_id, partitions=move.partitions
                )
            if move.is_complete or self._clock() >= ends_at:
                return move.is_complete

    async def _prune_streams(self) -> None:
        started_at = self._clock()
        if started_at < self._prune_due_at:
            return
        step = await self._store.prune_streams(
            self._timings().stream_linger_seconds, PRUNE_BATCH, self._pruned_to
        )
        self._pruned_to = step.walked_to
        ended_at = self._clock()
        pause_seconds = (ended_at - started_at) / REPAIR_SHARE
        if step.walked_to is None:
            pause_seconds = max(pause_seconds, PRUNE_SECONDS)
        self._prune_due_at = ended_at + pause_seconds
        if step.pruned:
            _LOG.info("streams_pruned", worker_id=self._worker_id, streams=step.pruned)


class ReaperWatch:
    """The service of an instance without a reaper: logs an error while no instance reaps."""

    name = "reaper watch"

    def __init__(self, store: LeaseStore, worker_id: str, timings: Callable[[], Timings]) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._worker_id = worker_id
        self._timings = timings

    async def step(self) -> Pause:
        """Check once."""
        if not await is_reaped(self._store, self._worker_id):
            _LOG.error(
                "reaper_missing",
                worker_id=self._worker_id,
                advice="start an instance with a reaper",
            )
        return Pause(self._timings().reaper_seconds)


async def is_reaped(store: LeaseStore, worker_id: str) -> bool:
    """Whether another instance reaps: then it holds the lease, and we cannot acquire it."""
    answer = await store.acquire_lease(REAPER_LEASE, worker_id, _PROBE_SECONDS)
    if answer.is_ours:
        await store.release_lease(answer.lease)
    return not answer.is_ours


async def require_other_reaper(store: LeaseStore, worker_id: str) -> None:
    """Refuse to start if nobody would recover the work of this instance after its death."""
    if not await is_reaped(store, worker_id):
        raise InvalidArgument(
            f"--no-reaper is refused: no running instance holds the lease {REAPER_LEASE!r}, so "
            "nobody would recover the work of a dead worker; start an instance with a reaper first"
        )

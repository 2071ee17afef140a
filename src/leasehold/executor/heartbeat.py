"""The heartbeat extends the leases of all claims in flight. If it fails, all of them are lost."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from leasehold.domain.lease import TrustWindow
from leasehold.domain.verdict import RenewVerdict
from leasehold.executor.item import RECORDING
from leasehold.observe.logs import get_logger
from leasehold.service.deadline import within_deadline
from leasehold.service.service import Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.domain.timing import Timings
    from leasehold.executor.item import Item
    from leasehold.executor.slots import Slots
    from leasehold.observe.metrics import Metrics
    from leasehold.store.executor_protocol import ClaimHeartbeatStore
    from leasehold.store.rows import RenewedClaim

CLAIMS_MAX = 10_000  # in one call of renew_outbox_leases

_LOG = get_logger(__name__)


class Heartbeat:
    """The service that renews claims, and ends the trust in those that it could not renew."""

    name = "heartbeat"

    def __init__(
        self,
        store: ClaimHeartbeatStore,
        slots: Slots,
        timings: Callable[[], Timings],
        metrics: Metrics,
        abort: Callable[[Item], None],
    ) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._slots = slots
        self._timings = timings
        self._metrics = metrics
        self._abort = abort
        self._next_at: float | None = None

    async def step(self) -> Pause:
        """Renew every claim once. Raises if that fails, after all claims are lost."""
        started_at = self._slots.clock()
        heartbeat_seconds = self._timings().heartbeat_seconds
        if self._next_at is not None:
            self._metrics.heartbeat_lag(max(0.0, started_at - self._next_at))
        self._next_at = started_at + heartbeat_seconds
        self._report_lost(self._slots.lose_untrusted(), "trust ended before the renewal")
        for item in self._slots.overdue():
            self._abort(item)
        by_lease: defaultdict[float, list[Item]] = defaultdict(list)
        for item in self._slots.renewable():
            by_lease[item.lease_seconds].append(item)
        for lease_seconds, items in by_lease.items():
            for start in range(0, len(items), CLAIMS_MAX):
                await self._renew(items[start : start + CLAIMS_MAX], lease_seconds)
        return Pause(max(0.0, self._next_at - self._slots.clock()))

    async def _renew(self, items: Sequence[Item], lease_seconds: float) -> None:
        sent_at = self._slots.clock()
        is_answered = False
        try:
            renewals = await self._ask(items, lease_seconds, sent_at)
            is_answered = True
        finally:
            # Also when cancelled: without an answer, nobody can say which claims are still ours.
            if not is_answered:
                lost = self._slots.lose(self._slots.all())
                self._report_lost(lost, "the heartbeat failed")
        trust = TrustWindow.counted_from(sent_at, lease_seconds)
        verdicts = {one.intent_id: one.verdict for one in renewals}
        # An answer that came too late revives no claim: its result may have been discarded already.
        now = self._slots.clock()
        late = self._slots.lose(item for item in items if item.trust.is_over(now))
        self._report_lost(late, "the answer to the renewal is late")
        for item in items:
            verdict = verdicts.get(item.claimed.intent_id)
            if item.is_lost or verdict is RenewVerdict.LOCKED:  # the latter keeps its trust
                continue
            if verdict is RenewVerdict.RENEWED:
                item.trust = trust
            elif item.state < RECORDING:
                # If its result is being recorded, the claim may be gone because the result arrived.
                self._slots.lose([item])
                self._metrics.lease_lost()
                _LOG.warning("lease_lost", reason="the database refused it", **item.log_fields())

    async def _ask(
        self, items: Sequence[Item], lease_seconds: float, sent_at: float
    ) -> list[RenewedClaim]:
        """Wait for the answer no longer than we trust our leases."""
        trust_left = min(item.trust.seconds_left(sent_at) for item in items)
        call = self._store.renew_outbox_leases(
            self._slots.worker_id, [item.claimed.claim for item in items], lease_seconds
        )
        return await within_deadline(trust_left, call, "the heartbeat")

    def _report_lost(self, count: int, reason: str) -> None:
        if count:
            self._metrics.lease_lost(count)
            _LOG.warning("lease_lost", worker_id=self._slots.worker_id, claims=count, reason=reason)

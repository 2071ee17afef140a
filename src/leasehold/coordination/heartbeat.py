"""The heartbeat: one call renews all that is in flight; when it fails, everything is lost."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from leasehold.domain.lease import TrustWindow
from leasehold.domain.verdict import RenewVerdict
from leasehold.observe.logs import get_logger
from leasehold.service.deadline import within_deadline
from leasehold.service.service import Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.coordination.claims import Claims, Held
    from leasehold.domain.timing import Timings
    from leasehold.observe.metrics import Metrics
    from leasehold.store.protocol import ExecutorStore
    from leasehold.store.rows import RenewedClaim

_LOG = get_logger(__name__)


class Heartbeat:
    """The service that keeps claims alive, and that says when they are not."""

    name = "renewal"

    def __init__(
        self,
        store: ExecutorStore,
        claims: Claims,
        timings: Callable[[], Timings],
        metrics: Metrics,
        abort: Callable[[Held], None],
    ) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._claims = claims
        self._timings = timings
        self._metrics = metrics
        self._abort = abort
        self._next_at: float | None = None

    async def step(self) -> Pause:
        """Renew everything once; raises after having lost everything."""
        began_at = self._claims.clock()
        heartbeat_seconds = self._timings().heartbeat_seconds
        if self._next_at is not None:
            self._metrics.heartbeat_lag(max(0.0, began_at - self._next_at))
        self._next_at = began_at + heartbeat_seconds
        self._lost(self._claims.lose_untrusted(), "trust ended before it was renewed")
        for held in self._claims.overdue():
            self._abort(held)
        by_lease: defaultdict[float, list[Held]] = defaultdict(list)
        for held in self._claims.renewable():
            by_lease[held.lease_seconds].append(held)
        for lease_seconds, group in by_lease.items():
            await self._renew(group, lease_seconds)
        return Pause(max(0.0, self._next_at - self._claims.clock()))

    async def _renew(self, group: Sequence[Held], lease_seconds: float) -> None:
        asked_at = self._claims.clock()
        is_answered = False
        try:
            answers = await self._ask(group, lease_seconds, asked_at)
            is_answered = True
        finally:
            # Whatever went wrong, nobody can say any more what is ours.
            if not is_answered:
                lost = self._claims.lose(self._claims.all())
                self._lost(lost, "the heartbeat failed: everything is given up")
        trust = TrustWindow.counted_from(asked_at, lease_seconds)
        renewed = {one.lease_token for one in answers if one.verdict is RenewVerdict.RENEWED}
        for held in group:
            if held.claimed.lease_token in renewed:
                held.trust = trust
            elif held.stage != "recording":
                # A claim whose result is on its way may be gone because the result has arrived.
                self._lost(self._claims.lose([held]), "the database says so", held)

    async def _ask(
        self, group: Sequence[Held], lease_seconds: float, asked_at: float
    ) -> list[RenewedClaim]:
        """Wait for the answer no longer than we trust our leases."""
        trust_left = min(held.trust.seconds_left(asked_at) for held in group)
        call = self._store.renew_outbox_leases(
            self._claims.worker_id, [held.claimed.claim for held in group], lease_seconds
        )
        return await within_deadline(trust_left, call, "the heartbeat")

    def _lost(self, count: int, why: str, held: Held | None = None) -> None:
        if not count:
            return
        self._metrics.lease_lost(count)
        of_work = {"intent_id": str(held.claimed.intent_id)} if held else {}
        _LOG.warning(
            "lease_lost", worker_id=self._claims.worker_id, claims=count, why=why, **of_work
        )

"""The mark "about to call", which must be durable before some calls: with it, or no call.

A call that was begun and is not made after all is given back, and the database takes its mark back
with it. Otherwise the next holder would put it in doubt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.domain.errors import is_rolled_back
from leasehold.domain.verdict import BeginVerdict
from leasehold.executor.faults import FaultPoint
from leasehold.executor.fences import by_fence
from leasehold.executor.item import RECORDING
from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.executor.completer import Completer
    from leasehold.executor.faults import Faults
    from leasehold.executor.fences import Fence
    from leasehold.executor.item import Item
    from leasehold.executor.slots import Slots
    from leasehold.observe.metrics import Metrics

# When the call of a row that was locked begins again.
_LOCKED_SECONDS = 1.0

_LOG = get_logger(__name__)


class Begins:
    """Marks calls as begun, and gives back those that are not made."""

    def __init__(
        self,
        slots: Slots,
        completer: Completer,
        metrics: Metrics,
        *,
        on_error: Callable[[Exception], None],
        faults: Faults,
    ) -> None:
        self._slots = slots
        self._completer = completer
        self._metrics = metrics
        self._on_error = on_error
        self._faults = faults

    async def begin(self, items: Sequence[Item]) -> set[Item]:
        """Make "about to call" durable. Returns the items whose call may be made."""
        now = self._slots.clock()
        allowed: list[Item] = []
        for item in items:
            if item.trust.may_start(now):
                allowed.append(item)
            else:
                self.skip(item)
        groups = by_fence(allowed).items()
        return {item for fence, group in groups for item in await self._begin_under(fence, group)}

    def skip(self, item: Item) -> None:
        """Make no call now. Give the item back while its lease is trusted, else drop it."""
        now = self._slots.clock()
        is_late = item.trust.may_start_later(now)
        why = "the renewal is late" if is_late else "the lease is not trusted for a new call"
        _LOG.warning("call_skipped", reason=why, **item.log_fields())
        if item.trust.is_over(now):
            self._slots.let_go([item])
        else:
            self._completer.give_back(item, 0.0)

    async def _begin_under(self, fence: Fence, items: Sequence[Item]) -> list[Item]:
        for item in items:
            item.is_begun = True
        try:
            verdicts = await fence.begin(items)
        except Exception as error:  # noqa: BLE001 (after any error, no call may be made)
            for item in items:
                item.is_begun = not is_rolled_back(error)
                _LOG.warning("begin_failed", error=str(error), **item.log_fields())
            self._give_back(items)
            self._on_error(error)
            return []
        await self._faults.reach(FaultPoint.AFTER_BEGIN)
        begun: list[Item] = []
        for item in items:
            verdict = verdicts[item.claimed.intent_id]
            if verdict is BeginVerdict.BEGUN:
                begun.append(item)
            else:
                item.is_begun = False
                self._refuse(fence, item, verdict)
        return begun

    def _refuse(self, fence: Fence, item: Item, verdict: BeginVerdict) -> None:
        _LOG.warning("begin_refused", verdict=str(verdict), **item.log_fields())
        if verdict is BeginVerdict.LEASE_LOST:
            self._metrics.lease_lost()
        if verdict is BeginVerdict.LOCKED:
            self._give_back([item], _LOCKED_SECONDS)
            return
        is_held = verdict not in (BeginVerdict.LEASE_LOST, BeginVerdict.ALREADY_BEGUN)
        if fence.keeps_slot and is_held:  # the head was paused or has ended: free its stream
            self._give_back([item])
        else:
            self._slots.let_go([item])

    def _give_back(self, items: Sequence[Item], delay_seconds: float = 0.0) -> None:
        """Give back what was not given back meanwhile, at a shutdown that could not wait."""
        for item in items:
            if item.state < RECORDING:
                self._completer.give_back(item, delay_seconds)

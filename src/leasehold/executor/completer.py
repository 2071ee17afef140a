"""The completer writes results to the ledger: many in one call, within a few milliseconds.

A write is repeated only if the database has certainly rolled it back, and only while the lease is
trusted (`repeater.py`). If the database refuses a result, that is decided. If it does not answer,
nobody knows what it did: the results are dropped, and the reaper ends the claims. If it refuses a
whole batch because of one result, and writes nothing, the results are sent one by one.
To give back an item for which nothing was sent is repeated after any failure while its lease is
trusted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from leasehold.coordination.item import RECORDING
from leasehold.domain.errors import (
    DatabaseUnavailable,
    LeaseLost,
    TerminalGuardHit,
    is_rolled_back,
)
from leasehold.domain.intent import AttemptState
from leasehold.domain.outcome import STALE_REASON, Deferred, Rejected, Result, Retryable, Unknown
from leasehold.domain.verdict import RecordVerdict
from leasehold.executor.faults import NO_FAULTS, FaultPoint
from leasehold.executor.fences import by_fence
from leasehold.executor.log_budget import LogBudget
from leasehold.executor.repeater import Repeater
from leasehold.observe.logs import get_logger
from leasehold.service.service import AGAIN, Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from leasehold.coordination.item import Fence, Item
    from leasehold.coordination.slots import Slots
    from leasehold.domain.outcome import Outcome
    from leasehold.executor.faults import Faults
    from leasehold.executor.observer import ObserverThread
    from leasehold.executor.repeater import Write
    from leasehold.observe.metrics import Metrics
    from leasehold.store.rows import Recorded

BATCH_MAX = 500  # so that the next calls are made while the rest is written
# How long the first result waits for others, so that calls that end together share one write.
LINGER_SECONDS = 0.001
# The first lines say what is wrong with the target; the breaker keeps the rest few.
_DEFERRALS_LOGGED = 20
_IDLE = Pause(60.0)
_DISPATCHED = AttemptState.DISPATCHED  # looked up once: on this enum that is a call

_LOG = get_logger(__name__)
_logs_level = _LOG.isEnabledFor


class Completer:
    """The service that records results and gives items back."""

    name = "completer"

    def __init__(
        self,
        slots: Slots,
        metrics: Metrics,
        *,
        trouble: Callable[[Exception], None],
        faults: Faults = NO_FAULTS,
        observer: ObserverThread | None = None,
    ) -> None:
        self.wake = asyncio.Event()
        self.repeater = Repeater(slots.clock)
        self._slots = slots
        self._metrics = metrics
        self._trouble = trouble
        self._faults = faults
        self._observer = observer
        self._failures = LogBudget(_LOG, "intent_failed")
        self._stale_tokens = LogBudget(_LOG, "stale_token_refused")
        self._deferrals = LogBudget(_LOG, "intent_deferred", lines_max=_DEFERRALS_LOGGED)
        self._finished: list[Item] = []
        self._given_back: list[tuple[Item, float]] = []
        self._first_at = 0.0

    def complete(self, item: Item, outcome: Outcome, elapsed_seconds: float | None = None) -> None:
        """Have a result recorded. The item's slot is free at once, unless its fence keeps it."""
        if not self._finished:
            self._first_at = self._slots.clock()
        item.state = RECORDING
        if not item.fence.keeps_slot:
            self._slots.end_call(item)
        item.outcome = outcome
        item.is_unsettled = True
        item.elapsed_seconds = elapsed_seconds
        self._finished.append(item)
        self.wake.set()

    def give_back(self, item: Item, delay_seconds: float) -> None:
        """Return an item without an attempt: due again after the delay, nothing on the ledger."""
        item.state = RECORDING
        if not item.fence.keeps_slot:
            self._slots.end_call(item)
        item.given_back_until = self._slots.clock() + delay_seconds
        self._given_back.append((item, delay_seconds))
        self.wake.set()

    def put_back(self, item: Item) -> None:
        """Return an item of a batch that was not sent, together with the results of the others."""
        item.state = RECORDING
        self._finished.append(item)
        self.wake.set()

    async def step(self) -> Pause:
        """Write the results that are there, unless more are about to come."""
        if self._finished:
            waited = self._slots.clock() - self._first_at
            is_more_to_come = len(self._finished) < len(self._slots)
            if is_more_to_come and waited < LINGER_SECONDS and len(self._finished) < BATCH_MAX:
                return Pause(LINGER_SECONDS - waited)
            await self._write(self._next_batch())
        # After the results: what a stream gives back is written together with its results.
        if self._given_back:
            await self._release()
        return AGAIN if self._finished or self._given_back else _IDLE

    def _next_batch(self) -> Sequence[Item]:
        """Take the next results to write. Those of one stream stay together.

        The stream goes on after the first write.
        """
        end, finished = BATCH_MAX, self._finished
        while (
            end < len(finished)
            and finished[end].fence.keeps_slot
            and finished[end].trust is finished[end - 1].trust
        ):
            end += 1
        self._finished = finished[end:]
        return finished[:end]

    async def _write(self, batch: Sequence[Item]) -> None:
        """Write the results of each fence. A fence that fails does not hold up the others."""
        writes = ((partial(self._settle, fence), items) for fence, items in by_fence(batch).items())
        await self._try_each(writes)

    async def _try_each(self, writes: Iterable[tuple[Write, Sequence[Item]]]) -> None:
        """Try each write. Repeat later what was rolled back; raise the first other error."""
        failures: list[Exception] = []
        for write, items in writes:
            try:
                await write(items)
            except Exception as error:  # noqa: BLE001 (raised below, after the other writes)
                if is_rolled_back(error):
                    self.repeater.add(write, items, error)
                else:
                    failures.append(error)
        if failures:
            raise failures[0]

    async def _settle(self, fence: Fence, items: Sequence[Item]) -> None:
        """Write results and let their items go. They stay if the write was rolled back."""
        try:
            await self._write_under(fence, items)
        except Exception as error:
            if not is_rolled_back(error):
                self._trouble(error)
                self._slots.let_go(items)
            raise
        self._slots.let_go(items)

    async def _write_under(self, fence: Fence, items: Sequence[Item]) -> None:
        now = self._slots.clock()
        trusted: list[Item] = []
        for item in items:
            if item.trust.is_over(now):
                self._discard(item)
            else:
                trusted.append(item)
        if not trusted:
            return
        try:
            await self._record(fence, trusted)
        except LeaseLost as error:
            for item in trusted:
                self._drop(item, RecordVerdict.LEASE_LOST)
            self._trouble(error)

    async def _record(self, fence: Fence, items: Sequence[Item]) -> None:
        items = [item for item in items if item.outcome is not None]  # else: put back
        if not items:
            return
        results = [
            Result(
                item.claimed.intent_id,
                item.outcome,
                item.claimed.lease_token,
                item.elapsed_seconds,
                item.attempt_no,
            )
            for item in items
            if item.outcome is not None
        ]
        try:
            recorded = await self._send(fence, results)
        except Exception as error:
            if not fence.is_about_one_result(error):
                raise
            await self._record_one_by_one(fence, items, error)
            return
        for item in items:
            item.is_unsettled = False
        await self._faults.reach(FaultPoint.AFTER_COMPLETE)
        self._report(items, recorded)

    async def _send(self, fence: Fence, results: Sequence[Result]) -> list[Recorded]:
        if self._faults is NO_FAULTS:
            # Without a task: it would run only after all calls that are about to begin, and the
            # database would sit idle meanwhile.
            return await fence.record(results)
        recorded, _ = await asyncio.gather(
            fence.record(results), self._faults.reach(FaultPoint.DURING_COMPLETE)
        )
        return recorded

    async def _record_one_by_one(
        self, fence: Fence, items: Sequence[Item], error: Exception
    ) -> None:
        """Nothing was written: do not let the other results suffer for the one that is refused."""
        if len(items) > 1:
            for item in items:
                await self._record(fence, [item])
                self._slots.let_go([item])  # a later one may be rolled back
            return
        event = "result_refused"
        if isinstance(error, TerminalGuardHit):
            event = "terminal_guard_hit"
            self._metrics.terminal_guard_hit()
        self._log(logging.ERROR, event, items[0], error=str(error))
        # Else a leader would read the row again and make the call again. Claims and streams expire.
        self._trouble(error)

    def _report(self, items: Sequence[Item], recorded: Sequence[Recorded]) -> None:
        """Count and log what was recorded. What the answer leaves out became DISPATCHED."""
        answers = {answer.intent_id.int: answer for answer in recorded}
        by_state: defaultdict[AttemptState, list[Item]] = defaultdict(list)
        if answers:
            for item in items:
                answer = answers.get(item.intent_no)
                state = _DISPATCHED if answer is None else self._recorded_state(item, answer)
                if state is not None:
                    by_state[state].append(item)
        else:
            by_state[_DISPATCHED] += items
        self._log_failures(by_state.get(AttemptState.FAILED, ()), answers)
        for state, group in by_state.items():
            self._count(state, group)
            if self._observer is None and not _logs_level(logging.DEBUG):
                continue
            for item in group:
                answer = answers.get(item.intent_no)
                reason = answer.reason if answer else None
                self._log(logging.DEBUG, "result_recorded", item, state=state, reason=reason)
                if self._observer is not None and state.is_terminal:
                    self._observer.terminal(item, state, reason)

    def _log_failures(self, items: Sequence[Item], answers: Mapping[int, Recorded]) -> None:
        for item in items:
            # A rejection has no reason of ours, but the gateway's code.
            code = item.outcome.code if isinstance(item.outcome, Rejected) else None
            reason = answers[item.intent_no].reason
            self._failures.warn(reason=reason, code=code, **item.log_fields())

    def _count(self, state: AttemptState, items: Sequence[Item]) -> None:
        now = self._slots.clock()
        by_target: defaultdict[str, list[Item]] = defaultdict(list)
        for item in items:
            by_target[item.target].append(item)
        for target, group in by_target.items():
            self._metrics.attempts(target, state, len(group))
            if state.is_terminal:
                # Each span is measured on one clock: the database's until the claim, then ours.
                lifetimes = [
                    (item.claimed.claimed_at - item.claimed.created_at).total_seconds()
                    + (now - item.taken_at)
                    for item in group
                ]
                self._metrics.time_to_terminal(target, *lifetimes)

    def _recorded_state(self, item: Item, answer: Recorded) -> AttemptState | None:
        """Return what the ledger says of a result now; None if nothing was written there."""
        if isinstance(item.outcome, Deferred) and answer.verdict is RecordVerdict.APPLIED:
            self._report_deferred(item, item.outcome)
            return answer.state  # of an intent that had to be confirmed by now, else None
        if answer.verdict is not RecordVerdict.APPLIED or answer.state is None:
            self._drop(item, answer.verdict)
            return None
        outcome = item.outcome
        if isinstance(outcome, Rejected | Retryable | Unknown) and outcome.reason == STALE_REASON:
            # The database has just confirmed our lease, so the gateway saw a token that it forgot.
            self._metrics.stale_token_refused()
            self._stale_tokens.warn(code=outcome.code, **item.log_fields())
        if item.asked_under is not None and (answer.attempt_no or 0) < item.claimed.attempt_no:
            return None  # a lookup without news
        if answer.is_held:
            self._log(logging.WARNING, "intent_held", item, state=answer.state)
        return answer.state

    def _report_deferred(self, item: Item, outcome: Deferred) -> None:
        self._metrics.deferral(item.target)
        self._deferrals.warn(
            reason=outcome.reason,
            code=outcome.code,
            detail=outcome.detail,
            seconds=outcome.retry_after_seconds and round(outcome.retry_after_seconds, 3),
            **item.log_fields(),
        )

    def _drop(self, item: Item, verdict: RecordVerdict) -> None:
        """Report a fenced write that hit no row. It is never repeated."""
        if verdict is RecordVerdict.LEASE_LOST:
            self._metrics.lease_lost()
        self._log(logging.WARNING, "result_dropped", item, verdict=str(verdict))

    def _discard(self, item: Item) -> None:
        """Report a result that came after its lease was trusted. It is not sent.

        Whoever holds the lease gives it up: a leader its term, a holder its stream. A claim is left
        to the reaper.
        """
        self._slots.let_go([item])
        self._metrics.late_result()
        self._log(logging.WARNING, "late_result_discarded", item)
        self._trouble(LeaseLost("trust ended before the result was written"))

    async def _release(self) -> None:
        given_back, self._given_back = self._given_back[:BATCH_MAX], self._given_back[BATCH_MAX:]
        groups: defaultdict[tuple[Fence, float], list[Item]] = defaultdict(list)
        for item, delay_seconds in given_back:
            groups[item.fence, delay_seconds].append(item)
        writes = ((partial(self._give_back, *group), items) for group, items in groups.items())
        await self._try_each(writes)

    async def _give_back(self, fence: Fence, delay_seconds: float, items: Sequence[Item]) -> None:
        """Return items to the database and let them go. Repeat it later if that may help."""
        stay: set[Item] = set()
        try:
            lost = await fence.give_back(items, delay_seconds)
            if lost:
                self._metrics.lease_lost(lost)
        except DatabaseUnavailable as error:
            now = self._slots.clock()
            stay = {item for item in items if not item.trust.is_over(now)}
            if not is_rolled_back(error):
                self._given_back += [(item, delay_seconds) for item in stay]
            raise
        finally:
            self._slots.let_go(item for item in items if item not in stay)

    def _log(self, level: int, event: str, item: Item, **fields: object) -> None:
        if not _logs_level(level):
            return
        outcome = type(item.outcome).__name__
        _LOG.log(level, event, outcome=outcome, **item.log_fields(), **fields)

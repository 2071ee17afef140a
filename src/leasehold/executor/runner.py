"""The runner makes the calls: it takes items from MARKED to an outcome, as `domain.retry` decides.

The items of one batch share one "begin" where their contracts require it; then each call is a task
of its own, made only while the item's lease is trusted: checked here, and where bytes leave.

A leader whose renewal is late may start no call until the renewal is answered. It gives back items
that were not begun. The others wait: only their holder can make these calls without a lookup.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from leasehold.domain.errors import (
    AccessDenied,
    DatabaseUnavailable,
    LeaseholdError,
    MigrationError,
)
from leasehold.domain.outcome import Accepted, Unknown
from leasehold.domain.retry import (
    Confirm,
    LookUp,
    LookUpAgain,
    Submit,
    after_calling,
    next_step,
    with_delay,
)
from leasehold.executor.begins import Begins
from leasehold.executor.claim_size import CallTimes
from leasehold.executor.faults import NO_FAULTS, FaultPoint, with_faults
from leasehold.executor.item import CALLING, MARKED, RECORDING
from leasehold.executor.lookups import Lookups, after_abort
from leasehold.executor.submissions import batch_of, submission_of, submit_in_order
from leasehold.gateway.errors import TrustEnded
from leasehold.observe.logs import get_logger
from leasehold.observe.traces import parse_traceparent, span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.domain.outcome import Outcome
    from leasehold.domain.retry import Step
    from leasehold.executor.completer import Completer
    from leasehold.executor.faults import Faults
    from leasehold.executor.fences import Fence
    from leasehold.executor.item import Item
    from leasehold.executor.observer import ObserverThread
    from leasehold.executor.slots import Slots
    from leasehold.executor.targets import Served, Targets
    from leasehold.observe.metrics import Metrics
    from leasehold.observe.traces import Span

    Plan: TypeAlias = tuple[Item, Served, Step]

# How long an intent waits whose contract cannot be served here: another instance may be able to.
CANNOT_SERVE_SECONDS = 10.0
# How long a gateway may overrun its own timeout before the call is aborted.
CALL_OVERRUN_SECONDS = 2.0
# How often a call that was begun checks whether a late renewal has been answered.
_RENEWAL_CHECK_SECONDS = 0.02

_LOG = get_logger(__name__)


class Runner:
    """Makes calls, and hands each outcome to the completer."""

    def __init__(
        self,
        slots: Slots,
        targets: Targets,
        completer: Completer,
        metrics: Metrics,
        *,
        on_error: Callable[[Exception], None],
        faults: Faults = NO_FAULTS,
        observer: ObserverThread | None = None,
    ) -> None:
        self.times = CallTimes(metrics)
        self._slots = slots
        self._targets = targets
        self._completer = completer
        self._metrics = metrics
        self._on_error = on_error
        self._faults = faults
        self._observer = observer
        self._lookups = Lookups(slots, metrics, faults)
        self._begins = Begins(slots, completer, metrics, on_error=on_error, faults=faults)
        self._is_closed = False
        self._batches: set[asyncio.Task[None]] = set()
        self._unbegun: dict[asyncio.Task[None], Sequence[Item]] = {}

    def start(self, items: Sequence[Item]) -> None:
        """Start work on MARKED items; returns at once."""
        if self._is_closed:
            self._give_back(items)
        else:
            task = asyncio.create_task(self._start(items))
            self._batches.add(task)
            self._unbegun[task] = items
            task.add_done_callback(self._forget_batch)

    def close(self) -> None:
        """Give back the items that nothing was called for, and start nothing more."""
        self._is_closed = True
        unbegun, self._unbegun = self._unbegun, {}
        for task, items in unbegun.items():
            # Not in the task: a task that is cancelled before it first runs never notices.
            task.cancel()
            self._give_back([item for item in items if item.state is MARKED])

    def withdraw(self, items: Sequence[Item]) -> None:
        """Give back the calls that were not sent: they are not sent any more."""
        followers = {one for item in items for one in item.followers}
        for item in items:
            is_submitted = item.state is CALLING and item.lookup_contract is None
            if item in followers:
                continue
            if item.state is MARKED or (is_submitted and item.withdraw()):
                item.note_unsent()
                self._give_back([item])
                if item.task is not None:
                    self._slots.keep_slot(item.task)

    def abort(self, item: Item, reason: str = "aborted") -> None:
        """Give up a call: record that its outcome is unknown, while the lease still stands."""
        if item.state is MARKED:
            self._give_back([item])
        elif item.state is CALLING:
            _LOG.warning("call_aborted", reason=reason, **item.log_fields())
            unknown = Unknown(retry_after_seconds=0, reason=reason)
            for one in item.followers:
                if one.state is CALLING and one.is_unsent and one.withdraw():
                    self._completer.put_back(one)
            for one in (item, *item.followers):
                if one.state is CALLING:
                    decided = after_abort(one, unknown)
                    self._observe(one, decided)
                    self._hand_in(one, decided, None)
            if item.task is not None:
                self._slots.keep_slot(item.task)

    def _forget_batch(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        self._unbegun.pop(task, None)

    async def _start(self, items: Sequence[Item]) -> None:
        await self._faults.reach(FaultPoint.AFTER_CLAIM)
        plans, to_begin = await self._plan(items)
        if to_begin:
            await self._faults.reach(FaultPoint.BEFORE_BEGIN)
        self._unbegun = {task: one for task, one in self._unbegun.items() if one is not items}
        begun = await self._begins.begin(to_begin)
        not_begun = set(to_begin) - begun
        create_task = asyncio.get_running_loop().create_task
        for item, served, step in plans:
            # A shutdown that could not wait may have given it back meanwhile.
            if item.state is MARKED and item not in not_begun:
                if item in begun:
                    item.call()
                create_task(self._run(item, served, step))

    async def _plan(self, items: Sequence[Item]) -> tuple[list[Plan], list[Item]]:
        """Decide the next step of each item, and for which "about to call" must be durable."""
        plans: list[Plan] = []
        to_begin: list[Item] = []
        served: Served | None = None
        fence: Fence | None = None
        must_begin = False
        for item in items:
            try:
                # Most items have the contract and the fence of the one before.
                if served is None or fence is not item.fence or not served.serves(item.claimed):
                    fence = item.fence
                    served = await self._targets.of(item.target, item.claimed.contract_version)
                    must_begin = fence.must_begin(served.contract)
            except Exception as error:  # noqa: BLE001 (logged and reported there)
                served = None
                self._refuse(item, error)
                continue
            step = next_step(item.claimed, served.contract)
            plans.append((item, served, step))
            if must_begin and isinstance(step, Submit):
                to_begin.append(item)
        return plans, to_begin

    def _refuse(self, item: Item, error: Exception) -> None:
        """Do not work on an item whose contract could not be opened. Nothing was sent for it."""
        self._completer.give_back(item, CANNOT_SERVE_SECONDS)
        if isinstance(error, LeaseholdError) and not isinstance(error, DatabaseUnavailable):
            self._targets.report_refused(item, error, self._metrics)
            if not isinstance(error, (AccessDenied, MigrationError)):
                return  # the contract is the problem, not the database
        else:
            _LOG.error("contract_unavailable", exc_info=error, **item.log_fields())
        self._on_error(error)

    async def _wait_for_renewal(self, item: Item) -> None:
        """Hold a call that was begun until a late renewal is answered, or cannot be any more."""
        clock = self._slots.clock
        while not item.trust.may_start(clock()) and item.trust.may_start_later(clock()):  # noqa: ASYNC110 (no event tells the time)
            await asyncio.sleep(_RENEWAL_CHECK_SECONDS)

    async def _run(self, item: Item, served: Served, step: Step) -> None:
        item.task = asyncio.current_task()  # only now: cancelled unstarted, it would keep its slot
        served.calls += 1
        try:
            while item.state < RECORDING:  # else it was given back before this task ran
                if item.state is CALLING:
                    await self._wait_for_renewal(item)
                now = self._slots.clock()
                if not item.trust.may_start(now):
                    self._begins.skip(item)
                    break
                item.call()
                item.is_unsettled = True
                seconds_max = served.contract.call_timeout_seconds + CALL_OVERRUN_SECONDS
                item.abort_at = min(item.abort_at, now + seconds_max)
                with suppress(TrustEnded):  # nothing was sent: a late renewal may permit it
                    await self._act(item, served, step)
                    break
                item.note_unsent()
        except Exception as error:  # noqa: BLE001 (a gateway that raises has told us nothing)
            _LOG.error("gateway_raised", exc_info=error, **item.log_fields())
            unknown = Unknown(reason="exception", detail=type(error).__name__)
            for one in (item, *item.followers):
                if one.state is CALLING:  # else it was aborted meanwhile, or is not in this call
                    self._observe(one, unknown)
                    outcome = with_delay(unknown, served.contract, one.claimed.attempt_no, 0)
                    self._completer.complete(one, outcome)
        finally:
            served.calls -= 1
            if item.state < RECORDING:  # cancelled because its lease is lost: the reaper ends it
                self._slots.let_go([item])

    async def _act(self, item: Item, served: Served, step: Step) -> None:
        parent = parse_traceparent(item.claimed.trace_context)
        with span(f"leasehold {item.target}", parent) as trace:
            item.trace = trace
            started_at = self._slots.clock()
            submission = submission_of(item, trace, self._slots.clock)
            if not isinstance(step, Submit):
                item.bind_result()
            batch = batch_of(item, served, step) if item.followers else [item]
            if self._observer is not None:
                self._observer.begun(batch, step)
            if len(batch) > 1:
                await self._act_on_all(batch, served, step, trace)
                return
            if isinstance(step, Submit):
                item.is_sent = not served.asks_before_sending
                call = served.gateway.submit(submission)
                decided = await (
                    call if self._faults is NO_FAULTS else with_faults(call, self._faults)
                )
            elif isinstance(step, (LookUp, Confirm)):
                decided = await self._lookups.look_up(item, served, submission)
            else:
                decided = step.outcome
            elapsed = self._slots.clock() - started_at
        if self._observer is not None:
            self._observer.ended(item, decided)
        if isinstance(step, Submit) and not isinstance(decided, LookUpAgain):
            self.times.add(item.target, elapsed)
            self._targets.observe(item, decided, self._metrics)
            decided = after_calling(decided, item.claimed, served.contract)
        self._finish(item, served, decided, elapsed)

    async def _act_on_all(self, batch: list[Item], served: Served, step: Step, trace: Span) -> None:
        """Submit heads of a stream with one call, or look them up. The first stands for all."""
        for one in batch:
            one.call()
            one.is_sent = not served.asks_before_sending
        started_at = self._slots.clock()
        submissions = [submission_of(one, trace, self._slots.clock) for one in batch]
        if not isinstance(step, Submit):
            answers = await self._lookups.look_up_all(batch, served, submissions)
            # All of them at once: the write of the first result brings the next heads.
            for one, decided in zip(batch, answers, strict=True):
                self._observe(one, decided)
                self._finish(one, served, decided, self._slots.clock() - started_at)
            return
        outcomes = await submit_in_order(served.gateway, submissions)
        elapsed = self._slots.clock() - started_at
        self.times.add(batch[0].target, elapsed)
        self._targets.observe(batch[0], outcomes[-1], self._metrics)
        for one in batch[len(outcomes) :]:
            if one.state is CALLING:  # else it was aborted meanwhile
                self._completer.put_back(one)
        for one, outcome in zip(batch, outcomes, strict=False):
            self._observe(one, outcome)
            self._finish(one, served, after_calling(outcome, one.claimed, served.contract), elapsed)

    def _observe(self, item: Item, decided: Outcome | LookUpAgain) -> None:
        if self._observer is not None:
            self._observer.ended(item, decided)

    def _finish(
        self, item: Item, served: Served, decided: Outcome | LookUpAgain, elapsed: float
    ) -> None:
        if item.state >= RECORDING:
            self._metrics.late_result()  # it was aborted meanwhile
            return
        if not isinstance(decided, (Accepted, LookUpAgain)):  # most are, and need no delay
            jitter = random.uniform(-1, 1)  # noqa: S311 (not used for security)
            decided = with_delay(decided, served.contract, item.claimed.attempt_no, jitter)
        self._hand_in(item, decided, elapsed)

    def _hand_in(self, item: Item, decided: Outcome | LookUpAgain, elapsed: float | None) -> None:
        if isinstance(decided, LookUpAgain):
            self._completer.give_back(item, decided.seconds)
        else:
            self._completer.complete(item, decided, elapsed)

    def _give_back(self, items: Sequence[Item]) -> None:
        for item in items:
            self._completer.give_back(item, 0.0)

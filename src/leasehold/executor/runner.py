"""One attempt: from a claim to an outcome. `domain.retry` decides what to do; here it is done.

A batch of claims is begun in one call where its contracts ask for that, and then every call runs by
itself. A call is made only while its claim is trusted, checked right before; whether its result may
still be written is checked by completion, and by the database.

A leader whose renewal is late may not call now, but may when the next one is answered: what was not
begun goes back to where it was taken from, to be read anew; what was begun waits, for nobody but us
can make that call without asking what became of it.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from leasehold.domain.errors import (
    AccessDenied,
    DatabaseUnavailable,
    LeaseholdError,
    MigrationError,
)
from leasehold.domain.outcome import Accepted, Unknown
from leasehold.domain.retry import (
    Ask,
    AskAgain,
    Confirm,
    Finish,
    Hold,
    Submit,
    after_asking,
    after_calling,
    next_step,
    with_delay,
)
from leasehold.domain.verdict import BeginVerdict
from leasehold.executor.completer import Finished
from leasehold.executor.faults import NO_FAULTS, FaultPoint
from leasehold.gateway.protocol import Submission
from leasehold.observe.logs import get_logger
from leasehold.observe.traces import parse_traceparent, span, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from leasehold.coordination.claims import Claims, Held
    from leasehold.domain.outcome import Outcome
    from leasehold.domain.retry import Step
    from leasehold.executor.completer import Completer
    from leasehold.executor.faults import Faults
    from leasehold.executor.fence import Fence
    from leasehold.executor.targets import Served, Targets
    from leasehold.observe.metrics import Metrics
    from leasehold.observe.traces import Span

    Planned: TypeAlias = tuple[Held, Served, Step]

# How long an intent waits whose contract cannot be opened here: another instance may be able to.
CANNOT_SERVE_SECONDS = 10.0
# Beyond a gateway's own time for a call; then it did not keep it.
CALL_OVERRUN_SECONDS = 2.0
# How often a call that was begun looks whether a late renewal has come.
_LOOK_SECONDS = 0.02
# How much of the observed latency the newest call decides.
_LATENCY_WEIGHT = 0.05

_LOG = get_logger(__name__)


class Runner:
    """Starts attempts and sees to it that each ends in completion, or not at all."""

    def __init__(
        self,
        fence: Fence,
        claims: Claims,
        targets: Targets,
        completion: Completer,
        metrics: Metrics,
        *,
        trouble: Callable[[Exception], None],
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.latency_seconds = 0.0
        self._fence = fence
        self._claims = claims
        self._targets = targets
        self._completer = completion
        self._metrics = metrics
        self._trouble = trouble
        self._faults = faults
        self._is_closed = False
        self._call_seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._batches: set[asyncio.Task[None]] = set()
        self._unbegun: dict[asyncio.Task[None], Sequence[Held]] = {}

    def start(self, batch: Sequence[Held]) -> None:
        """Begin work on fresh claims; returns at once."""
        if self._is_closed:
            self._give_back(batch)
            return
        task = asyncio.create_task(self._start(batch))
        self._batches.add(task)
        self._unbegun[task] = batch
        task.add_done_callback(self._is_over)

    def close(self) -> None:
        """Give back what nothing was called for yet, and start nothing any more."""
        self._is_closed = True
        unbegun, self._unbegun = self._unbegun, {}
        for task, batch in unbegun.items():
            # Here, for a task that is cancelled before it first ran never learns of it.
            task.cancel()
            self._give_back([held for held in batch if held.stage == "claimed"])

    def abort(self, held: Held, reason: str = "aborted") -> None:
        """Give up on a call: say that nobody knows, while the lease still stands."""
        call, is_calling = held.call, held.stage == "calling"
        if held.stage == "recording":
            return
        if not is_calling:
            self._give_back([held])
            return
        _LOG.warning("call_given_up", reason=reason, **self._names(held))
        self._completer.complete(Finished(held, Unknown(retry_after_seconds=0, reason=reason)))
        if call is not None:
            self._claims.outlived(call)

    def _is_over(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        self._unbegun.pop(task, None)

    async def _start(self, batch: Sequence[Held]) -> None:
        await self._faults.reach(FaultPoint.AFTER_CLAIM)
        planned = await self._plan(batch)
        must_begin = self._to_be_begun(planned)
        if must_begin:
            await self._faults.reach(FaultPoint.BEFORE_BEGIN)
        self._unbegun = {task: one for task, one in self._unbegun.items() if one is not batch}
        begun = await self._begin(must_begin)
        not_begun = {id(held) for held in must_begin} - begun
        create_task = asyncio.get_running_loop().create_task
        for held, served, step in planned:
            # Meanwhile it may have been given back, by a shutdown that could not wait.
            if held.stage == "claimed" and id(held) not in not_begun:
                if id(held) in begun:
                    held.stage = "calling"
                held.call = create_task(self._run(held, served, step))

    def _to_be_begun(self, planned: Sequence[Planned]) -> list[Held]:
        """Say for which of them "about to call" must be durable first."""
        contracts = {served for _, served, _ in planned}  # few, so each is asked about once
        begins = {one for one in contracts if self._fence.must_begin(one.contract)}
        if not begins:
            return []
        return [
            held for held, served, step in planned if served in begins and isinstance(step, Submit)
        ]

    async def _plan(self, batch: Sequence[Held]) -> list[Planned]:
        planned: list[Planned] = []
        served: Served | None = None
        for held in batch:
            claimed = held.claimed
            try:
                if served is None or not served.is_of(claimed):  # mostly as the one before
                    served = await self._targets.of(claimed.target, claimed.contract_version)
            except DatabaseUnavailable as error:
                self._claims.let_go([held])
                self._trouble(error)
            except LeaseholdError as error:
                _LOG.error("contract_not_served", error=str(error), **self._names(held))
                self._completer.give_back(held, CANNOT_SERVE_SECONDS)
                if isinstance(error, (AccessDenied, MigrationError)):
                    self._trouble(error)  # the database's word, and not about this contract
            except Exception as error:  # noqa: BLE001 (what we have no name for is trouble too)
                _LOG.error("contract_not_read", exc_info=error, **self._names(held))
                self._claims.let_go([held])
                self._trouble(error)
            else:
                planned.append((held, served, next_step(claimed, served.contract)))
        return planned

    async def _begin(self, asked: Sequence[Held]) -> set[int]:
        """Make "about to call" durable. Returns those for which the call may be made."""
        batch: list[Held] = []
        for held in asked:
            if held.may_call(self._claims.clock()):
                batch.append(held)
            else:
                self._do_not_call(held)
        if not batch:
            return set()
        try:
            verdicts = await self._fence.begin(batch)
        except Exception as error:  # noqa: BLE001 (whatever it was, no call may be made)
            # They may have been begun all the same: only the reaper can say what they are now.
            _LOG.warning("begin_failed", worker_id=self._claims.worker_id, error=str(error))
            self._claims.let_go(batch)
            self._trouble(error)
            return set()
        await self._faults.reach(FaultPoint.AFTER_BEGIN)
        refused = [
            held for held in batch if verdicts[held.claimed.intent_id] is not BeginVerdict.BEGUN
        ]
        for held in refused:
            verdict = verdicts[held.claimed.intent_id]
            _LOG.warning("not_begun", verdict=str(verdict), **self._names(held))
            if verdict is BeginVerdict.LEASE_LOST:
                self._metrics.lease_lost()
        if refused:
            self._claims.let_go(refused)
        return {id(held) for held in batch} - {id(held) for held in refused}

    def _do_not_call(self, held: Held) -> None:
        """Leave it to a renewal that is late, or to whoever comes next."""
        if held.stage == "claimed" and held.may_call_later(self._claims.clock()):
            _LOG.warning("call_not_made", why="the renewal is late", **self._names(held))
            self._give_back([held])
        else:
            _LOG.warning("call_not_made", why="the lease is not trusted", **self._names(held))
            self._claims.let_go([held])

    async def _late_renewal(self, held: Held) -> None:
        """Wait for it with a call that was begun, as long as it may come."""
        while True:
            now = self._claims.clock()
            if held.may_call(now) or not held.may_call_later(now):
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _run(self, held: Held, served: Served, step: Step) -> None:
        served.calls += 1
        try:
            if held.stage == "recording":
                return  # it was given back before it came to anything
            if held.stage == "calling":
                await self._late_renewal(held)
            now = self._claims.clock()
            if not held.may_call(now):
                self._do_not_call(held)
                return
            held.stage = "calling"
            held.abort_at = min(
                held.abort_at, now + served.contract.call_timeout_seconds + CALL_OVERRUN_SECONDS
            )
            await self._act(held, served, step)
        except Exception as error:  # noqa: BLE001 (a gateway that raises has said nothing)
            _LOG.error("gateway_raised", exc_info=error, **self._names(held))
            doubt = Unknown(reason="exception", detail=type(error).__name__)
            outcome = with_delay(doubt, served.contract, held.claimed.attempt_no, 0)
            self._completer.complete(Finished(held, outcome))
        finally:
            served.calls -= 1
            self._let_go_of_lost(held)

    def _let_go_of_lost(self, held: Held) -> None:
        """Cancelled, because it was lost: nothing is said about it, and the reaper ends it."""
        if held.stage != "recording":
            self._claims.let_go([held])

    async def _act(self, held: Held, served: Served, step: Step) -> None:
        claimed = held.claimed
        with span(f"leasehold {claimed.target}", parse_traceparent(claimed.trace_context)) as trace:
            began_at = self._claims.clock()
            if isinstance(step, Submit):
                call = served.gateway.submit(self._submission(held, trace))
                decided = await (call if self._faults is NO_FAULTS else self._with_faults(call))
            else:
                decided = await self._decided(held, served, step, trace)
            elapsed = self._claims.clock() - began_at
        if isinstance(step, Submit) and not isinstance(decided, AskAgain):
            self._count_call(claimed.target, elapsed)
            self._tell_breaker(claimed.target, decided)
            decided = after_calling(decided, claimed, served.contract)
        if held.stage == "recording":
            self._metrics.late_result()  # it was given up meanwhile
            return
        if isinstance(decided, AskAgain):
            self._completer.give_back(held, decided.seconds)
            return
        self.latency_seconds += _LATENCY_WEIGHT * (elapsed - self.latency_seconds)
        if not isinstance(decided, Accepted):  # as most are, and then nothing follows
            jitter = random.uniform(-1, 1)  # noqa: S311 (spreads, protects nothing)
            decided = with_delay(decided, served.contract, claimed.attempt_no, jitter)
        self._completer.complete(Finished(held, decided, elapsed, trace))

    def _count_call(self, target: str, seconds: float) -> None:
        """Tell the metrics at once of all calls that end together."""
        if not self._call_seconds:
            asyncio.get_running_loop().call_soon(self._count_calls)
        self._call_seconds[target].append(seconds)

    def _count_calls(self) -> None:
        for target, seconds in self._call_seconds.items():
            self._metrics.call(target, *seconds)
        self._call_seconds.clear()

    async def _decided(
        self, held: Held, served: Served, step: Ask | Confirm | Finish | Hold, trace: Span
    ) -> Outcome | AskAgain:
        match step:
            case Ask() | Confirm():
                answer = await served.gateway.lookup(self._submission(held, trace))
                return after_asking(answer, held.claimed, served.contract)
            case Finish() | Hold():
                return step.outcome
            case _:
                assert_never(step)

    async def _with_faults(self, call: Coroutine[Any, Any, Outcome]) -> Outcome:
        outcome, _ = await asyncio.gather(call, self._faults.reach(FaultPoint.DURING_CALL))
        await self._faults.reach(FaultPoint.AFTER_CALL_BEFORE_COMPLETE)
        return outcome

    def _tell_breaker(self, target: str, outcome: Outcome) -> None:
        breaker = self._targets.gate(target).breaker
        before = breaker.state
        if before == "closed" and isinstance(outcome, Accepted):
            return  # as it should be: it learns nothing from that
        breaker.saw(outcome)
        if breaker.state != before:
            self._metrics.breaker(target, breaker.state)
            _LOG.warning("breaker", target=target, was=before, now=breaker.state)

    def _submission(self, held: Held, trace: Span) -> Submission:
        claimed = held.claimed
        # In the order of its fields: by their names, making it would cost half as much again.
        return Submission(
            claimed.intent_id,
            claimed.target,
            claimed.attempt_no,
            claimed.submission_key,
            self._fence.token(claimed),
            self._claims.worker_id,
            claimed.payload,
            claimed.body,
            claimed.content_type,
            claimed.metadata,
            trace,
            claimed.reference,
        )

    def _give_back(self, batch: Sequence[Held]) -> None:
        for held in batch:
            self._completer.give_back(held, 0.0)

    def _names(self, held: Held) -> dict[str, object]:
        return {
            "worker_id": self._claims.worker_id,
            "intent_id": str(held.claimed.intent_id),
            "attempt_no": held.claimed.attempt_no,
            "target": held.claimed.target,
            "trace_id": trace_of(held.claimed.trace_context).trace_id,
        }

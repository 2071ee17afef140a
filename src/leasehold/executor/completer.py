"""Results on their way to the ledger: many in one call, within a few milliseconds.

Nothing is tried twice. What the database refuses is decided; what it does not answer is unknown,
so the results are dropped and the reaper ends the claims. Only when it refused a whole batch before
it wrote anything, because of one result in it, are the others handed in by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.domain.errors import LeaseLost, TerminalGuardHit
from leasehold.domain.intent import AttemptState
from leasehold.domain.outcome import Result
from leasehold.domain.verdict import RecordVerdict
from leasehold.executor.faults import NO_FAULTS, FaultPoint
from leasehold.observe.logs import get_logger
from leasehold.service.service import AGAIN, Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.coordination.claims import Claims, Held
    from leasehold.domain.outcome import Outcome
    from leasehold.executor.faults import Faults
    from leasehold.executor.fence import Fence
    from leasehold.observe.metrics import Metrics
    from leasehold.observe.traces import Span
    from leasehold.store.rows import Recorded

BATCH_MAX = 1000
# Calls end one by one; those that end together are written together.
LINGER_SECONDS = 0.001
_IDLE = Pause(60.0)
_DISPATCHED = AttemptState.DISPATCHED  # looked up once: on an enum that is a call

_LOG = get_logger(__name__)
_is_chatty = _LOG.isEnabledFor


@dataclass(slots=True, eq=False)
class Finished:
    """A claim that was worked on, and what became of it."""

    held: Held
    outcome: Outcome
    elapsed_seconds: float | None = None
    trace: Span | None = None


class Completer:
    """The service that hands in results, and gives claims back."""

    name = "completion"

    def __init__(
        self,
        fence: Fence,
        claims: Claims,
        metrics: Metrics,
        *,
        trouble: Callable[[Exception], None],
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.wake = asyncio.Event()
        self._fence = fence
        self._claims = claims
        self._metrics = metrics
        self._trouble = trouble
        self._faults = faults
        self._finished: list[Finished] = []
        self._returned: list[tuple[Held, float]] = []
        self._first_at = 0.0

    def complete(self, finished: Finished) -> None:
        """Hand in a result; its slot is free when the database has answered."""
        if not self._finished:
            self._first_at = self._claims.clock()
        finished.held.stage = "recording"
        self._finished.append(finished)
        self.wake.set()

    def give_back(self, held: Held, delay_seconds: float) -> None:
        """Return a claim without a try: due again after a while, with nothing on the ledger."""
        held.stage = "recording"
        self._returned.append((held, delay_seconds))
        self.wake.set()

    async def step(self) -> Pause:
        """Write what there is, unless more is about to come."""
        if self._returned:
            await self._release()
        if not self._finished:
            return _IDLE
        waited = self._claims.clock() - self._first_at
        is_more_to_come = len(self._finished) < len(self._claims)
        if is_more_to_come and waited < LINGER_SECONDS and len(self._finished) < BATCH_MAX:
            return Pause(LINGER_SECONDS - waited)
        batch, self._finished = self._finished[:BATCH_MAX], self._finished[BATCH_MAX:]
        await self._write(batch)
        return AGAIN if self._finished or self._returned else _IDLE

    async def _write(self, batch: Sequence[Finished]) -> None:
        try:
            await self._write_together(batch)
        finally:
            self._claims.let_go(one.held for one in batch)

    async def _write_together(self, batch: Sequence[Finished]) -> None:
        now = self._claims.clock()
        trusted: list[Finished] = []
        for one in batch:
            if one.held.is_trusted(now):
                trusted.append(one)
            else:
                self._discard(one)
        if not trusted:
            return
        try:
            await self._record(trusted)
        except LeaseLost as error:
            for one in trusted:
                self._refused(one, RecordVerdict.LEASE_LOST)
            self._trouble(error)
        except Exception as error:
            self._trouble(error)
            raise

    async def _record(self, batch: Sequence[Finished]) -> None:
        results = [
            Result(
                one.held.claimed.intent_id,
                one.outcome,
                one.held.claimed.lease_token,
                one.elapsed_seconds,
            )
            for one in batch
        ]
        try:
            recorded = await self._sent(results)
        except Exception as error:
            if not self._fence.is_of_one_result(error):
                raise
            await self._record_apart(batch, error)
            return
        await self._faults.reach(FaultPoint.AFTER_COMPLETE)
        self._report(batch, recorded)

    async def _sent(self, results: Sequence[Result]) -> list[Recorded]:
        if self._faults is NO_FAULTS:
            # At once: a task would come after all calls that are about to begin, and the database
            # would have nothing to do meanwhile.
            return await self._fence.record(results)
        recorded, _ = await asyncio.gather(
            self._fence.record(results), self._faults.reach(FaultPoint.DURING_COMPLETE)
        )
        return recorded

    async def _record_apart(self, batch: Sequence[Finished], refusal: Exception) -> None:
        """Nothing was written: let no result suffer for its neighbour."""
        if len(batch) > 1:
            for one in batch:
                await self._record([one])
            return
        if isinstance(refusal, TerminalGuardHit):
            self._metrics.terminal_guard_hit()
        self._tell(logging.ERROR, "result_refused", batch[0], error=str(refusal))

    def _report(self, batch: Sequence[Finished], recorded: Sequence[Recorded]) -> None:
        """Count and log what was written; what the answer does not tell of was dispatched."""
        told = {answer.intent_id.int: answer for answer in recorded}
        written: defaultdict[AttemptState, list[Finished]] = defaultdict(list)
        if told:
            for one in batch:
                answer = told.get(one.held.claimed.intent_id.int)
                state = _DISPATCHED if answer is None else self._state_told(one, answer)
                if state is not None:
                    written[state].append(one)
        else:
            written[_DISPATCHED] += batch
        for state, finished in written.items():
            self._count(state, finished)
            if _is_chatty(logging.DEBUG):
                for one in finished:
                    answer = told.get(one.held.claimed.intent_id.int)
                    why = answer.reason if answer else None
                    self._tell(logging.DEBUG, "recorded", one, state=state, why=why)

    def _count(self, state: AttemptState, finished: Sequence[Finished]) -> None:
        now = self._claims.clock()
        by_target: defaultdict[str, list[Held]] = defaultdict(list)
        for one in finished:
            by_target[one.held.claimed.target].append(one.held)
        for target, ended in by_target.items():
            self._metrics.attempts(target, state, len(ended))
            if state.is_terminal:
                # Both spans are on one clock each: the database's until the claim, then ours.
                lives = [
                    (held.claimed.claimed_at - held.claimed.created_at).total_seconds()
                    + (now - held.taken_at)
                    for held in ended
                ]
                self._metrics.time_to_terminal(target, *lives)

    def _state_told(self, one: Finished, answer: Recorded) -> AttemptState | None:
        """Give what the ledger says of a result now; None, where it was not written."""
        if answer.verdict is not RecordVerdict.APPLIED or answer.state is None:
            self._refused(one, answer.verdict)
            return None
        if answer.is_held:
            self._tell(logging.WARNING, "held_for_a_person", one, state=answer.state)
        return answer.state

    def _refused(self, one: Finished, verdict: RecordVerdict) -> None:
        """A fenced write that hit nothing is loud, and never tried again."""
        if verdict is RecordVerdict.LEASE_LOST:
            self._metrics.lease_lost()
        self._tell(logging.WARNING, "result_not_written", one, verdict=str(verdict))

    def _discard(self, one: Finished) -> None:
        self._metrics.late_result()
        self._tell(logging.WARNING, "late_result_discarded", one)

    async def _release(self) -> None:
        returned, self._returned = self._returned, []
        by_delay: defaultdict[float, list[Held]] = defaultdict(list)
        for held, delay_seconds in returned:
            by_delay[delay_seconds].append(held)
        try:
            for delay_seconds, group in by_delay.items():
                lost = await self._fence.give_back(group, delay_seconds)
                if lost:
                    self._metrics.lease_lost(lost)
        finally:
            self._claims.let_go(held for held, _ in returned)

    def _tell(self, level: int, event: str, one: Finished, **fields: object) -> None:
        _LOG.log(
            level,
            event,
            worker_id=self._claims.worker_id,
            intent_id=str(one.held.claimed.intent_id),
            attempt_no=one.held.claimed.attempt_no,
            target=one.held.claimed.target,
            trace_id=one.trace.trace_id if one.trace else None,
            outcome=type(one.outcome).__name__,
            **fields,
        )

"""What became of results: logged and counted when the database has answered.

Lines that may be many at once have a budget; the metrics count all of them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING

from leasehold.domain.intent import AttemptState
from leasehold.domain.outcome import STALE_REASON, Deferred, Rejected, Retryable, Unknown
from leasehold.domain.verdict import RecordVerdict
from leasehold.executor.log_budget import LogBudget
from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.executor.item import Item
    from leasehold.executor.observer import ObserverThread
    from leasehold.executor.slots import Slots
    from leasehold.observe.metrics import Metrics
    from leasehold.store.rows import Recorded

# The first lines say what is wrong with the target; the breaker keeps the rest few.
_DEFERRALS_LOGGED = 20
_DISPATCHED = AttemptState.DISPATCHED  # looked up once: on this enum that is a call

_LOG = get_logger(__name__)
_logs_level = _LOG.isEnabledFor


class ResultReports:
    """Logs and counts results, and tells an observer of terminal ones."""

    def __init__(self, slots: Slots, metrics: Metrics, observer: ObserverThread | None) -> None:
        self._slots = slots
        self._metrics = metrics
        self._observer = observer
        self._failures = LogBudget(_LOG, "intent_failed")
        self._stale_tokens = LogBudget(_LOG, "stale_token_refused")
        self._deferrals = LogBudget(_LOG, "intent_deferred", lines_max=_DEFERRALS_LOGGED)

    def report(self, items: Sequence[Item], recorded: Sequence[Recorded]) -> None:
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
                self.log(logging.DEBUG, "result_recorded", item, state=state, reason=reason)
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
            self.drop(item, answer.verdict)
            return None
        outcome = item.outcome
        if isinstance(outcome, Rejected | Retryable | Unknown) and outcome.reason == STALE_REASON:
            # The database has just confirmed our lease, so the gateway saw a token that it forgot.
            self._metrics.stale_token_refused()
            self._stale_tokens.warn(code=outcome.code, **item.log_fields())
        if item.lookup_contract is not None and (answer.attempt_no or 0) < item.claimed.attempt_no:
            return None  # a lookup without news
        if answer.is_held:
            self.log(logging.WARNING, "intent_held", item, state=answer.state)
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

    def drop(self, item: Item, verdict: RecordVerdict) -> None:
        """Report a fenced write that hit no row. It is never repeated."""
        if verdict is RecordVerdict.LEASE_LOST:
            self._metrics.lease_lost()
        self.log(logging.WARNING, "result_dropped", item, verdict=str(verdict))

    def log(self, level: int, event: str, item: Item, **fields: object) -> None:
        """Log an event about an item and its outcome."""
        if not _logs_level(level):
            return
        outcome = type(item.outcome).__name__
        _LOG.log(level, event, outcome=outcome, **item.log_fields(), **fields)

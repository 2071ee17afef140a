"""Enqueues any number of intents in batches, and sends each intent until it has a final verdict.

- An intent that is rejected temporarily (queue full, database unavailable) is sent again before any
  later one, so that the order within a stream is kept.
- If the API cannot read a batch, the batch is halved until the invalid intent is alone. The others
  are accepted.
- An intent that was once sent without an answer is never reported as refused: it may have been
  written. Unless a later try finds it in the database, its verdict is UNAVAILABLE.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from leasehold.client.requests import BATCH_ADVICE, enqueue_batch, intent_json, key_advice, key_of
from leasehold.client.responses import BulkResult
from leasehold.client.retry import RetriedRequest, RetryBudget, refused_after_silence
from leasehold.domain.errors import ApiError, ApiUnavailable, ContentTooLarge, InvalidArgument
from leasehold.domain.verdict import BatchVerdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.domain.errors import LeaseholdError
    from leasehold.domain.intent import NewIntent

BATCH_MAX = 1000
BATCH_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Entry:
    ordinal: int
    json: bytes
    trace_context: str | None


class BulkEnqueue:
    """The state of one enqueue_many: send each next_request() and report how it ended."""

    def __init__(self, intents: Iterable[NewIntent], retry_seconds: float) -> None:
        self._intents = enumerate(intents, start=1)
        self._retry_seconds = retry_seconds
        # For intents that the API rejects one by one; each request has a budget of its own.
        self._budget = RetryBudget(retry_seconds)
        self._results: dict[int, BulkResult] = {}
        # In the order of the intents: a generated key stays the same however often it is sent.
        self._keys: list[str] = []
        self._waiting: deque[_Entry] = deque()
        self._batch: list[_Entry] = []
        self._request: RetriedRequest[tuple[BulkResult, ...]] | None = None
        # Ordinals of intents that were sent without an answer.
        self._maybe_written: set[int] = set()
        # The next batch is smaller after one that was not accepted as a whole.
        self._batch_max = BATCH_MAX

    @property
    def results(self) -> tuple[BulkResult, ...]:
        """The final results, in the order of the intents."""
        return tuple(self._results[ordinal] for ordinal in sorted(self._results))

    def next_request(self) -> RetriedRequest[tuple[BulkResult, ...]] | None:
        """Return the next request; None when every intent has its result."""
        self._batch = self._next_batch()
        if not self._batch:
            return None
        self._request = RetriedRequest(
            enqueue_batch([one.json for one in self._batch], self._batch[0].trace_context),
            RetryBudget(self._retry_seconds),
            maybe_written_before=any(one.ordinal in self._maybe_written for one in self._batch),
        )
        return self._request

    def record(self, results: tuple[BulkResult, ...]) -> float:
        """Take the results of the last request and return the pause before the next one."""
        if len(results) != len(self._batch):
            raise ApiError(
                f"the API returned {len(results)} results for a batch of {len(self._batch)} intents"
                f". {BATCH_ADVICE}",
                outcome_unknown=True,
            )
        self._note_unanswered()
        pairs = list(zip(self._batch, results, strict=True))
        self._maybe_written |= {
            one.ordinal for one, result in pairs if result.verdict is BatchVerdict.UNAVAILABLE
        }
        again = [one for one, result in pairs if result.verdict.is_temporary]
        pause = self._budget.pause() if again else None
        for one, result in pairs:
            if pause is None or not result.verdict.is_temporary:
                self._add_result(replace(result, ordinal=one.ordinal))
        if pause is not None:
            self._waiting.extendleft(reversed(again))
        if len(again) < len(pairs):
            self._budget.reset()
        # What is sent again goes alone, before anything that follows it in a stream.
        self._batch_max = min(BATCH_MAX, self._batch_max * 2) if pause is None else len(again)
        return pause or 0.0

    def record_error(self, error: LeaseholdError) -> None:
        """Record that the last request was refused because of some intent in it, or raise `error`.

        All other errors concern every intent that follows.
        """
        refusal = error.__cause__ if isinstance(error, ApiUnavailable) else error
        if not isinstance(refusal, InvalidArgument):
            error.idempotency_keys = tuple(self._keys)
            raise error
        self._note_unanswered()
        if len(self._batch) == 1:
            self._reject(self._batch[0].ordinal, refusal)
            return
        self._waiting.extendleft(reversed(self._batch))
        self._batch_max = len(self._batch) // 2

    def _note_unanswered(self) -> None:
        if self._request is not None and self._request.maybe_written:
            self._maybe_written |= {one.ordinal for one in self._batch}

    def _add_result(self, result: BulkResult) -> None:
        key = self._keys[result.ordinal - 1]
        if result.ordinal in self._maybe_written and not result.verdict.is_committed:
            problem = key_advice(key)
            if result.verdict is not BatchVerdict.UNAVAILABLE:
                why = refused_after_silence(result.problem or result.verdict)
                problem = f"{why.removesuffix('.')}. {problem}"
            result = replace(
                result, verdict=BatchVerdict.UNAVAILABLE, intent_id=None, problem=problem
            )
        self._results[result.ordinal] = replace(result, idempotency_key=key)

    def _next_batch(self) -> list[_Entry]:
        batch: list[_Entry] = []
        size = 0
        while len(batch) < self._batch_max:
            one = self._waiting.popleft() if self._waiting else self._next_entry()
            if one is None:
                break
            size += len(one.json)
            # A request has one trace context, so a batch has one too.
            if batch and (size > BATCH_BYTES_MAX or one.trace_context != batch[0].trace_context):
                self._waiting.appendleft(one)
                break
            batch.append(one)
        return batch

    def _next_entry(self) -> _Entry | None:
        """Return the next intent that can be written as JSON; the others get their result here."""
        for ordinal, new in self._intents:
            key = key_of(new)
            self._keys.append(key)
            try:
                return _Entry(ordinal, intent_json(new, key), new.trace_context)
            except InvalidArgument as error:
                self._reject(ordinal, error)
        return None

    def _reject(self, ordinal: int, error: InvalidArgument) -> None:
        is_too_large = isinstance(error, ContentTooLarge)
        verdict = BatchVerdict.TOO_LARGE if is_too_large else BatchVerdict.INVALID
        self._add_result(
            BulkResult(ordinal=ordinal, verdict=verdict, intent_id=None, problem=str(error))
        )

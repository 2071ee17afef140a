"""Enqueues any number of intents in batches, and sends each intent until it has a final verdict.

- An intent that is rejected temporarily (queue full, database unavailable) is sent again before any
  later one, so that the order within a stream is kept.
- If the API cannot read a batch, the batch is halved until the invalid intent is alone. The others
  are accepted.
- An intent that was once sent without an answer never ends as QUEUE_FULL, only as UNAVAILABLE: it
  may have been written.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from leasehold.client.requests import enqueue_batch, intent_json, key_advice, key_of
from leasehold.client.responses import BulkResult, BulkVerdict
from leasehold.client.retry import RetriedRequest, RetryBudget
from leasehold.domain.errors import ApiError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.domain.intent import NewIntent

BATCH_MAX = 1000
BATCH_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Entry:
    ordinal: int
    key: str
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
            )
        self._note_unanswered()
        pairs = list(zip(self._batch, results, strict=True))
        self._maybe_written |= {
            one.ordinal for one, result in pairs if result.verdict is BulkVerdict.UNAVAILABLE
        }
        again = [one for one, result in pairs if result.verdict.is_temporary]
        pause = self._budget.pause() if again else None
        for one, result in pairs:
            if pause is None or not result.verdict.is_temporary:
                self._results[one.ordinal] = self._final(one, result)
        if pause is not None:
            self._waiting.extendleft(reversed(again))
        if len(again) < len(pairs):
            self._budget.reset()
        # What is sent again goes alone, before anything that follows it in a stream.
        self._batch_max = min(BATCH_MAX, self._batch_max * 2) if pause is None else len(again)
        return pause or 0.0

    def reject_batch(self, error: InvalidArgument) -> None:
        """Record that the last request was rejected because of some intent in it."""
        self._note_unanswered()
        if len(self._batch) == 1:
            self._reject(self._batch[0].ordinal, error)
            return
        self._waiting.extendleft(reversed(self._batch))
        self._batch_max = len(self._batch) // 2

    def _note_unanswered(self) -> None:
        if self._request is not None and self._request.maybe_written:
            self._maybe_written |= {one.ordinal for one in self._batch}

    def _final(self, one: _Entry, result: BulkResult) -> BulkResult:
        if one.ordinal in self._maybe_written and result.verdict.is_temporary:
            problem = key_advice(one.key)
            if result.verdict is not BulkVerdict.UNAVAILABLE:
                problem = f"An earlier try got no answer, and the last one was rejected. {problem}"
            result = replace(result, verdict=BulkVerdict.UNAVAILABLE, problem=problem)
        return replace(result, ordinal=one.ordinal)

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
            try:
                # A generated key stays the same however often the intent is sent.
                key = key_of(new)
                return _Entry(ordinal, key, intent_json(new, key), new.trace_context)
            except InvalidArgument as error:
                self._reject(ordinal, error)
        return None

    def _reject(self, ordinal: int, error: InvalidArgument) -> None:
        self._results[ordinal] = BulkResult(
            ordinal=ordinal, verdict=BulkVerdict.INVALID, intent_id=None, problem=str(error)
        )

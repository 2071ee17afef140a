"""Handing in many intents: in batches that the API takes, each again until there is a verdict.

What is refused for a moment (its queue is full, the database is away) is handed in again before
anything that follows, so that the order inside a stream stays the order in which it was given. What
makes a whole batch unreadable is found by halves, so that one intent does not fail its neighbours.
What was sent once without an answer is never said to be refused because a queue is full: nobody
knows that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from leasehold.client.requests import enqueue_batch, entry, keyed, safe_with
from leasehold.client.responses import Handed, HandedVerdict
from leasehold.client.retry import Patience, Tries
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
    text: bytes
    trace_context: str | None


class Handing:
    """One call of enqueue_many: make each of next_tries(), and tell what came of it."""

    def __init__(self, intents: Iterable[NewIntent], patience_seconds: float) -> None:
        self._intents = enumerate(intents, start=1)
        self._patience_seconds = patience_seconds
        self._patience = Patience(patience_seconds)
        self._verdicts: dict[int, Handed] = {}
        self._waiting: deque[_Entry] = deque()
        self._batch: list[_Entry] = []
        self._tries: Tries[tuple[Handed, ...]] | None = None
        # Those that may have been written without our knowing.
        self._unknown: set[int] = set()
        # Less after a batch that was not taken whole.
        self._most = BATCH_MAX

    @property
    def verdicts(self) -> tuple[Handed, ...]:
        """Give one verdict for each intent, in their order."""
        return tuple(self._verdicts[ordinal] for ordinal in sorted(self._verdicts))

    def next_tries(self) -> Tries[tuple[Handed, ...]] | None:
        """Give the next call to make; None when every intent has its verdict."""
        self._batch = self._take()
        if not self._batch:
            return None
        self._tries = Tries(
            enqueue_batch([one.text for one in self._batch], self._batch[0].trace_context),
            Patience(self._patience_seconds),
            was_unknown=any(one.ordinal in self._unknown for one in self._batch),
        )
        return self._tries

    def saw(self, verdicts: tuple[Handed, ...]) -> float:
        """Take the verdicts on the last call, and give the pause before the next one."""
        if len(verdicts) != len(self._batch):
            raise ApiError(
                f"the API gave {len(verdicts)} verdicts on a batch of {len(self._batch)} intents"
            )
        self._remember()
        told = list(zip(self._batch, verdicts, strict=True))
        self._unknown |= {
            one.ordinal for one, verdict in told if verdict.verdict is HandedVerdict.UNAVAILABLE
        }
        again = [one for one, verdict in told if verdict.verdict.is_passing]
        pause = self._patience.pause() if again else None
        for one, verdict in told:
            if pause is None or not verdict.verdict.is_passing:
                self._verdicts[one.ordinal] = self._final(one, verdict)
        if pause is not None:
            self._waiting.extendleft(reversed(again))
        if len(again) < len(told):
            self._patience.renew()
        # Those alone, before anything that follows them in a stream.
        self._most = min(BATCH_MAX, self._most * 2) if pause is None else len(again)
        return pause or 0.0

    def refused(self, error: InvalidArgument) -> None:
        """Take it that the last call was refused as a whole, because of something in it."""
        self._remember()
        if len(self._batch) == 1:
            self._refuse(self._batch[0].ordinal, error)
            return
        self._waiting.extendleft(reversed(self._batch))
        self._most = len(self._batch) // 2

    def _remember(self) -> None:
        if self._tries is not None and self._tries.is_unknown:
            self._unknown |= {one.ordinal for one in self._batch}

    def _final(self, one: _Entry, verdict: Handed) -> Handed:
        """Give the verdict that stays, after all that came before it."""
        if one.ordinal in self._unknown and verdict.verdict.is_passing:
            told = f"nothing is known of it: {safe_with(one.key)}"
            if verdict.verdict is not HandedVerdict.UNAVAILABLE:
                told = f"an earlier try was not answered, and the last one was refused; {told}"
            verdict = replace(verdict, verdict=HandedVerdict.UNAVAILABLE, problem=told)
        return replace(verdict, ordinal=one.ordinal)

    def _take(self) -> list[_Entry]:
        batch: list[_Entry] = []
        size = 0
        while len(batch) < self._most:
            one = self._waiting.popleft() if self._waiting else self._read()
            if one is None:
                break
            size += len(one.text)
            fits = (
                size <= BATCH_BYTES_MAX and one.trace_context == (batch or [one])[0].trace_context
            )
            if batch and not fits:
                self._waiting.appendleft(one)
                break
            batch.append(one)
        return batch

    def _read(self) -> _Entry | None:
        """Read the next intent that can be written as JSON; the others have their verdict."""
        for ordinal, new in self._intents:
            try:
                # Its key is made here, once: however often it is sent, it is the same intent.
                key = keyed(new)
                return _Entry(ordinal, key, entry(new, key), new.trace_context)
            except InvalidArgument as error:
                self._refuse(ordinal, error)
        return None

    def _refuse(self, ordinal: int, error: InvalidArgument) -> None:
        self._verdicts[ordinal] = Handed(
            ordinal=ordinal, verdict=HandedVerdict.INVALID, intent_id=None, problem=str(error)
        )

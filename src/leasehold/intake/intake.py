"""Accepting intents, each call in a transaction of its own: one call, many callers.

To enqueue together with your own writes, use leasehold.intake.transactional instead.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from leasehold.domain.errors import AccessDenied, IdempotencyConflict, InvalidArgument
from leasehold.domain.intent import as_intent
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.intake.notify import Wakeups
from leasehold.intake.validation import BATCH_MAX, UNREADABLE, Asked, accepted_id
from leasehold.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Unpack

    from leasehold.domain.intent import IntentId, IntentOptions, NewIntent
    from leasehold.store.postgres.pool import PoolSettings
    from leasehold.store.protocol import IngestStore
    from leasehold.store.rows import Enqueued


class Intake:
    """Hands intents in: `async with Intake.connected(database_url) as intake`, or on a store that
    is open already `async with Intake(store) as intake`.
    """

    def __init__(self, store: IngestStore, *, notify: bool = True) -> None:
        self._store = store
        self._wakeups = Wakeups(store) if notify else None

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, database_url: str, settings: PoolSettings | None = None, *, notify: bool = True
    ) -> AsyncGenerator[Self]:
        """Open one with a pool of its own. The login needs the role leasehold_ingest."""
        async with PostgresStore(database_url, settings) as store, cls(store, notify=notify) as one:
            yield one

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._wakeups is not None:
            await self._wakeups.close()

    async def enqueue(
        self,
        intent: NewIntent | str,
        payload: Any = None,  # noqa: ANN401 (any JSON)
        **options: Unpack[IntentOptions],
    ) -> IntentId:
        """Accept one intent; when this returns it is committed.

        The same key with the same payload gives the first intent's id again. Raises
        IdempotencyConflict for another payload, UnknownTarget, InvalidArgument; after
        DatabaseUnavailable nothing is known, and with a key it is safe to try again.
        """
        new = as_intent(intent, payload, **options)
        wakes = self._wakeups is not None and not new.delay_seconds and self._wakeups.may_travel()
        if wakes or (isinstance(intent, str) and not options):
            intent_id = await self._enqueue_alone(new, wakes=wakes)
            if intent_id is not None:
                return intent_id
        [answer] = await self.enqueue_many([new])
        return accepted_id(new, answer)

    async def enqueue_many(
        self, intents: Iterable[NewIntent], *, batch_size: int = BATCH_MAX
    ) -> list[Enqueued]:
        """Accept any number of intents; one verdict each, in their order, `ordinal` from 1.

        Each batch is a call and a transaction: when one fails, those before it are committed. With
        idempotency keys it is safe to hand everything in again.
        """
        answers: list[Enqueued] = []
        for batch in _batches(intents, batch_size):
            found = await self._enqueue(batch)
            if self._wakeups is not None:
                self._wakeups.wake(_due_targets(batch, found), len(batch))
            before = len(answers)
            answers += (
                [one._replace(ordinal=before + one.ordinal) for one in found] if before else found
            )
        return answers

    async def _enqueue_alone(self, new: NewIntent, *, wakes: bool) -> IntentId | None:
        """Take the short way. None: it was refused, with or for its wake-up; the other way says
        why, if it is refused there too.
        """
        try:
            intent_id = await self._store.enqueue_intent(new, wakes=wakes)
        except (*UNREADABLE, IdempotencyConflict, AccessDenied):
            return None
        if self._wakeups is not None and not wakes and not new.delay_seconds:
            self._wakeups.wake([new.target])
        return intent_id

    async def _enqueue(self, batch: Sequence[NewIntent]) -> list[Enqueued]:
        try:
            return await self._store.enqueue_intents(batch)
        except UNREADABLE:
            asked = Asked(batch)
            if not asked.has_problems:
                raise
        return asked.answered(
            await self._store.enqueue_intents(asked.readable) if asked.readable else []
        )


def _batches(intents: Iterable[NewIntent], batch_size: int) -> Iterator[list[NewIntent]]:
    if not 1 <= batch_size <= BATCH_MAX:
        raise InvalidArgument(f"batch_size is {batch_size}, but must be from 1 to {BATCH_MAX}")
    waiting = iter(intents)
    while batch := list(islice(waiting, batch_size)):
        yield batch


def _due_targets(batch: Sequence[NewIntent], answers: Sequence[Enqueued]) -> set[str]:
    """Say whom to wake: whoever got something new that is not asked for later."""
    return {
        new.target
        for new, answer in zip(batch, answers, strict=True)
        if answer.verdict is EnqueueVerdict.ACCEPTED and not new.delay_seconds
    }

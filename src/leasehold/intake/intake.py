"""Intake: enqueues intents, each call in a transaction of its own.

To enqueue together with your own writes, use leasehold.intake.transactional instead.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from leasehold.domain.errors import AccessDenied, IdempotencyConflict, InvalidArgument
from leasehold.domain.intent import as_intent
from leasehold.intake.notify import Notifications, due_targets
from leasehold.intake.validation import BATCH_MAX, INVALID_VALUE, CheckedBatch, accepted_id
from leasehold.store.database import database_at

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
    from typing import Unpack

    from leasehold.domain.intent import IntentId, IntentOptions, NewIntent
    from leasehold.store.pool_settings import PoolSettings
    from leasehold.store.protocol import IngestStore
    from leasehold.store.rows import Enqueued


class Intake:
    """Enqueues intents: `async with Intake.connected(database_url) as intake`.

    `async with Intake(store) as intake` uses a store that is open already.
    """

    def __init__(self, store: IngestStore, *, notify: bool = True) -> None:
        self._store = store
        self._notifications = Notifications(store) if notify else None

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, database_url: str, settings: PoolSettings | None = None, *, notify: bool = True
    ) -> AsyncGenerator[Self]:
        """Open an intake with its own pool. The login needs the role leasehold_ingest."""
        async with (
            database_at(database_url, settings) as database,
            cls(database.store, notify=notify) as one,
        ):
            yield one

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._notifications is not None:
            await self._notifications.close()

    async def enqueue(
        self,
        intent: NewIntent | str,
        payload: Any = None,  # noqa: ANN401 (any JSON)
        **options: Unpack[IntentOptions],
    ) -> IntentId:
        """Enqueue one intent. It is committed when this returns.

        The same key with the same payload and stream returns the id of the first intent. Raises
        IdempotencyConflict for another payload or stream, UnknownTarget, ContentTooLarge or
        another InvalidArgument. After
        DatabaseUnavailable the outcome is unknown: retry with the same idempotency key.
        """
        new = as_intent(intent, payload, **options)
        notifications = None if new.delay_seconds else self._notifications
        inline = notifications is not None and notifications.may_be_inline()
        try:
            intent_id = await self._store.enqueue_intent(new, wakes=inline)
        except (*INVALID_VALUE, IdempotencyConflict, AccessDenied):
            # The intent or its notification was refused. A batch of one tells why, per intent.
            [result] = await self.enqueue_many([new])
            return accepted_id(new, result)
        if notifications is not None and not inline:
            notifications.add([new.target])
        return intent_id

    async def enqueue_many(
        self, intents: Iterable[NewIntent], *, batch_size: int = BATCH_MAX
    ) -> list[Enqueued]:
        """Enqueue any number of intents. Returns one result each, in order, `ordinal` from 1.

        Each batch is one transaction: if one fails, those before it are committed. With idempotency
        keys you can enqueue everything again.
        """
        results: list[Enqueued] = []
        for batch in _batches(intents, batch_size):
            found = await self._enqueue_batch(batch)
            if self._notifications is not None:
                self._notifications.add(due_targets(batch, found), len(batch))
            before = len(results)
            results += (
                [one._replace(ordinal=before + one.ordinal) for one in found] if before else found
            )
        return results

    async def _enqueue_batch(self, batch: Sequence[NewIntent]) -> list[Enqueued]:
        try:
            return await self._store.enqueue_intents(batch)
        except INVALID_VALUE:
            checked = CheckedBatch(batch)
            if not checked.has_problems:
                raise
        return checked.results(
            await self._store.enqueue_intents(checked.sendable) if checked.sendable else []
        )


def _batches(intents: Iterable[NewIntent], batch_size: int) -> Iterator[list[NewIntent]]:
    if not 1 <= batch_size <= BATCH_MAX:
        raise InvalidArgument(f"batch_size is {batch_size}, but must be from 1 to {BATCH_MAX}")
    remaining = iter(intents)
    while batch := list(islice(remaining, batch_size)):
        yield batch

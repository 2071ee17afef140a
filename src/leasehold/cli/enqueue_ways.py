"""The two ways in for `leasehold enqueue`: the database, or the HTTP API; with the same answers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from leasehold.client.responses import Handed, HandedVerdict, Receipt
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.intake.validation import accepted_id, conflict_problem

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from leasehold.cli.place import Place
    from leasehold.domain.intent import NewIntent
    from leasehold.intake.intake import Intake
    from leasehold.store.rows import Enqueued


class Way(Protocol):
    """A way in. AsyncClient is one."""

    async def enqueue(self, intent: NewIntent) -> Receipt:
        """Hand one intent in, or raise why it was refused."""
        ...

    async def enqueue_many(self, intents: Sequence[NewIntent]) -> Sequence[Handed]:
        """Hand many in, with a verdict for each."""
        ...


@asynccontextmanager
async def opened_way(place: Place) -> AsyncGenerator[Way]:
    """Open the database or the API."""
    if place.is_api:
        async with place.client() as client:
            yield client
    else:
        from leasehold.intake.intake import Intake  # only who needs it waits for it

        settings = place.settings
        url = settings.required_database_url()
        async with Intake.connected(url, settings.pool()) as intake:
            yield _Database(intake)


class _Database:
    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def enqueue(self, intent: NewIntent) -> Receipt:
        [answer] = await self._intake.enqueue_many([intent])
        is_new = answer.verdict is EnqueueVerdict.ACCEPTED
        return Receipt(intent_id=accepted_id(intent, answer), is_new=is_new, intent=None)

    async def enqueue_many(self, intents: Sequence[NewIntent]) -> Sequence[Handed]:
        answers = await self._intake.enqueue_many(intents)
        return [_handed(new, answer) for new, answer in zip(intents, answers, strict=True)]


def _handed(new: NewIntent, answer: Enqueued) -> Handed:
    is_conflict = answer.verdict is EnqueueVerdict.CONFLICT
    return Handed(
        ordinal=answer.ordinal,
        verdict=HandedVerdict(answer.verdict),
        intent_id=answer.intent_id,
        problem=conflict_problem(new, answer) if is_conflict else answer.problem,
    )

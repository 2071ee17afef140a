"""Enqueuing: everything that the role leasehold_ingest may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.domain.intent import IntentId
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.store.postgres.json_arguments import (
    entry_argument,
    intent_entry,
    intents_argument,
    json_text,
)
from leasehold.store.postgres.query import Query, members_by_text, tuple_maker
from leasehold.store.rows import Enqueued

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.rows import RowMaker

    from leasehold.domain.intent import NewIntent

_ENQUEUE_PLAIN = "SELECT leasehold.enqueue_intent(%s, %s::jsonb)"
_ENQUEUE = "SELECT leasehold.enqueue_intent(%s, %s::jsonb, %s, %s::jsonb)"
_AND_WAKE = ", leasehold.notify_targets(%s::text[])"
_VERDICTS = members_by_text(EnqueueVerdict)


def _enqueued(_cursor: object) -> RowMaker[Enqueued]:
    """Make rows from the columns of Enqueued, in order."""
    whole = tuple_maker(Enqueued)

    def make(row: Sequence[Any]) -> Enqueued:
        ordinal, verdict, intent_id, problem = row
        return whole((ordinal, _VERDICTS[verdict], intent_id, problem))

    return make


class PostgresIngest:
    """IngestStore on PostgreSQL."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def enqueue_intents(self, intents: Sequence[NewIntent]) -> list[Enqueued]:
        return await self._query.rows(
            _enqueued,
            "SELECT ordinal, verdict, intent_id, problem"
            "  FROM leasehold.enqueue_intents(%s::jsonb) ORDER BY ordinal",
            intents_argument(intents),
        )

    async def enqueue_intent(self, new: NewIntent, *, wakes: bool = False) -> IntentId:
        """Accept one intent, or raise IdempotencyConflict or InvalidArgument.

        With `wakes`, the same transaction also wakes the executors of its target.
        """
        options = intent_entry(new)
        options.pop("target")
        payload, key = options.pop("payload", None), options.pop("idempotency_key", None)
        statement = _ENQUEUE_PLAIN
        arguments: list[object] = [new.target, None if payload is None else json_text(payload)]
        if options or key is not None:
            statement = _ENQUEUE
            arguments += [key, entry_argument(options)]
        if wakes:
            statement += _AND_WAKE
            arguments.append([new.target])
        return IntentId(await self._query.value(statement, *arguments))

    async def notify_targets(self, targets: Sequence[str]) -> None:
        """Wake the executors of these targets: a hint, after the commits of many enqueues."""
        # It writes nothing that a crash could lose, so the commit does not wait for the disk.
        await self._query.value(
            "SELECT leasehold.notify_targets(%s::text[])"
            "  FROM set_config('synchronous_commit', 'off', true)",
            list(targets),
        )

"""The ledger in the order in which its rows become final.

A cursor is the transaction of a row, its intent and its attempt, as a text of fixed width.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from uuid import UUID

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import AttemptState, IntentId
from leasehold.store.postgres.query import rows_of
from leasehold.store.reader_rows import Attempt, EventCursor, LedgerEvent

if TYPE_CHECKING:
    from leasehold.store.postgres.query import Query

# Of fixed width, so that texts have the order of events; as long as a bigint and an integer.
_CURSOR = re.compile(r"([0-9]{18})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([0-9]{9})")
# Before and after every intent id.
_FIRST_ID = IntentId(UUID(int=0))
_LAST_ID = IntentId(UUID(int=2**128 - 1))


class PostgresEvents:
    """EventStore on PostgreSQL."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def read_events(self, after: EventCursor | None, limit: int) -> list[LedgerEvent]:
        """Read final ledger rows after a cursor; None starts at the beginning."""
        return await self._query.rows(
            rows_of(_event, state=AttemptState),
            "SELECT * FROM leasehold.read_events(%s, %s, %s, %s)",
            *((0, _FIRST_ID, 0) if after is None else read_cursor(after)),
            limit,
        )

    async def newest_event(self) -> EventCursor:
        newest: int = await self._query.value(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1"
        )
        return event_cursor(newest, _LAST_ID, 0)


def event_cursor(transaction: int, intent_id: IntentId, attempt_no: int) -> EventCursor:
    """Write a cursor."""
    return EventCursor(f"{transaction:018}-{intent_id}-{attempt_no:09}")


def read_cursor(cursor: EventCursor) -> tuple[int, IntentId, int]:
    """Read a cursor, or raise InvalidArgument."""
    parts = _CURSOR.fullmatch(cursor)
    if parts is None:
        raise InvalidArgument("the cursor must be the cursor of an event")
    transaction, intent_id, attempt_no = parts.groups()
    return int(transaction), IntentId(UUID(intent_id)), int(attempt_no)


def _event(transaction_id: int, target: str | None, **columns: Any) -> LedgerEvent:  # noqa: ANN401
    attempt = Attempt(**columns)
    cursor = event_cursor(transaction_id, attempt.intent_id, attempt.attempt_no)
    return LedgerEvent(cursor=cursor, target=target, attempt=attempt)

"""Looking for intents whose ids are not known: newest first, a bounded piece at a time.

Unfinished intents are found in the hot table, however old they are; what that costs grows with what
is unfinished. For everything else there is only the order of acceptance to walk along (an index for
each question would be paid for by every enqueue), so one call looks at a bounded window of intents
and says how far it came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from leasehold.domain.intent import IntentId
from leasehold.store.postgres.calls import Calls, first_column

if TYPE_CHECKING:
    from leasehold.domain.intent import Status

WINDOW = 10_000
_FIRST = IntentId(UUID(int=0))
_LAST = IntentId(UUID(int=2**128 - 1))


async def find_intents(
    calls: Calls,
    status: Status | None,
    target: str | None,
    before: IntentId | None,
    limit: int,
    window: int = WINDOW,
) -> tuple[list[IntentId], IntentId | None]:
    """Find ids, newest first; and from where on older ones were not looked at, if there are."""
    before = before or _LAST
    if status is not None and not status.is_final:
        return await _find_unfinished(calls, status, target, before, limit), None
    floor = await _window_floor(calls, before, window)
    found = await _find_in_window(calls, status, target, before, floor or _FIRST, limit)
    return found, floor if len(found) < limit else None


async def _window_floor(calls: Calls, before: IntentId, window: int) -> IntentId | None:
    found = await calls.rows(
        first_column,
        "SELECT intent_id FROM leasehold.intents WHERE intent_id < %s"
        " ORDER BY intent_id DESC OFFSET %s LIMIT 1",
        before,
        window - 1,
    )
    return found[0] if found else None


async def _find_in_window(
    calls: Calls,
    status: Status | None,
    target: str | None,
    before: IntentId,
    floor: IntentId,
    limit: int,
) -> list[IntentId]:
    return await calls.rows(
        first_column,
        "SELECT intent_id FROM leasehold.intent_status WHERE intent_id >= %s AND intent_id < %s"
        "   AND (%s::text IS NULL OR status = %s) AND (%s::text IS NULL OR target = %s)"
        " ORDER BY intent_id DESC LIMIT %s",
        floor,
        before,
        status,
        status,
        target,
        target,
        limit,
    )


async def _find_unfinished(
    calls: Calls, status: Status, target: str | None, before: IntentId, limit: int
) -> list[IntentId]:
    return await calls.rows(
        first_column,
        "SELECT intent_id FROM leasehold.outbox_pending"
        " WHERE intent_id < %s AND (%s::text IS NULL OR target = %s)"
        "   AND CASE WHEN due_at = 'infinity' THEN 'held'"
        "            WHEN last_state = 'IN_DOUBT' THEN 'in_doubt'"
        "            WHEN last_state = 'SUBMITTED' THEN 'confirming'"
        "            ELSE 'pending' END = %s"
        " ORDER BY intent_id DESC LIMIT %s",
        before,
        target,
        target,
        status,
        limit,
    )

"""Fault points: the places between two actions where a test can kill, stop or delay an instance.

In production nobody uses them: `NO_FAULTS` does nothing, and no setting replaces it. One test of
the engine visits every member.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from leasehold.domain.outcome import Outcome

Answer = TypeVar("Answer")


class FaultPoint(StrEnum):
    """Where the instance is."""

    AFTER_REBUILD = "after_rebuild"  # reached by leaders only
    DURING_CLAIM = "during_claim"  # not reached by leaders
    AFTER_CLAIM = "after_claim"
    BEFORE_BEGIN = "before_begin"
    AFTER_BEGIN = "after_begin"
    DURING_CALL = "during_call"
    BEFORE_LOOKUP = "before_lookup"
    AFTER_CALL_BEFORE_COMPLETE = "after_call_before_complete"
    DURING_COMPLETE = "during_complete"
    AFTER_COMPLETE = "after_complete"
    DURING_RENEWAL = "during_renewal"  # reached by holders of streams only


class Faults(Protocol):
    """What is called at each fault point."""

    async def reach(self, point: FaultPoint) -> None:
        """Pass a point."""
        ...


class _NoFaults:
    async def reach(self, point: FaultPoint) -> None:
        """Do nothing."""


NO_FAULTS: Faults = _NoFaults()


async def while_reaching(
    point: FaultPoint, request: Coroutine[Any, Any, Answer], faults: Faults
) -> Answer:
    """Make a request to the database, and pass a point before its answer is looked at."""
    if faults is NO_FAULTS:
        return await request
    answer, _ = await asyncio.gather(request, faults.reach(point))
    return answer


async def with_faults(call: Coroutine[Any, Any, Outcome], faults: Faults) -> Outcome:
    """Make a call with its fault points."""
    if faults is NO_FAULTS:
        return await call
    outcome, _ = await asyncio.gather(call, faults.reach(FaultPoint.DURING_CALL))
    await faults.reach(FaultPoint.AFTER_CALL_BEFORE_COMPLETE)
    return outcome

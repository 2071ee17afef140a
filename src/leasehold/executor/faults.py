"""The places where a test can stop, kill or hold up a worker: each is one where it could die.

In production nobody stands at them: `NO_FAULTS` does nothing, and nothing that a user can set puts
another in its place. One test of the engine visits every member.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class FaultPoint(StrEnum):
    """Between which two things the worker is, when it gets here."""

    AFTER_REBUILD = "after_rebuild"  # of a leader alone
    AFTER_CLAIM = "after_claim"
    BEFORE_BEGIN = "before_begin"
    AFTER_BEGIN = "after_begin"
    DURING_CALL = "during_call"
    AFTER_CALL_BEFORE_COMPLETE = "after_call_before_complete"
    DURING_COMPLETE = "during_complete"
    AFTER_COMPLETE = "after_complete"


class Faults(Protocol):
    """Whoever stands at the points."""

    async def reach(self, point: FaultPoint) -> None:
        """Come by here."""
        ...


class _NoFaults:
    async def reach(self, point: FaultPoint) -> None:
        """Do nothing."""


NO_FAULTS: Faults = _NoFaults()

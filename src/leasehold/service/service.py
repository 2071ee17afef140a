"""A background service is one step that says how long to pause before the next.

Only `Loop` sleeps, logs failures, backs off and stops, so no service contains a loop of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class Pause:
    """How long the loop sleeps before the next step, unless the service is woken."""

    seconds: float = 0.0


AGAIN = Pause(0.0)


class Service(Protocol):
    """What a Loop runs. Set `wake` to end the pause early."""

    name: str
    wake: asyncio.Event

    async def step(self) -> Pause:
        """Do the work that is there now."""
        ...


@runtime_checkable
class PacedService(Service, Protocol):
    """A service that is never retried sooner than after `retry_seconds`.

    For steps that load the database: a failure must not make them more frequent.
    """

    retry_seconds: float

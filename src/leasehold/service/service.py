"""What runs for as long as an instance does: a service is a step, and says when to take the next.

Only `service/loop.py` sleeps, logs failures, backs off and stops; so no service has a loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class Pause:
    """How long nothing needs to be done, unless the service is woken before."""

    seconds: float = 0.0


AGAIN = Pause(0.0)


class Service(Protocol):
    """One step at a time. `wake` ends the pause; whoever has news for the service sets it."""

    name: str
    wake: asyncio.Event

    async def step(self) -> Pause:
        """Do what there is to do now."""
        ...

"""The event loop of our own processes: uvloop where it is installed, else asyncio's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

try:
    from uvloop import new_event_loop
except ImportError:  # another platform, or another Python
    from asyncio import new_event_loop

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end, as asyncio.run does."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)

"""How our own processes run: on uvloop where it is installed, and with rare garbage collections."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

try:
    from uvloop import new_event_loop
except ImportError:  # another platform, or another Python
    from asyncio import new_event_loop

# Python's own is 700, and each call in flight is dozens of objects.
_NEW_OBJECTS_PER_COLLECTION = 50_000

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end, as asyncio.run does, in a process that is for this alone."""
    collect_rarely()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def collect_rarely() -> None:
    """Look for cycles of garbage less often: nearly all that we make is gone without. At Python's
    own setting a busy executor spends a tenth of its time on looking. What is there already, all
    the modules, is left out from now on.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])

"""The event loop of our own processes: asyncio's own, and fewer garbage collections.

Not uvloop: it sends at the end of an iteration, past the sockets that check the lease right before
they send. docs/decisions/0016-bytes-leave-under-trust.md has the measurements.
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

# Python's default is 700, and each call in flight allocates dozens of objects.
_NEW_OBJECTS_PER_COLLECTION = 50_000

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine like asyncio.run, in a process that does nothing else."""
    collect_rarely()
    # Also if a library has set a policy with another loop.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(main)


def collect_rarely() -> None:
    """Run the cyclic garbage collector less often, and never over the objects that exist now.

    Nearly all our objects are freed by their reference counts. With Python's default, a busy
    executor spends a tenth of its time in the collector.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])

"""A bounded await for calls to the database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from leasehold.domain.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Coroutine

Result = TypeVar("Result")


async def within_deadline(seconds: float, call: Coroutine[Any, Any, Result], what: str) -> Result:
    """Return the result of a call, or raise DatabaseUnavailable when the time is up.

    The call is cancelled, but not awaited: cancelling over a network that drops packets takes
    seconds, and the caller's lease may not last that long.
    """
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_retrieve_exception)
    if not done:
        raise DatabaseUnavailable(f"{what} did not finish within {seconds:.3g} seconds")
    return task.result()


def _retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an abandoned call, or asyncio logs that nobody did."""
    if not task.cancelled():
        task.exception()

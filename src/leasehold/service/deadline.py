"""Waiting for the database no longer than an answer is good for, whatever the driver is doing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from leasehold.domain.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Coroutine

Answer = TypeVar("Answer")


async def answered_within(seconds: float, call: Coroutine[Any, Any, Answer], what: str) -> Answer:
    """Give the answer of a call, or raise DatabaseUnavailable when the time is over.

    To cancel a call over a network that swallows packets takes seconds, so nobody waits for it.
    """
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_forget)
    if not done:
        raise DatabaseUnavailable(f"{what} was not answered within {seconds:.3g} seconds")
    return task.result()


def _forget(task: asyncio.Future[Any]) -> None:
    """Look at how a call ended that nobody waits for, or asyncio complains that nobody did."""
    if not task.cancelled():
        task.exception()

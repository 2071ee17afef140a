"""Something that is done beside the work, one at a time, and whose result is asked for later."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Result = TypeVar("Result")


class Beside(Generic[Result]):
    """What was begun last; `told` hears when it is done."""

    def __init__(self, told: Callable[[], None]) -> None:
        self._told = told
        self._task: asyncio.Task[Result] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether something was begun whose result nobody has yet; then nothing else can be."""
        return self._task is not None

    @property
    def is_done(self) -> bool:
        """Whether a result is here to be asked for."""
        return self._task is not None and self._task.done()

    def begin(self, work: Coroutine[Any, Any, Result]) -> None:
        """Begin; returns at once."""
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(self._is_over)

    async def result(self) -> Result | None:
        """Give the result once it is there, or raise what was raised; None, where nothing was
        begun.
        """
        task = self._task
        try:
            return None if task is None else await task
        finally:
            if self._task is task:
                self._task = None

    def _is_over(self, task: asyncio.Task[Result]) -> None:
        # Who asks is told of an error; after the term nobody does.
        if not task.cancelled():
            task.exception()
        self._told()

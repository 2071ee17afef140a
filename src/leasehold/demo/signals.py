"""How `leasehold demo` handles SIGINT, SIGTERM and SIGHUP.

| phase | a signal |
|---|---|
| before the event loop | raises KeyboardInterrupt |
| while the event loop is created | is deferred: that cannot be interrupted cleanly |
| while the demo runs | calls a function in the event loop, each time |
| at the end | is ignored: stopping the database takes a bounded time |
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType


class Interrupts:
    """Installs the signal handler; must be created in the main thread."""

    def __init__(self) -> None:
        self._notify: Callable[[], None] | None = None
        self._is_ignoring = False
        self._is_deferring = False
        self._is_deferred = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)
        # With nohup, the demo must outlive its terminal.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._receive)

    def defer(self) -> None:
        """Defer signals from now on, until there is a function to call."""
        self._is_deferring = True

    @contextmanager
    def calling(self, function: Callable[[], None]) -> Generator[None]:
        """Call `function` in the running event loop for each signal; afterwards ignore signals."""
        loop = asyncio.get_running_loop()
        self._notify = lambda: loop.call_soon_threadsafe(function) and None
        if self._is_deferred:
            self._notify()
        try:
            yield
        finally:
            self._is_ignoring = True
            self._notify = None

    def interrupt(self) -> None:
        """Act as if a signal had arrived."""
        if self._is_ignoring:
            return
        if self._notify is not None:
            self._notify()
            return
        if self._is_deferring:
            self._is_deferred = True
            return
        self._is_ignoring = True
        raise KeyboardInterrupt

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.interrupt()

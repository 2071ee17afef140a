"""Ctrl-C and its kin, from the first moment of `leasehold demo` to the last.

Before there is anything to stop in order, a signal interrupts whatever runs. While an event loop is
being made it is kept: that cannot be interrupted cleanly. While the demo plays, whoever asked is
told, each time. At the end it is ignored: half-stopping a database helps nobody,
and that stop is bounded.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType


class Interruption:
    """The one handler of SIGINT, SIGTERM and SIGHUP; belongs to the main thread."""

    def __init__(self) -> None:
        self._tell: Callable[[], None] | None = None
        self._is_closing = False
        self._is_keeping = False
        self._is_kept = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)
        # Whoever started us with nohup wants us to outlive the terminal.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._receive)

    def keep(self) -> None:
        """Keep signals from now on, until somebody can be told."""
        self._is_keeping = True

    @contextmanager
    def told(self, tell: Callable[[], None]) -> Generator[None]:
        """Have `tell` called in the running event loop for each signal; ignore those after."""
        loop = asyncio.get_running_loop()
        self._tell = lambda: loop.call_soon_threadsafe(tell) and None
        if self._is_kept:
            self._tell()
        try:
            yield
        finally:
            self._is_closing = True
            self._tell = None

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.request()

    def request(self) -> None:
        """Do as after a signal; for whoever finds out that nobody is there any more."""
        if self._is_closing:
            return
        if self._tell is not None:
            self._tell()
            return
        if self._is_keeping:
            self._is_kept = True
            return
        self._is_closing = True
        raise KeyboardInterrupt

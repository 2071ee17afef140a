"""Signals: the first asks for an orderly end, the second is immediate; SIGHUP reloads."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_LOG = get_logger(__name__)
_STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_signals(stop: Callable[[], None], reload: Callable[[], None]) -> Generator[None]:
    """Call `stop` on the first SIGTERM or SIGINT, end the process on the second."""
    loop = asyncio.get_running_loop()
    seen: list[signal.Signals] = []

    def stopping(received: signal.Signals) -> None:
        seen.append(received)
        if len(seen) > 1:
            _LOG.warning("stopped_at_once", signal=received.name)
            # No clean-up of any kind: what is held expires, and the reaper recovers it.
            os._exit(128 + received)
        _LOG.info("stopping", signal=received.name)
        stop()

    for received in _STOPPING:
        loop.add_signal_handler(received, stopping, received)
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        for received in (*_STOPPING, signal.SIGHUP):
            loop.remove_signal_handler(received)

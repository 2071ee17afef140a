"""Signals: the first SIGTERM or SIGINT stops in order, the second at once; SIGHUP reloads."""

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
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_signals(stop: Callable[[], None], reload: Callable[[], None]) -> Generator[None]:
    """Call `stop` on the first SIGTERM or SIGINT, and exit on the second."""
    loop = asyncio.get_running_loop()
    seen: list[signal.Signals] = []

    def on_stop(received: signal.Signals) -> None:
        seen.append(received)
        if len(seen) > 1:
            _LOG.warning("stop_forced", signal=received.name)
            # No cleanup at all: leases expire, and the reaper recovers the work.
            os._exit(128 + received)
        _LOG.info("stop_requested", signal=received.name)
        stop()

    for received in _STOP_SIGNALS:
        loop.add_signal_handler(received, on_stop, received)
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        for received in (*_STOP_SIGNALS, signal.SIGHUP):
            loop.remove_signal_handler(received)

"""A process of ours: its event loop, its garbage collections and its signals.

- The event loop is asyncio's own, not uvloop, which sends at the end of an iteration, past the
  sockets that check the lease right before they send.
  docs/decisions/0016-bytes-leave-under-trust.md has the measurements.
- The first SIGTERM or SIGINT stops in order, the second at once; SIGHUP reloads. A stop in order
  has a time limit, whatever it waits for.
- An exit at once ends the process without `finally` and atexit. What must not be left behind even
  then is registered with `before_exit`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

# Python's default is 700, and each call in flight allocates dozens of objects.
_NEW_OBJECTS_PER_COLLECTION = 50_000
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_LOG = get_logger(__name__)
_clean_ups: list[Callable[[], None]] = []

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


@contextmanager
def before_exit(clean_up: Callable[[], None]) -> Generator[None]:
    """Call `clean_up` at the end of the block, also if `exit_now` ends the process there."""
    _clean_ups.append(clean_up)
    try:
        yield
    finally:
        _clean_ups.remove(clean_up)
        clean_up()


def exit_now(code: int) -> NoReturn:
    """End the process, whatever its tasks and threads do. Leases expire, and the reaper recovers
    the work.
    """
    try:
        for clean_up in reversed(_clean_ups):
            clean_up()
    except Exception as error:  # noqa: BLE001 (nothing may keep the process alive)
        _LOG.error("clean_up_failed", error=f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


@contextmanager
def on_signals(
    stop: Callable[[], None], reload: Callable[[], None], stop_seconds: Callable[[], float]
) -> Generator[None]:
    """Call `stop` on the first SIGTERM or SIGINT. Exit on the second, or if the process still runs
    `stop_seconds` after the first.
    """
    loop = asyncio.get_running_loop()
    seen: list[signal.Signals] = []

    def on_stop(received: signal.Signals) -> None:
        seen.append(received)
        if len(seen) > 1:
            _LOG.warning("stop_forced", signal=received.name)
            exit_now(128 + received)
        _LOG.info("stop_requested", signal=received.name)
        seconds = stop_seconds()
        # Not cancelled in the end: tasks that swallow their cancellation keep the loop running.
        loop.call_later(seconds, on_overdue, seconds)
        stop()

    def on_overdue(seconds: float) -> None:
        _LOG.error("stop_overdue", stop_seconds=seconds, advice="the reaper recovers the rest")
        exit_now(1)

    for received in _STOP_SIGNALS:
        loop.add_signal_handler(received, on_stop, received)
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        for received in (*_STOP_SIGNALS, signal.SIGHUP):
            loop.remove_signal_handler(received)

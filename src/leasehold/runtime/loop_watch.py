"""The loop watch: warns when one function keeps the event loop from running.

Meanwhile no call of any target goes on, and no lease is renewed. A thread looks, because the loop
itself cannot. It runs every few tenths of a second and costs a call nothing.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.gateway.python import function_of
from leasehold.observe.logs import get_logger
from leasehold.service.service import Pause

if TYPE_CHECKING:
    from types import FrameType

    from leasehold.observe.metrics import Metrics

# How long the loop may stand still without a warning.
BLOCKED_SECONDS = 0.5
_LOOK_SECONDS = 0.2

_LOG = get_logger(__name__)


class LoopWatch:
    """The service that shows that the loop runs, and the thread that checks it."""

    name = "loop watch"

    def __init__(self, worker_id: str, metrics: Metrics) -> None:
        self.wake = asyncio.Event()
        self._worker_id = worker_id
        self._metrics = metrics
        self._ran_at = 0.0
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    async def step(self) -> Pause:
        """Show that the loop runs."""
        self._ran_at = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._watch, args=[threading.get_ident()], name=self.name, daemon=True
            )
            self._thread.start()
        return Pause(_LOOK_SECONDS)

    def close(self) -> None:
        """End the thread."""
        self._closing.set()

    def _watch(self, loop_thread: int) -> None:
        reported = 0.0
        looked_at = time.monotonic()
        while not self._closing.wait(_LOOK_SECONDS):
            slept_since, looked_at = looked_at, time.monotonic()
            ran_at = self._ran_at
            if looked_at - slept_since > BLOCKED_SECONDS:
                reported = ran_at  # this thread stood still too: the whole process was paused
            elif looked_at - ran_at > _LOOK_SECONDS + BLOCKED_SECONDS and ran_at != reported:
                reported = ran_at
                frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  (documented)
                self._report(frames.get(loop_thread))

    def _report(self, frame: FrameType | None) -> None:
        self._metrics.loop_blocked()
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else None
        _LOG.warning(
            "loop_blocked",
            worker_id=self._worker_id,
            function=function_of(frame),
            place=place,
            longer_than_seconds=BLOCKED_SECONDS,
            advice="let it await, or make it a plain function, which runs in a thread",
        )

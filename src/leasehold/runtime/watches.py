"""The watches: services that submit nothing, and report through logs and metrics.

- The queue watch exports the state of the whole queue. Every instance reads the last count, which
  costs one row. One instance at a time counts: the database gives out the turns, and no turn comes
  sooner because a count has failed.
- The target watch says which targets this instance does not serve: its contract cannot be read,
  opened or served, or `--targets` does not name it. The intents of such a target wait in the
  database.
- The loop watch warns when one function keeps the event loop from running. Meanwhile no call of any
  target goes on, and no lease is renewed. A thread looks, because the loop itself cannot. It runs
  every few tenths of a second and costs a call nothing.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.gateway.python import function_of
from leasehold.observe.logs import get_logger
from leasehold.service.service import Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType

    from leasehold.domain.timing import Timings
    from leasehold.executor.targets import Targets
    from leasehold.observe.metrics import Metrics
    from leasehold.store.reader_protocol import WatchStore

QUEUE_SECONDS = 10.0
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


class QueueWatch:
    """The service that counts when it is its turn. Only started where metrics are served."""

    name = "queue watch"
    retry_seconds = QUEUE_SECONDS

    def __init__(self, store: WatchStore, metrics: Metrics) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._metrics = metrics

    async def step(self) -> Pause:
        """Count if a turn is due, and read the last count."""
        turn_no = await self._store.begin_watch_turn("counts")
        next_seconds = turn_no and await self._store.record_queue_counts(turn_no)
        self._metrics.supervisor(await self._store.read_supervisor())
        # A large queue is counted in several turns. Whoever has begun goes on.
        return Pause(next_seconds or QUEUE_SECONDS)


class TargetWatch:
    """The service that compares what is published with what is served. It reads no database."""

    name = "target watch"

    def __init__(
        self,
        targets: Targets,
        selected: Collection[str] | None,
        metrics: Metrics,
        timings: Callable[[], Timings],
    ) -> None:
        self.wake = asyncio.Event()
        self._targets = targets
        self._selected = selected
        self._metrics = metrics
        self._timings = timings
        self._served: set[str] = set()
        self._published: set[str] = set()
        self._unpublished: set[str] = set()
        self._is_empty = False

    async def step(self) -> Pause:
        """Set the metrics, and log what has changed."""
        published, served = self._targets.published, self._targets.names
        for target in self._served - served:
            self._metrics.forget_breaker(target)
        for target in self._published - published:
            self._metrics.forget_target(target)
        self._served, self._published = served, set(published)
        for target in published:
            self._metrics.target_served(target, is_served=target in served)
        self._report_unpublished(published)
        self._report_empty(is_empty=not served)
        return Pause(self._timings().contracts_seconds)

    def _report_unpublished(self, published: Collection[str]) -> None:
        unpublished = set(self._selected or ()) - set(published)
        for target in sorted(unpublished - self._unpublished):
            nearest = get_close_matches(target, published, n=1)
            advice = f"did you mean {nearest[0]}?" if nearest else "run `leasehold targets apply`"
            _LOG.warning("target_not_published", target=target, advice=advice)
        self._unpublished = unpublished

    def _report_empty(self, *, is_empty: bool) -> None:
        if is_empty and not self._is_empty:
            _LOG.warning("targets_missing", advice="this instance submits nothing until it has one")
        self._is_empty = is_empty

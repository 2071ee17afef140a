"""A worker that fails at a fault point: TEST_FAULT=<point>:<kill|stop|wait>.

With TEST_FAULT=<point>:stop:<seconds>, the process finds on waking that its machine was suspended
for so long. With TEST_FAULT=none:stop:<seconds>, it does so when it gets SIGUSR1: a test that stops
it from outside sends that before SIGCONT. So trust ends at a moment that the test knows.

At a point that comes while a request is made, the fault happens when the test has seen what it
waits for, and creates the file TEST_FAULT_SEEN.

Only this module reads these variables; `leasehold worker` does not.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from leasehold.cli.worker import run_worker
from leasehold.config import read_settings
from leasehold.executor.faults import NO_FAULTS, FaultPoint
from leasehold.observe.logs import get_logger
from leasehold.runtime.instance import Instance
from leasehold.runtime.process import run
from tests.support.suspended_machine import suspend

DURING_REQUEST = {FaultPoint.DURING_CLAIM, FaultPoint.DURING_CALL, FaultPoint.DURING_RENEWAL}

_LOG = get_logger(__name__)


class FaultInjector:
    """Kills, stops or blocks this process, once, when it reaches the fault point."""

    def __init__(self, point: str, action: str, seconds: float, seen: Path) -> None:
        self._point: FaultPoint | None = FaultPoint(point)
        self._action = action
        self._suspended_seconds = seconds
        self._seen = seen

    async def reach(self, point: FaultPoint) -> None:
        if point is not self._point:
            return
        if point in DURING_REQUEST:  # each of several requests waits, and the first one fails
            while not self._seen.exists():  # noqa: ASYNC110 (another process creates it)
                await asyncio.sleep(0.01)
            if self._point is None:
                return
        self._point = None
        _LOG.warning("fault", point=str(point), action=self._action)
        match self._action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
                suspend(self._suspended_seconds)
            case "wait":
                await asyncio.Event().wait()
            case action:
                raise ValueError(action)


if __name__ == "__main__":
    point, action, *more = os.environ["TEST_FAULT"].split(":")
    seconds = float(more[0]) if more else 0.0
    faults = NO_FAULTS
    if point == "none":
        signal.signal(signal.SIGUSR1, lambda *_: suspend(seconds))
    else:
        faults = FaultInjector(point, action, seconds, Path(os.environ["TEST_FAULT_SEEN"]))
    run(run_worker(read_settings, lambda given: Instance(given, faults=faults)))

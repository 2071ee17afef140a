"""A worker with somebody at one of its fault points: TEST_FAULT=<point>:<kill|stop|wait>.

Only here does a process listen to that variable; `leasehold worker` does not.
"""

from __future__ import annotations

import asyncio
import os
import signal

from leasehold.cli.worker import run_worker
from leasehold.config import read_settings
from leasehold.executor.faults import FaultPoint
from leasehold.observe.logs import get_logger
from leasehold.runtime import event_loop
from leasehold.runtime.instance import Instance

# For a request to leave before the worker does.
ON_ITS_WAY_SECONDS = 0.15

_LOG = get_logger(__name__)


class Saboteur:
    """Strikes once."""

    def __init__(self, told: str) -> None:
        point, _, self._deed = told.partition(":")
        self._point: FaultPoint | None = FaultPoint(point)

    async def reach(self, point: FaultPoint) -> None:
        if point is not self._point:
            return
        self._point = None
        if point in (FaultPoint.DURING_CALL, FaultPoint.DURING_COMPLETE):
            await asyncio.sleep(ON_ITS_WAY_SECONDS if point is FaultPoint.DURING_CALL else 0)
        _LOG.warning("fault", point=str(point), deed=self._deed)
        match self._deed:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "wait":
                await asyncio.Event().wait()
            case deed:
                raise ValueError(deed)


if __name__ == "__main__":
    saboteur = Saboteur(os.environ["TEST_FAULT"])
    event_loop.run(run_worker(read_settings, lambda given: Instance(given, faults=saboteur)))

"""A worker that fails at a fault point: TEST_FAULT=<point>:<kill|stop|wait>.

Only this module reads that variable; `leasehold worker` does not.
"""

from __future__ import annotations

import asyncio
import os
import signal

from leasehold.cli.worker import run_worker
from leasehold.config import read_settings
from leasehold.executor.faults import FaultPoint
from leasehold.observe.logs import get_logger
from leasehold.runtime.instance import Instance
from leasehold.runtime.process import run

# Time for a request to leave before the worker dies.
REQUEST_SECONDS = 0.15

_DURING = {
    FaultPoint.DURING_CLAIM: REQUEST_SECONDS,
    FaultPoint.DURING_CALL: REQUEST_SECONDS,
    FaultPoint.DURING_COMPLETE: 0,
    FaultPoint.DURING_RENEWAL: REQUEST_SECONDS,
}

_LOG = get_logger(__name__)


class FaultInjector:
    """Kills, stops or blocks this process, once, when it reaches the fault point."""

    def __init__(self, fault: str) -> None:
        point, _, self._action = fault.partition(":")
        self._point: FaultPoint | None = FaultPoint(point)

    async def reach(self, point: FaultPoint) -> None:
        if point is not self._point:
            return
        self._point = None
        if point in _DURING:
            await asyncio.sleep(_DURING[point])
        _LOG.warning("fault", point=str(point), action=self._action)
        match self._action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "wait":
                await asyncio.Event().wait()
            case action:
                raise ValueError(action)


if __name__ == "__main__":
    injector = FaultInjector(os.environ["TEST_FAULT"])
    run(run_worker(read_settings, lambda given: Instance(given, faults=injector)))

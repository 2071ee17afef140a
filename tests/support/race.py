"""Run many callers at the same moment, each with its own sessions."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from tests.support.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.database import Database

    Result = TypeVar("Result")

DEADLINE_SECONDS = 60


def race(
    database: Database, count: int, work: Callable[[Outbox, int], Result], role: str = "executor"
) -> list[Result]:
    """Start `count` callers at the same moment; return their results in order."""
    callers = [Outbox(database) for _ in range(count)]
    for caller in callers:
        caller.as_role(role)
    start = threading.Barrier(count)

    def run(number: int) -> Result:
        start.wait(DEADLINE_SECONDS)
        return work(callers[number], number)

    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(run, number) for number in range(count)]
        return [one.result(DEADLINE_SECONDS) for one in running]

"""Many callers at once, each with sessions of its own; and refusals by their SQLSTATE."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import psycopg
import pytest

from tests.support.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.database import Database

    Result = TypeVar("Result")

DEADLINE_SECONDS = 60


def race(
    database: Database, count: int, work: Callable[[Outbox, int], Result], role: str = "executor"
) -> list[Result]:
    """Let `count` callers do the work at the same moment; what each of them got, in order."""
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


@contextmanager
def refused(sqlstate: str) -> Iterator[pytest.ExceptionInfo[psycopg.Error]]:
    """The database refuses what is done here, with exactly this SQLSTATE."""
    with pytest.raises(psycopg.Error) as caught:
        yield caught
    assert caught.value.sqlstate == sqlstate, caught.value


def sqlstate_of(work: Callable[[], object]) -> str | None:
    """The SQLSTATE that the work is refused with, or None."""
    try:
        work()
    except psycopg.Error as error:
        return error.sqlstate
    return None

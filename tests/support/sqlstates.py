"""Assertions on the SQLSTATE of a refused statement."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def refused(sqlstate: str) -> Iterator[pytest.ExceptionInfo[psycopg.Error]]:
    """Expect the block to fail with exactly this SQLSTATE."""
    with pytest.raises(psycopg.Error) as caught:
        yield caught
    assert caught.value.sqlstate == sqlstate, caught.value


def sqlstate_of(work: Callable[[], object]) -> str | None:
    """Run the work; return the SQLSTATE that it failed with, or None."""
    try:
        work()
    except psycopg.Error as error:
        return error.sqlstate
    return None

"""Lets time pass for this process without waiting: the timers of its event loop are due at once.

A timeout under test then needs no short race: it is long, the peer has what it was sent, and the
peer says how much time passes. `fresh_clock` is for the conftest of a folder that uses it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_real = time.monotonic
_passed_seconds = 0.0


def pass_time(seconds: float) -> None:
    """Move the monotonic clock, which is also the clock of the event loop."""
    global _passed_seconds
    _passed_seconds += seconds
    time.monotonic = lambda: _real() + _passed_seconds


@pytest.fixture(autouse=True)
def fresh_clock() -> Iterator[None]:
    """Give the clock back after the test."""
    yield
    global _passed_seconds
    _passed_seconds = 0.0
    time.monotonic = _real

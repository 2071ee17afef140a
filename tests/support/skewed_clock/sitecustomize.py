"""Lets the wall clock of a process be wrong by TEST_CLOCK_OFFSET seconds, as a machine's may be;
the monotonic one stays what it is. Python imports this before anything else of the process, where
this folder is on its path, so that nobody has kept the right clock.
"""

from __future__ import annotations

import datetime
import os
import time

_OFFSET_SECONDS = float(os.environ["TEST_CLOCK_OFFSET"])
_right, _right_ns = time.time, time.time_ns


class _Wrong(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().now(tz) + datetime.timedelta(seconds=_OFFSET_SECONDS)

    @classmethod
    def utcnow(cls) -> datetime.datetime:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.now(datetime.UTC).replace(tzinfo=None)


time.time = lambda: _right() + _OFFSET_SECONDS
time.time_ns = lambda: _right_ns() + round(_OFFSET_SECONDS * 1e9)
datetime.datetime = _Wrong

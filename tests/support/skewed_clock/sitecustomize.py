"""Shifts the wall clock of a process by TEST_CLOCK_OFFSET seconds; the monotonic clock stays right.

Put this folder on PYTHONPATH: Python imports sitecustomize before any module can keep a reference
to the real clock.
"""

from __future__ import annotations

import datetime
import os
import time

_OFFSET_SECONDS = float(os.environ["TEST_CLOCK_OFFSET"])
_real_time, _real_time_ns = time.time, time.time_ns


class _SkewedDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().now(tz) + datetime.timedelta(seconds=_OFFSET_SECONDS)

    @classmethod
    def utcnow(cls) -> datetime.datetime:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.now(datetime.UTC).replace(tzinfo=None)


time.time = lambda: _real_time() + _OFFSET_SECONDS
time.time_ns = lambda: _real_time_ns() + round(_OFFSET_SECONDS * 1e9)
datetime.datetime = _SkewedDatetime

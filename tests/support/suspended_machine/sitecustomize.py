"""Lets the machine of a process be suspended: set `suspended_seconds` in this module.

CLOCK_BOOTTIME counts that time, the monotonic clock does not. Put this folder on PYTHONPATH: Python
imports sitecustomize before any module can keep a reference to the real clock.
"""

from __future__ import annotations

import time

suspended_seconds = 0.0
_real_clock_gettime = time.clock_gettime


def _clock_gettime(clock: int) -> float:
    more = suspended_seconds if clock == time.CLOCK_BOOTTIME else 0.0
    return _real_clock_gettime(clock) + more


time.clock_gettime = _clock_gettime

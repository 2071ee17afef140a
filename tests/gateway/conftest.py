"""Timeouts of calls are provoked by moving the clock."""

from __future__ import annotations

from tests.support.passing_time import fresh_clock

__all__ = ["fresh_clock"]

"""Times on a command line: seconds, 15m, 2h, 1d, or a moment with its time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from leasehold.domain.errors import InvalidArgument

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_or_moment(option: str, text: str) -> tuple[float | None, datetime | None]:
    """Read 90, 90s, 15m, 2h or 1d, or a moment such as 2030-01-31T12:00:00+01:00."""
    if found := _DURATION.fullmatch(text.strip()):
        return float(found[1]) * _UNIT_SECONDS[found[2] or "s"], None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidArgument(
            f"{option} {text!r} cannot be read: write seconds (90), 15m, 2h, 1d, or a moment with "
            "its time zone (2030-01-31T12:00:00Z)"
        )
    return None, moment


def moment_or_ago(option: str, text: str) -> datetime:
    """Read a moment, or how long ago it was by the clock of this machine."""
    seconds, moment = seconds_or_moment(option, text)
    if moment is not None:
        return moment
    try:
        return datetime.now(UTC) - timedelta(seconds=seconds or 0)
    except OverflowError:
        raise InvalidArgument(f"{option} {text!r} is before all time") from None

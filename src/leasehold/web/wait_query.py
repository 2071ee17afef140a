"""?wait_seconds=N, the one thing that can be asked for in the address of an intent."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl

from leasehold.web.problems import Fault
from leasehold.web.schemas.types import WAIT_SECONDS_MAX

NAME = "wait_seconds"
# As JSON writes numbers, and not all that Python would take for one.
_NUMBER = re.compile(r"\d{1,20}(\.\d{1,20})?([eE][+-]?\d{1,3})?", re.ASCII)
_PLACE_LENGTH_MAX = 80

DESCRIBED: dict[str, Any] = {
    "name": NAME,
    "in": "query",
    "required": False,
    "schema": {"type": "number", "minimum": 0, "maximum": WAIT_SECONDS_MAX, "default": 0},
    "description": "Answer when the intent is finished, or after so many seconds.",
}


def read_wait(query: bytes, faults: list[Fault]) -> float:
    """Read how long to wait; what is wrong with the query is added to the faults."""
    if not query:
        return 0.0
    seconds: float | None = None
    for name, text in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name != NAME:
            faults.append(Fault(name[:_PLACE_LENGTH_MAX], "is not known"))
        elif seconds is not None:
            faults.append(Fault(NAME, "must come once"))
        elif not _NUMBER.fullmatch(text):
            faults.append(Fault(NAME, "must be a number of seconds"))
        else:
            seconds = float(text)
            if seconds > WAIT_SECONDS_MAX:
                faults.append(Fault(NAME, f"must be {WAIT_SECONDS_MAX} at most"))
    return seconds or 0.0

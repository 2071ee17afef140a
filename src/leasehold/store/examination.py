"""What an examination of a database finds: one `Check` per line of `leasehold doctor`."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Level: TypeAlias = Literal["ok", "warn", "fail"]


class Check(NamedTuple):
    """One thing that was looked at. `advice` says what to do, unless it is ok."""

    name: str
    level: Level
    found: str
    advice: str | None = None

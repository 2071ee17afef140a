"""The state of an instance in one scope, for health checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeState:
    """The state of an instance in one scope, for health checks.

    `mode` is competing, leader, follower, standalone or off.
    """

    mode: str
    holder_id: str | None = None
    lease_expires_at: datetime | None = None

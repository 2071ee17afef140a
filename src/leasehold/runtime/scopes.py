"""What an instance is in each scope, for those who ask whether it is well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeState:
    """Leader or follower, or one among others; whose lease it is, and until when."""

    mode: str
    holder_id: str | None = None
    lease_expires_at: datetime | None = None

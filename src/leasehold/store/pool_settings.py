"""How a process connects to its database: how many connections, and how long anything may take."""

from __future__ import annotations

import re
from dataclasses import dataclass

from leasehold.domain.errors import InvalidArgument

# Time for an answer to arrive after the server's own limit has ended a statement, at most. A
# shorter limit says that answers are expected sooner.
_ANSWER_SECONDS_MAX = 2.0
# Any other name would need quotes in a startup option of PostgreSQL.
_ROLE = re.compile(r"[a-z_][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How many connections, how long anything may take, and how the limits reach the server."""

    application_name: str = "leasehold"
    size_min: int = 1
    size_max: int = 10
    waiting_max: int = 1000
    wait_seconds: float = 5.0
    connect_seconds: int = 5
    statement_seconds: float = 5.0
    lock_seconds: float = 3.0
    idle_in_transaction_seconds: float = 5.0
    through_pooler: bool = False
    check_on_checkout: bool = False
    role: str | None = None

    def __post_init__(self) -> None:
        if self.role is not None and not _ROLE.fullmatch(self.role):
            raise InvalidArgument(
                f"role is {self.role!r}, but must be the name of a role, such as leasehold_ingest"
            )
        if not 0 <= self.size_min <= self.size_max or self.size_max < 1:
            raise InvalidArgument(
                f"size_min ({self.size_min}) must not exceed size_max ({self.size_max}), "
                "and size_max must be at least 1"
            )
        if self.lock_seconds >= self.statement_seconds:
            raise InvalidArgument(
                f"lock_seconds ({self.lock_seconds:g}) must be less than statement_seconds "
                f"({self.statement_seconds:g}): otherwise a lock timeout is never reported as one"
            )

    @property
    def call_seconds(self) -> float:
        """The longest that a call can take, from the request for a connection to the timeout."""
        return self.wait_seconds + self.answer_seconds

    @property
    def answer_seconds(self) -> float:
        """The longest that a statement can take until its answer is given up."""
        return self.statement_seconds + min(self.statement_seconds, _ANSWER_SECONDS_MAX)

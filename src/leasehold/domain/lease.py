"""Leases, claims, and for how long their holder may believe in them.

Who holds a lease is the database's word, on the database's clock. A holder cannot read that clock
between two calls, so it keeps a trust window on its own monotonic clock, counted from before the
request was sent: the database counts from later, so trust ends first. It can only make a holder
stop sooner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NewType
from uuid import UUID

if TYPE_CHECKING:
    from datetime import datetime

    from leasehold.domain.intent import IntentId

LeaseToken = NewType("LeaseToken", UUID)

# Two machines count a second differently. Clocks that are being corrected differ by 0.1 % at most;
# this is ten times that.
CLOCK_DRIFT = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A cluster or stream lease. (name, holder_id, epoch) is the fence of every write under it.

    The epoch is the one received at acquire; to read it again would adopt a successor's.
    """

    name: str
    holder_id: str
    epoch: int
    expires_at: datetime
    grace_expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLease:
    """The lease of one stream, and which stream that is."""

    target: str
    stream: str
    lease: Lease


class Claim(NamedTuple):
    """The lease of one item, inside its pending row. (worker_id, lease_token) is its fence."""

    intent_id: IntentId
    lease_token: LeaseToken


@dataclass(frozen=True, slots=True)
class TrustWindow:
    """Until which reading of our monotonic clock we may act under a lease."""

    ends_at: float

    @classmethod
    def counted_from(cls, asked_at: float, lease_seconds: float) -> TrustWindow:
        """Trust a grant or a renewal from the reading taken before it was asked for."""
        return cls(asked_at + lease_seconds * (1 - CLOCK_DRIFT))

    def seconds_left(self, now: float) -> float:
        """How much of it is left; 0 when it is over."""
        return max(0.0, self.ends_at - now)

    def is_over(self, now: float) -> bool:
        """Whether nothing may be done any more under the lease."""
        return now >= self.ends_at

    def may_start(self, now: float) -> bool:
        """Whether something new may be begun."""
        return not self.is_over(now)

    def may_start_later(self, now: float) -> bool:
        """Say no: a claim whose trust has ended is lost, whatever comes later."""
        del now
        return False

    def covers(self, now: float, seconds: float) -> bool:
        """Whether something that takes this long can still end inside."""
        return now + seconds < self.ends_at

"""Leases, claims, and how long their holders may trust them.

The database decides who holds a lease, on its own clock. A holder cannot read that clock between
two calls, so it keeps a trust window on its own `trust_clock`, counted from before the request was
sent. The database counts from later, so trust ends before the lease does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, NewType
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from leasehold.domain.intent import IntentId

    Clock = Callable[[], float]

LeaseToken = NewType("LeaseToken", UUID)

# The clocks of two machines run at different speeds: by up to 0.1 % while they are being corrected.
# This is ten times that.
CLOCK_DRIFT = 0.01

# The clock of all trust. It never steps, and where the system has such a clock it also counts the
# time that the machine was suspended, as the database does; time.monotonic does not.
trust_clock: Clock = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A cluster or stream lease. (name, holder_id, epoch) is the fence of every write under it.

    The epoch is the one received at acquire. Reading it again could adopt a successor's epoch.
    """

    name: str
    holder_id: str
    epoch: int
    expires_at: datetime
    grace_expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLease:
    """The lease of one stream."""

    target: str
    stream: str
    lease: Lease


class StreamState(StrEnum):
    """What can be done in a stream now, as the database sees it.

    RECHECK: nothing is visible, but an enqueuer's transaction is open, whose row will not be
    claimable by itself; or somebody has locked the head. So the holder keeps the stream and looks
    again a moment later.
    """

    READY = "ready"
    WAITING = "waiting"
    PAUSED = "paused"
    BEGUN = "begun"
    DRAINED = "drained"
    RECHECK = "recheck"
    LEASE_LOST = "lease_lost"


class Claim(NamedTuple):
    """The lease of one item, in its pending row. (worker_id, lease_token) is its fence."""

    intent_id: IntentId
    lease_token: LeaseToken


@dataclass(frozen=True, slots=True)
class TrustWindow:
    """How long we may act under a lease, on our `trust_clock`."""

    ends_at: float

    @classmethod
    def counted_from(cls, sent_at: float, lease_seconds: float) -> TrustWindow:
        """Trust a lease that was requested at `sent_at`, for slightly less than its duration."""
        return cls(sent_at + lease_seconds * (1 - CLOCK_DRIFT))

    def seconds_left(self, now: float) -> float:
        """How long trust lasts; 0 if it is over."""
        return max(0.0, self.ends_at - now)

    def is_over(self, now: float) -> bool:
        """Whether we may no longer act under the lease."""
        return now >= self.ends_at

    def may_start(self, now: float) -> bool:
        """Whether a new call may begin."""
        return not self.is_over(now)

    def may_start_later(self, now: float) -> bool:
        """Never: once trust in a claim has ended, the claim is lost."""
        del now
        return False

"""How one of many becomes the leader of a group, and for how long it may believe that it is.

An election gives a lease with an epoch of its own. The holder acts under a `Term`: the lease as it
was received, and a trust window on the holder's monotonic clock that each renewal moves on, counted
from before the renewal was asked for. A term ends once and for good: when the database says that
the lease is lost, when trust has run out, or when the holder steps down by itself. A holder that is
elected again gets a new term; nothing of the old one is written under the new epoch.

While a lease is trusted, what was begun under it may be finished and written. For how long
something new may be begun is asked apart (`Term.may_start`): by the row as long, by the lock less,
and not at all once the holder has begun to step down.

There are two electors, the lease row (`row_lease`) and the session advisory lock
(`advisory_lock`). Both raise the epoch in the same row and both respect it, so a group may go from
one to the other while it runs.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import datetime

    from leasehold.domain.lease import Lease, TrustWindow


class Trust(Protocol):
    """For how long we may act: the window of one claim, or the term of a leader."""

    def is_over(self, now: float) -> bool:
        """Whether nothing may be done any more."""
        ...

    def may_start(self, now: float) -> bool:
        """Whether something new may be begun."""
        ...

    def may_start_later(self, now: float) -> bool:
        """Whether a renewal may allow what now is not allowed."""
        ...

    def seconds_left(self, now: float) -> float:
        """How much of it is left."""
        ...


class Term:
    """A lease in our hands, from its acquisition to its end."""

    def __init__(self, lease: Lease, trust: TrustWindow, start: TrustWindow | None = None) -> None:
        self.lease = lease
        self.ended = asyncio.Event()
        self.why_closing: str | None = None
        self._believe(trust, start or trust)

    @property
    def is_closing(self) -> bool:
        """Whether nothing new may be started; what was started may still end, and be written."""
        return self.why_closing is not None or self.ended.is_set()

    def is_over(self, now: float) -> bool:
        """Whether nothing may be done any more under the lease."""
        return now >= self._trusted_until

    def may_start(self, now: float) -> bool:
        """Whether something new may be begun."""
        return now < self._may_start_until

    def may_start_later(self, now: float) -> bool:
        """Whether the next renewal may allow what now is not allowed."""
        return not self.is_closing and not self.is_over(now)

    def seconds_left(self, now: float) -> float:
        """For how long we may still believe in it."""
        return max(0.0, self._trusted_until - now)

    def renewed(self, expires_at: datetime, trust: TrustWindow, start: TrustWindow) -> None:
        """Believe in it for longer. Its epoch stays the one that was received at first."""
        self.lease = replace(self.lease, expires_at=expires_at)
        self._believe(trust, start)

    def close(self, why: str) -> None:
        """Start nothing more under it. The first reason is the one that is told."""
        self._may_start_until = -math.inf
        if self.why_closing is None:
            self.why_closing = why

    def end(self, why: str) -> None:
        """Stop believing in it."""
        self.close(why)
        self._trusted_until = -math.inf
        self.ended.set()

    def _believe(self, trust: TrustWindow, start: TrustWindow) -> None:
        """Say it in two readings of the clock, which are looked at before each call."""
        self._trusted_until = -math.inf if self.ended.is_set() else trust.ends_at
        self._may_start_until = -math.inf if self.is_closing else min(start.ends_at, trust.ends_at)

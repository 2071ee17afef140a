"""Terms: the time that one holder spends under one epoch of a lease.

The holder acts under a `Term`: the lease as it was acquired, and a trust window on the holder's own
`trust_clock`. Each renewal extends the window, counted from before the renewal was sent, unless its
answer comes after the window has ended: trust that has ended never comes back. A term ends once:
when the database reports the lease as lost, when trust runs out, or when the holder steps down. A
holder that is elected again gets a new term, so nothing of the old term is ever written under the
new epoch.

While a term is trusted, calls that have begun may finish and their results may be written. Whether
a new call may begin is a separate question (`Term.may_start`): for as long with the lease row, for
less with the advisory lock, and not at all once the holder is stepping down.
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
    """How long a holder may act: the trust window of a claim, or the term of a leader."""

    def is_over(self, now: float) -> bool:
        """Whether the holder may no longer act."""
        ...

    def may_start(self, now: float) -> bool:
        """Whether a new call may begin."""
        ...

    def may_start_later(self, now: float) -> bool:
        """Whether a renewal may still permit the call that may not begin now."""
        ...

    def seconds_left(self, now: float) -> float:
        """How long the holder may still act."""
        ...


class Term:
    """A lease that we hold, from its acquisition to its end."""

    def __init__(self, lease: Lease, trust: TrustWindow, start: TrustWindow | None = None) -> None:
        self.lease = lease
        self.ended = asyncio.Event()
        self.closing_reason: str | None = None
        self.sql_error: str | None = None  # the first error that closed or ended it
        self._set_windows(trust, start or trust)

    @property
    def is_closing(self) -> bool:
        """Whether no new call may begin; calls that have begun may still finish."""
        return self.closing_reason is not None or self.ended.is_set()

    def is_over(self, now: float) -> bool:
        """Whether we may no longer act under the lease."""
        return now >= self._trusted_until

    def may_start(self, now: float) -> bool:
        """Whether a new call may begin."""
        return now < self._may_start_until

    def may_start_later(self, now: float) -> bool:
        """Whether the next renewal may permit the call that may not begin now."""
        return not self.is_closing and not self.is_over(now)

    def seconds_left(self, now: float) -> float:
        """How long we may still trust the lease."""
        return max(0.0, self._trusted_until - now)

    def extend(
        self, now: float, expires_at: datetime, trust: TrustWindow, start: TrustWindow
    ) -> bool:
        """Apply a renewal whose answer came now. The epoch stays the one that was acquired.

        Return whether it came in time. Results may have been discarded since trust ended, so a late
        answer changes nothing.
        """
        if self.is_over(now):
            return False
        self.lease = replace(self.lease, expires_at=expires_at)
        self._set_windows(trust, start)
        return True

    def shorten(self, trust: TrustWindow) -> None:
        """Trust the lease no longer than this."""
        self._trusted_until = min(self._trusted_until, trust.ends_at)
        self._may_start_until = min(self._may_start_until, trust.ends_at)

    def close(self, reason: str, error: Exception | None = None) -> None:
        """Begin no new calls. The first reason is kept, and the first error."""
        self._may_start_until = -math.inf
        if self.closing_reason is None:
            self.closing_reason = reason
        if self.sql_error is None and error is not None:
            self.sql_error = f"{type(error).__name__}: {error}"

    def end(self, reason: str, error: Exception | None = None) -> None:
        """Stop acting under the lease."""
        self.close(reason, error)
        self._trusted_until = -math.inf
        self.ended.set()

    def _set_windows(self, trust: TrustWindow, start: TrustWindow) -> None:
        """Keep two clock readings, because they are compared before every call."""
        self._trusted_until = -math.inf if self.ended.is_set() else trust.ends_at
        self._may_start_until = -math.inf if self.is_closing else min(start.ends_at, trust.ends_at)

"""Errors around a gateway.

LeaseholdError
├── GatewayMisconfigured       the contract or the environment is wrong; nothing was sent
│   └── ForbiddenAddress       the address guard refuses the destination
├── NotSent                    raised by a user's function: nothing was sent, retry
└── TrustEnded                 the lease is not trusted any more, and nothing was sent
"""

from __future__ import annotations

from leasehold.domain.errors import LeaseholdError


class GatewayMisconfigured(LeaseholdError):
    """The gateway cannot be opened as its contract says. The message never contains a secret."""


class ForbiddenAddress(GatewayMisconfigured):
    """The guard refuses calls to `host`; `address` is what it resolved to, if it did."""

    def __init__(self, message: str, *, host: str, address: str | None = None) -> None:
        super().__init__(message)
        self.host = host
        self.address = address


class NotSent(LeaseholdError):
    """Raise this in your gateway function if nothing was sent and the call should be retried.

    Any other exception makes the outcome unknown: Leasehold cannot see how far the function got.
    """

    def __init__(
        self,
        reason: str = "not_sent",
        *,
        retry_after_seconds: float | None = None,
        is_saturated: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds
        self.is_saturated = is_saturated


class TrustEnded(LeaseholdError):
    """The lease was not trusted any more when the call was to be sent, so nothing was sent."""

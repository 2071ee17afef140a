"""What goes wrong around a gateway, and what to do about it.

LeaseholdError
├── GatewayMisconfigured       the contract or its environment cannot work; nothing was sent
│   └── ForbiddenAddress       the guard refuses where a call would go
└── NotSent                    raised by a user's function: nothing was sent, try again
"""

from __future__ import annotations

from leasehold.domain.errors import LeaseholdError


class GatewayMisconfigured(LeaseholdError):
    """The gateway cannot be opened as its contract says. The message never holds a secret."""


class ForbiddenAddress(GatewayMisconfigured):
    """A call would go where calls must not go: `address` of `host` is `kind`."""

    def __init__(self, message: str, *, host: str, address: str | None = None) -> None:
        super().__init__(message)
        self.host = host
        self.address = address


class NotSent(LeaseholdError):
    """Raise it in your own gateway function when nothing was sent and it is worth another try.

    Any other exception leaves the outcome unknown: we cannot see how far your function came.
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

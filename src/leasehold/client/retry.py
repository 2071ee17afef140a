"""When a call is made again: only where that can do no harm, a little later each time, and only
for so long.
"""

from __future__ import annotations

import random
import ssl
import time
from typing import TYPE_CHECKING, Generic, TypeVar

import httpx

from leasehold.client.errors import Refusal
from leasehold.domain.errors import ApiError, ApiUnavailable, IntakeFull
from leasehold.service.retry_after import retry_after_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.client.requests import Call

PATIENCE_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 5.0
CONNECT_SECONDS = 5.0
# Longer than an instance waits for its database before it says 503.
ANSWER_SECONDS = 20.0

# No byte of the request has left.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

Answer = TypeVar("Answer")


class Patience:
    """Says after each failure how long to pause before the next try, or that it was the last."""

    def __init__(self, limit_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limit_seconds = limit_seconds
        self._tries = 0
        self._ends_at = clock() + limit_seconds

    def renew(self) -> None:
        """Begin anew: something went well."""
        self._tries = 0
        self._ends_at = self._clock() + self._limit_seconds

    def pause(self, asked_seconds: float | None = None) -> float | None:
        """Give the pause; None where it would not end in time.

        What the server asked for is a lower bound, and the chance in it keeps those who were sent
        away together from coming back together.
        """
        self._tries += 1
        grown = FIRST_PAUSE_SECONDS * 2 ** min(self._tries - 1, 20)
        seconds = min(PAUSE_SECONDS_MAX, grown) * random.uniform(0.5, 1.0)  # noqa: S311 (no secret)
        if asked_seconds is not None:
            seconds = max(seconds, asked_seconds * random.uniform(1.0, 1.25))  # noqa: S311 (as above)
        return seconds if self._clock() + seconds < self._ends_at else None


class Tries(Generic[Answer]):
    """The tries of one call: reads what came of each, and gives the pause before the next.

    Once a try may have written something without our knowing (`is_unknown`), no later refusal says
    that nothing was written: it speaks of itself only. `was_unknown` says that there was such a try
    in an earlier call.
    """

    def __init__(
        self, call: Call[Answer], patience: Patience, *, was_unknown: bool = False
    ) -> None:
        self.call = call
        self.is_unknown = False
        self._was_unknown = was_unknown
        self._patience = patience

    def pause_after_error(self, error: httpx.TransportError) -> float:
        """Give the pause, or raise for a failure that is final or lasts too long."""
        if isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol):
            raise ApiError(f"the request cannot be sent: {_told(error)}") from error
        may_repeat = self.call.is_repeatable or isinstance(error, _NOT_SENT)
        self._remember(is_unknown=not isinstance(error, _NOT_SENT))
        pause = self._patience.pause() if may_repeat and not _is_of_tls(error) else None
        if pause is None:
            advice = self.call.advice if self.is_unknown or self._was_unknown else ""
            raise ApiUnavailable(f"the API did not answer: {_told(error)}{advice}") from error
        return pause

    def pause_after(self, response: httpx.Response) -> float | None:
        """Give the pause before the next try; None where this is the answer."""
        if response.is_success:
            return None
        refusal = Refusal.of(response)
        if not refusal.is_passing or not (refusal.wrote_nothing or self.call.is_repeatable):
            return None
        self._remember(is_unknown=not refusal.wrote_nothing)
        return self._patience.pause(retry_after_seconds(response.headers))

    def answer(self, response: httpx.Response) -> Answer:
        """Read the last answer, or raise what its refusal means after all that came before it."""
        try:
            return self.call.answer(response)
        except IntakeFull as error:
            if not (self.is_unknown or self._was_unknown):
                raise
            raise ApiUnavailable(
                f"an earlier try was not answered, and the last one was refused: {error}"
                f"{self.call.advice}",
                status=response.status_code,
            ) from error

    def _remember(self, *, is_unknown: bool) -> None:
        # A question writes nothing, so there is nothing to know of one that was not answered.
        self.is_unknown |= is_unknown and self.call.method != "GET"


def _is_of_tls(error: BaseException | None) -> bool:
    """Whether the other side could not prove who it is: it will not in a moment, either."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _told(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__

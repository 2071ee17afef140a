"""When to send a request again: only where it is safe, with growing pauses, for a limited time."""

from __future__ import annotations

import random
import ssl
import time
from typing import TYPE_CHECKING, Generic, TypeVar

import httpx

from leasehold.client.errors import ErrorResponse
from leasehold.domain.errors import ApiError, ApiUnavailable, LeaseholdError
from leasehold.service.backoff import Backoff
from leasehold.service.retry_after import retry_after_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.client.requests import Request

RETRY_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 5.0

# Errors before any byte of the request was sent.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

Result = TypeVar("Result")


class RetryBudget:
    """How long to retry: gives the pause after each failure until `retry_seconds` have passed."""

    def __init__(self, retry_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, PAUSE_SECONDS_MAX)
        self._ends_at = clock() + retry_seconds

    def reset(self) -> None:
        """Start again with the full time and the shortest pause, after a success."""
        self._backoff.reset()
        self._ends_at = self._clock() + self._retry_seconds

    def pause(self, requested_seconds: float | None = None) -> float | None:
        """Return the seconds to wait before the next try; None if they exceed the budget.

        `requested_seconds` is the delay that the server wants. It is a lower bound with jitter on
        top, so that clients that were rejected together do not return together.
        """
        seconds = self._backoff.next_seconds()
        if requested_seconds is not None:
            jitter = random.uniform(1.0, 1.25)  # noqa: S311 (not used for security)
            seconds = max(seconds, requested_seconds * jitter)
        return seconds if self._clock() + seconds < self._ends_at else None


def refused_after_silence(refusal: object) -> str:
    """Return why a refusal is not the outcome."""
    return f"an earlier try got no answer, and the last one was refused: {refusal}"


class RetriedRequest(Generic[Result]):
    """One request over all its tries: reads how each ended and gives the pause before the next.

    If a try may have written something (`maybe_written`), a later rejection proves nothing: it
    speaks only of its own try. `maybe_written_before` says that an earlier request for the same
    intents was such a try.
    """

    def __init__(
        self, request: Request[Result], budget: RetryBudget, *, maybe_written_before: bool = False
    ) -> None:
        self.request = request
        self.maybe_written = False
        self._maybe_written_before = maybe_written_before
        self._budget = budget

    def pause_after_error(self, error: httpx.TransportError) -> float:
        """Return the pause after a try without a response, or raise if it was the last one."""
        if isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol):
            raise self._failure(f"the request cannot be sent: {_text(error)}", ApiError) from error
        was_sent = not isinstance(error, _NOT_SENT)
        self._note_try(maybe_written=was_sent)
        is_retried = (self.request.is_idempotent or not was_sent) and not _is_certificate(error)
        pause = self._budget.pause() if is_retried else None
        if pause is None:
            raise self._failure(f"the API{_at(error)} did not answer: {_text(error)}") from error
        return pause

    def pause_after(self, response: httpx.Response) -> float | None:
        """Return the pause before the next try; None if this response is the final one."""
        if response.is_success:
            return None
        rejection = ErrorResponse.of(response)
        is_safe = rejection.wrote_nothing or self.request.is_idempotent
        if not rejection.is_temporary or not is_safe:
            return None
        self._note_try(maybe_written=not rejection.wrote_nothing)
        return self._budget.pause(retry_after_seconds(response.headers))

    def result(self, response: httpx.Response) -> Result:
        """Read the final response, or raise what it means after all earlier tries."""
        try:
            return self.request.result(response)
        except LeaseholdError as error:
            is_known = not (isinstance(error, ApiError) and error.outcome_unknown)
            if not (is_known and self._is_in_doubt):
                raise
            raise self.request.outcome_unknown(
                refused_after_silence(error), status=response.status_code
            ) from error

    @property
    def _is_in_doubt(self) -> bool:
        return self.maybe_written or self._maybe_written_before

    def _failure(self, message: str, kind: type[ApiError] = ApiUnavailable) -> ApiError:
        if self._is_in_doubt:
            return self.request.outcome_unknown(message, kind=kind)
        return kind(message)

    def _note_try(self, *, maybe_written: bool) -> None:
        # A GET writes nothing, so its outcome is never in doubt.
        self.maybe_written |= maybe_written and self.request.method != "GET"


def _is_certificate(error: BaseException | None) -> bool:
    """Whether the server's certificate was refused: trying again will not change that."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _at(error: httpx.TransportError) -> str:
    """Say where the request went, as far as it is known; a URL may have a token in its query."""
    try:
        url = error.request.url
    except RuntimeError:
        return ""
    return f" at {url.scheme}://{url.netloc.decode('ascii').rpartition('@')[2]}"


def _text(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__

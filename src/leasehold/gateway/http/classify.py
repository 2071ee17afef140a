"""Turns a complete HTTP response into an outcome. Pure: the contract's status lists decide.

A status in no list is Unknown, and so is every redirect: it is not followed, and only the owner of
the gateway knows whether something happened before it was sent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, assert_never, cast

from leasehold.domain.outcome import (
    STALE_REASON,
    Accepted,
    Deferred,
    NotFound,
    Rejected,
    Retryable,
    Submitted,
    Unknown,
)
from leasehold.gateway.sanitize import CODE_MAX
from leasehold.service.retry_after import retry_after_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from leasehold.domain.outcome import LookupAnswer, Outcome
    from leasehold.gateway.http.terms import ResponseClass
    from leasehold.gateway.sanitize import Sanitizer

# If the gateway sends no Retry-After.
ASK_AFTER_SECONDS = 10.0
# The reasons of a deferral whose status says what is wrong.
_DEFERRED_REASONS = {
    401: "credentials_refused",
    403: "access_refused",
    407: "proxy_credentials_refused",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response that arrived completely and within its size limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class StatusTable:
    """The contract's status lists, resolved once for all statuses."""

    def __init__(self, classify: Callable[[int], ResponseClass]) -> None:
        self._classes: dict[int, ResponseClass] = {
            status: classify(status) for status in range(100, 600)
        }

    def find(self, status: int) -> ResponseClass:
        """Return what a status means by the contract."""
        return self._classes.get(status, "unknown")


def classify_submission(
    response: Response,
    table: StatusTable,
    submission_key: UUID,
    now: datetime,
    sanitizer: Sanitizer,
    ask_after_seconds: float = ASK_AFTER_SECONDS,
) -> Outcome:
    """Turn the response to a submission into its outcome."""
    code = str(response.status)
    document = _json_object(response.body)
    reference = sanitizer.reference(document.get("reference")) or sanitizer.reference(
        response.headers.get("Location")
    )
    response_class = table.find(response.status)
    if response_class == "accepted":
        return Accepted(reference=reference, code=code)
    detail = sanitizer.body(response.body)
    wait_seconds = retry_after_seconds(response.headers, now)
    stale = STALE_REASON if document.get("reason") == STALE_REASON else None
    match response_class:
        case "rejected":
            reason = _reason(document, sanitizer)
            return Rejected(reason=reason, reference=reference, code=code, detail=detail)
        case "retryable" | "saturated":
            return Retryable(
                retry_after_seconds=wait_seconds,
                is_saturated=response_class == "saturated",
                reason=stale or response_class,
                code=code,
                detail=detail,
            )
        case "deferred":
            return Deferred(
                reason=_DEFERRED_REASONS.get(response.status, "deferred"),
                retry_after_seconds=wait_seconds,
                is_target_wide=True,
                code=code,
                detail=detail,
            )
        case "submitted":
            wait_seconds = ask_after_seconds if wait_seconds is None else wait_seconds
            return _submitted(reference, submission_key, wait_seconds, code)
        case "unknown":
            return Unknown(
                retry_after_seconds=wait_seconds,
                reason=stale or ("redirect" if response.status // 100 == 3 else "status"),
                reference=reference,
                code=code,
                detail=detail,
            )
        case _:
            assert_never(response_class)


def classify_array(
    outcome: Outcome, response: Response, submission_keys: Sequence[UUID]
) -> Sequence[Outcome]:
    """Return the outcomes of several submissions, by the outcome of their common response.

    A gateway that took only the first of them says so with 2xx and {"accepted": 2}.
    """
    count = len(submission_keys)
    match outcome:
        case Retryable() | Deferred():
            return [outcome]
        case Rejected():
            return []  # which of them is to blame shows when the first is submitted alone
        case Unknown():
            return [outcome] * count
        case Accepted() | Submitted():
            taken = _json_object(response.body).get("accepted", count)
            if not isinstance(taken, int) or isinstance(taken, bool) or not 1 <= taken <= count:
                unclear = Unknown(reason="accepted_unclear", code=outcome.code)
                return [unclear] * count
            # A reference would name the response as a whole, not one of the submissions.
            if isinstance(outcome, Accepted):
                return [replace(outcome, reference=None)] * taken
            return [replace(outcome, reference=str(key)) for key in submission_keys[:taken]]
        case _:
            assert_never(outcome)


def classify_lookup(
    response: Response, submission_key: UUID, now: datetime, sanitizer: Sanitizer
) -> LookupAnswer:
    """Read the response to a lookup: 404, or 200 with {"status": ..., "reference": ...}."""
    code = str(response.status)
    if response.status == 404:
        return NotFound(detail=sanitizer.body(response.body))
    document = _json_object(response.body) if response.status == 200 else {}
    reference = sanitizer.reference(document.get("reference"))
    wait_seconds = retry_after_seconds(response.headers, now)
    match document.get("status"):
        case "accepted":
            return Accepted(reference=reference, code=code)
        case "rejected":
            reason = _reason(document, sanitizer)
            return Rejected(reason=reason, reference=reference, code=code)
        case "pending":
            return _submitted(reference, submission_key, wait_seconds, code)
        case _:
            detail = sanitizer.body(response.body)
            return Unknown(
                retry_after_seconds=wait_seconds, reason="lookup", code=code, detail=detail
            )


def _submitted(
    reference: str | None, submission_key: UUID, wait_seconds: float | None, code: str
) -> Submitted:
    """The gateway will know later. Without a reference of its own it is looked up by our key."""
    return Submitted(
        reference=reference or str(submission_key),
        ask_after_seconds=ASK_AFTER_SECONDS if wait_seconds is None else wait_seconds,
        code=code,
    )


def _json_object(body: bytes) -> dict[str, Any]:
    """Parse a body as a JSON object; empty if it is anything else."""
    if body.lstrip()[:1] != b"{":
        return {}
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _reason(document: Mapping[str, Any], sanitizer: Sanitizer) -> str | None:
    reason = document.get("reason")
    return sanitizer.line(reason, CODE_MAX) if isinstance(reason, str) else None

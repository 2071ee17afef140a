"""From a whole answer of an HTTP gateway to an outcome. Pure: the contract's lists decide.

A status that no list names is Unknown, also every redirect: we do not follow it, and only the
gateway's owner knows whether something happened before it was sent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_never, cast

from leasehold.domain.outcome import (
    Accepted,
    NotFound,
    Rejected,
    Retryable,
    Submitted,
    Unknown,
)
from leasehold.gateway.ledger_text import CODE_MAX, clean, detail_of, reference_of
from leasehold.service.retry_after import retry_after_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from uuid import UUID

    from leasehold.domain.gateway_terms import HttpTerms, ResponseClass
    from leasehold.domain.outcome import LookupAnswer, Outcome

# Where the gateway names no time.
ASK_AFTER_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response that arrived whole and within its limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class StatusTable:
    """The contract's lists as one table, made once: a call costs a single look."""

    def __init__(self, terms: HttpTerms) -> None:
        self._classes: dict[int, ResponseClass] = {
            status: terms.classify(status) for status in range(100, 600)
        }

    def find(self, status: int) -> ResponseClass:
        """Say what a status means by the contract."""
        return self._classes.get(status, "unknown")


def outcome_of(answer: Answer, table: StatusTable, submission_key: UUID, now: datetime) -> Outcome:
    """Classify the answer to a submission."""
    code = str(answer.status)
    document = json_object(answer.body)
    reference = _reference(answer, document)
    detail = detail_of(answer.body)
    wait = retry_after_seconds(answer.headers, now)
    response_class = table.find(answer.status)
    match response_class:
        case "accepted":
            return Accepted(reference=reference, code=code)
        case "rejected":
            reason = _reason(document)
            return Rejected(reason=reason, reference=reference, code=code, detail=detail)
        case "retryable" | "saturated":
            return Retryable(
                retry_after_seconds=wait,
                is_saturated=response_class == "saturated",
                reason=response_class,
                code=code,
                detail=detail,
            )
        case "submitted":
            # Without a reference of its own the gateway is asked by the key, which it has.
            return Submitted(
                reference=reference or str(submission_key),
                ask_after_seconds=ASK_AFTER_SECONDS if wait is None else wait,
                code=code,
            )
        case "unknown":
            return Unknown(
                retry_after_seconds=wait,
                reason="redirect" if answer.status // 100 == 3 else "status",
                reference=reference,
                code=code,
                detail=detail,
            )
        case _:
            assert_never(response_class)


def lookup_answer_of(answer: Answer, submission_key: UUID, now: datetime) -> LookupAnswer:
    """Read the answer to a lookup: 404, or 200 with {"status": ..., "reference": ...}."""
    code = str(answer.status)
    if answer.status == 404:
        return NotFound(detail=detail_of(answer.body))
    document = json_object(answer.body) if answer.status == 200 else {}
    reference = reference_of(document.get("reference"))
    wait = retry_after_seconds(answer.headers, now)
    match document.get("status"):
        case "accepted":
            return Accepted(reference=reference, code=code)
        case "rejected":
            return Rejected(reason=_reason(document), reference=reference, code=code)
        case "pending":
            return Submitted(
                reference=reference or str(submission_key),
                ask_after_seconds=ASK_AFTER_SECONDS if wait is None else wait,
                code=code,
            )
        case _:
            detail = detail_of(answer.body)
            return Unknown(retry_after_seconds=wait, reason="lookup", code=code, detail=detail)


def json_object(body: bytes) -> dict[str, Any]:
    """Read a body as a JSON object; empty where it is anything else."""
    if body.lstrip()[:1] != b"{":
        return {}
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _reference(answer: Answer, document: Mapping[str, Any]) -> str | None:
    return reference_of(document.get("reference")) or reference_of(answer.headers.get("Location"))


def _reason(document: Mapping[str, Any]) -> str | None:
    reason = document.get("reason")
    return clean(reason, CODE_MAX) if isinstance(reason, str) else None

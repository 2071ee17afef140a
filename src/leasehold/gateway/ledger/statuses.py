"""Reads what a ledger answers: to submitted batches, and about the status of batches. Pure.

The format is that of Hyperledger Sawtooth. A batch passes PENDING and VALID on its way to COMMITTED
or INVALID. UNKNOWN means that the ledger has no record of it: it never came, has not come to this
validator yet, or was evicted.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from leasehold.domain.outcome import (
    Accepted,
    Deferred,
    NotFound,
    Rejected,
    Retryable,
    Submitted,
    Unknown,
)
from leasehold.gateway.sanitize import DETAIL_MAX
from leasehold.service.retry_after import retry_after_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from leasehold.domain.outcome import LookupAnswer, Outcome
    from leasehold.gateway.http.classify import Response
    from leasehold.gateway.sanitize import Sanitizer

# The validator timed out, or closed its connection to the REST interface. Both come with 503, and
# the batch may have been taken all the same.
_CODES_IN_DOUBT = frozenset({17, 18})


def with_batch_id(outcome: Outcome, response: Response, batch_id: str) -> Outcome:
    """Return the outcome of a response about one batch, whose id is its reference."""
    match outcome:
        case Retryable() if _error_code(response) in _CODES_IN_DOUBT:
            return Unknown(
                retry_after_seconds=outcome.retry_after_seconds,
                reason="validator_lost",
                reference=batch_id,
                code=outcome.code,
                detail=outcome.detail,
            )
        case Retryable() | Deferred():
            return outcome
        case _:
            return replace(outcome, reference=batch_id)


def read_statuses(
    response: Response, ask_after_seconds: float, now: datetime, sanitizer: Sanitizer
) -> Mapping[str, LookupAnswer] | Unknown:
    """Return the answer about each batch by its id. Unknown if the response is something else."""
    data = _document(response).get("data") if response.status == 200 else None
    wait_seconds = retry_after_seconds(response.headers, now)
    if not isinstance(data, list):
        return Unknown(
            retry_after_seconds=wait_seconds,
            reason="lookup",
            code=str(response.status),
            detail=sanitizer.body(response.body),
        )
    wait_seconds = ask_after_seconds if wait_seconds is None else wait_seconds
    entries = [_members(one) for one in cast("list[object]", data)]
    return {str(entry.get("id")): _read_status(entry, wait_seconds, sanitizer) for entry in entries}


def _read_status(
    entry: Mapping[str, Any], wait_seconds: float, sanitizer: Sanitizer
) -> LookupAnswer:
    batch_id, status = str(entry.get("id")), entry.get("status")
    match status:
        case "COMMITTED":
            return Accepted(reference=batch_id, code=status)
        case "PENDING" | "VALID":
            return Submitted(reference=batch_id, ask_after_seconds=wait_seconds, code=status)
        case "INVALID":
            return Rejected(
                reason="invalid_batch",
                reference=batch_id,
                code=status,
                detail=sanitizer.line(_why_invalid(entry), DETAIL_MAX),
            )
        case "UNKNOWN":
            return NotFound(detail="the ledger has no record of the batch")
        case _:
            return Unknown(reason="lookup", detail=sanitizer.line(f"status {status}", DETAIL_MAX))


def _why_invalid(entry: Mapping[str, Any]) -> str:
    """Return the message about the first transaction that is invalid."""
    transactions: object = entry.get("invalid_transactions")
    if not isinstance(transactions, list) or not transactions:
        return ""
    return str(_members(cast("list[object]", transactions)[0]).get("message", ""))


def _error_code(response: Response) -> object:
    return _members(_document(response).get("error")).get("code")


def _document(response: Response) -> dict[str, Any]:
    """Parse a body as a JSON object; empty if it is anything else."""
    try:
        return _members(json.loads(response.body))
    except (ValueError, RecursionError):
        return {}


def _members(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}

"""The ledger gateway: POSTs signed batches, and looks up the status of many with one GET.

A batch is signed before it is enqueued, so it is opaque here: the intent's body is sent as it is,
and the intent's metadata must name it as `batch_id`. The id is the key of the batch: a ledger takes
the same batch once, and its status is looked up by the id.

The ledger answers 202 and decides later, with a block. So a submission ends as Submitted, and only
COMMITTED makes it Accepted. UNKNOWN is "not found": what the contract's guarantee permits then
follows, a resend at once (keyed) or after a quarantine in which it is looked up again (lookup). A
ledger has no record of a batch that never came, has not come to this validator yet, or was evicted.

The formats are those of Hyperledger Sawtooth.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
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
from leasehold.gateway.http.classify import Response, StatusTable, classify_submission
from leasehold.gateway.http.connection import Connection
from leasehold.gateway.sanitize import DETAIL_MAX
from leasehold.service.retry_after import retry_after_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.domain.contract import Contract
    from leasehold.domain.outcome import LookupAnswer, Outcome
    from leasehold.gateway.ledger.terms import LedgerTerms
    from leasehold.gateway.protocol import Submission
    from leasehold.gateway.registry import Surroundings
    from leasehold.gateway.sanitize import Sanitizer


_BATCH_ID = re.compile(r"[0-9a-f]{128}")
_BAD_ID = "the intent's metadata needs a batch_id of 128 lower-case hexadecimal digits"
# An id that the ledger does not like, or a URL that is too long for a proxy.
_CODES_OF_SPOILT_REQUESTS = frozenset({"400", "413", "414", "431"})
_NO_BATCH = "the intent has no body: enqueue the signed batch as bytes, not as a JSON payload"


class LedgerGateway:
    """Submits batches to one ledger. Also a `LookupBatcher` and a `SubmissionBatcher`."""

    def __init__(self, contract: Contract, terms: LedgerTerms, surroundings: Surroundings) -> None:
        """Raise GatewayMisconfigured for every mistake that shows without a call."""
        connection = Connection(contract, terms, surroundings)
        url = connection.guard.checked_url(terms.url.rstrip("/"))
        self._batches_url = url / "batches"
        self._statuses_url = url / "batch_statuses"
        self._connection = connection
        self._ask_after_seconds = terms.ask_after_seconds
        self._statuses = StatusTable(terms.classify)
        self.lookups_max = terms.lookups_max
        self.submissions_max = terms.submissions_max
        self.asks_before_sending = connection.asks_before_sending

    async def submit(self, submission: Submission) -> Outcome:
        """POST one batch and return its outcome."""
        refusal = _refuse(submission)
        if refusal is not None:
            return refusal
        [outcome] = await self._post([submission])
        return outcome

    async def submit_many(self, submissions: Sequence[Submission]) -> Sequence[Outcome]:
        """POST batches as one list: the ledger takes all or none.

        Their bodies are joined. Protocol Buffers define that as the list of all their batches.
        """
        refusals = [_refuse(one) for one in submissions]
        if refusals[0] is not None:
            return [refusals[0]]
        good = next((n for n, one in enumerate(refusals) if one is not None), len(submissions))
        outcomes = await self._post(submissions[:good])
        match outcomes[0]:
            case Retryable() | Deferred():
                return outcomes[:1]
            case Rejected():
                return () if good > 1 else outcomes
            case _:
                return outcomes

    async def lookup(self, submission: Submission) -> LookupAnswer:
        """Look up the status of one batch."""
        [answer] = await self.lookup_many([submission])
        return answer

    async def lookup_many(self, submissions: Sequence[Submission]) -> Sequence[LookupAnswer]:
        """GET the status of many batches. If they are too many for one request, send halves."""
        batch_ids = [_batch_id(one) for one in submissions]
        ids = dict.fromkeys(one for one in batch_ids if one is not None)
        answers: Mapping[str, LookupAnswer] | Unknown = {}
        if ids:
            url = self._statuses_url.with_query(f"id={','.join(ids)}")
            headers = self._connection.headers.for_lookup(submissions[0])
            response = await self._connection.get(url, headers, *submissions)
            answers = response if isinstance(response, Unknown) else self._read(response)
        if len(ids) > 1 and isinstance(answers, Unknown) and _is_too_much(answers):
            half = len(submissions) // 2
            first = await self.lookup_many(submissions[:half])
            return [*first, *await self.lookup_many(submissions[half:])]
        return [_find(answers, one) for one in batch_ids]

    async def close(self) -> None:
        """Close all connections. Calls in flight fail."""
        await self._connection.close()

    async def _post(self, submissions: Sequence[Submission]) -> Sequence[Outcome]:
        """Return the outcome of each submission, which are alike except for their references."""
        now = datetime.now(UTC)
        connection = self._connection
        batch_ids = [_batch_id(one) or "" for one in submissions]
        headers = connection.headers.for_batches(submissions[0], ",".join(batch_ids))
        body = b"".join(one.body or b"" for one in submissions)
        response = await connection.post(self._batches_url, headers, body, *submissions)
        if not isinstance(response, Response):
            return [response] * len(submissions)
        key = submissions[0].submission_key
        outcome = classify_submission(
            response, self._statuses, key, now, connection.sanitizer, self._ask_after_seconds
        )
        return [with_batch_id(outcome, response, one) for one in batch_ids]

    def _read(self, response: Response) -> Mapping[str, LookupAnswer] | Unknown:
        return read_statuses(
            response, self._ask_after_seconds, datetime.now(UTC), self._connection.sanitizer
        )


def _is_too_much(answer: Unknown) -> bool:
    """Whether fewer batches may be answered: one of them may spoil the request for the others."""
    return answer.reason == "response_too_long" or answer.code in _CODES_OF_SPOILT_REQUESTS


def _find(answers: Mapping[str, LookupAnswer] | Unknown, batch_id: str | None) -> LookupAnswer:
    if batch_id is None:
        return NotFound(detail=_BAD_ID)  # so it was never sent
    if isinstance(answers, Unknown):
        return answers
    return answers.get(batch_id) or Unknown(
        reason="lookup", detail="the response does not name the batch"
    )


def _refuse(submission: Submission) -> Rejected | None:
    """Return why a submission cannot be sent at all, if so."""
    if not submission.body:
        return Rejected(reason="no_batch", detail=_NO_BATCH)
    if _batch_id(submission) is None:
        return Rejected(reason="batch_id_invalid", detail=_BAD_ID)
    return None


def _batch_id(submission: Submission) -> str | None:
    """Return the id of the batch, from the intent's metadata; None if it has no valid one."""
    metadata: object = submission.metadata.value() if submission.metadata else None
    batch_id = (
        cast("dict[str, object]", metadata).get("batch_id") if isinstance(metadata, dict) else None
    )
    return batch_id if isinstance(batch_id, str) and _BATCH_ID.fullmatch(batch_id) else None


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

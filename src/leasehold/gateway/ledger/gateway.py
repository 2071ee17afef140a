"""The ledger gateway: POSTs signed batches, and asks for the status of many with one GET.

A batch is signed before it is enqueued, so it is opaque here: the intent's body is sent as it is,
and the intent's metadata must name it as `batch_id`. The id is the key of the batch: a ledger takes
the same batch once, and its status is asked by the id.

The ledger answers 202 and decides later, with a block. So a submission ends as Submitted, and only
COMMITTED makes it Accepted. UNKNOWN is "not found": what the contract's guarantee permits then
follows, a resend at once (keyed) or after a quarantine in which it is asked again (lookup).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from leasehold.domain.outcome import Deferred, NotFound, Rejected, Retryable, Unknown
from leasehold.gateway.http.classify import Response, StatusTable, classify_submission
from leasehold.gateway.http.connection import Connection
from leasehold.gateway.ledger.statuses import read_statuses, with_batch_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.domain.contract import Contract
    from leasehold.domain.outcome import LookupAnswer, Outcome
    from leasehold.gateway.ledger.terms import LedgerTerms
    from leasehold.gateway.protocol import Submission
    from leasehold.gateway.registry import Surroundings

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
        """Ask for the status of one batch."""
        [answer] = await self.lookup_many([submission])
        return answer

    async def lookup_many(self, submissions: Sequence[Submission]) -> Sequence[LookupAnswer]:
        """GET the status of many batches. If they are too many for one request, ask in halves."""
        batch_ids = [_batch_id(one) for one in submissions]
        asked = dict.fromkeys(one for one in batch_ids if one is not None)
        answers: Mapping[str, LookupAnswer] | Unknown = {}
        if asked:
            url = self._statuses_url.with_query(f"id={','.join(asked)}")
            headers = self._connection.headers.for_lookup(submissions[0])
            response = await self._connection.get(url, headers, *submissions)
            answers = response if isinstance(response, Unknown) else self._read(response)
        if len(asked) > 1 and isinstance(answers, Unknown) and _is_too_much(answers):
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

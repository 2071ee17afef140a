"""The HTTP gateway: one POST per attempt, classified by the status of its response.

If the contract permits it, several heads of a stream share a POST. Its body is a JSON array, and
each entry has the key of its submission.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import takewhile
from typing import TYPE_CHECKING

from yarl import URL

from leasehold.domain.outcome import Unknown
from leasehold.gateway.http.classify import (
    Response,
    StatusTable,
    classify_array,
    classify_lookup,
    classify_submission,
)
from leasehold.gateway.http.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.domain.contract import Contract
    from leasehold.domain.outcome import LookupAnswer, Outcome
    from leasehold.gateway.http.terms import HttpTerms
    from leasehold.gateway.protocol import Submission
    from leasehold.gateway.registry import Surroundings


class HttpGateway:
    """Submits to one URL. Also a `SubmissionBatcher`."""

    def __init__(self, contract: Contract, terms: HttpTerms, surroundings: Surroundings) -> None:
        """Raise GatewayMisconfigured for every mistake that shows without a call."""
        connection = Connection(contract, terms, surroundings)
        guard = connection.guard
        self._url = guard.checked_url(terms.url)
        self._lookup_url = guard.checked_template(terms.lookup_url) if terms.lookup_url else None
        self._statuses = StatusTable(terms.classify)
        self.submissions_max = terms.submissions_max
        self.asks_before_sending = connection.asks_before_sending
        self._connection = connection

    async def submit(self, submission: Submission) -> Outcome:
        """POST the submission and return its outcome."""
        now = datetime.now(UTC)
        connection = self._connection
        body = submission.payload.raw if submission.payload else submission.body or b""
        headers = connection.headers.for_submission(submission, body, now)
        response = await connection.post(self._url, headers, body, submission)
        if not isinstance(response, Response):
            return response
        return classify_submission(
            response, self._statuses, submission.submission_key, now, connection.sanitizer
        )

    async def submit_many(self, submissions: Sequence[Submission]) -> Sequence[Outcome]:
        """POST several submissions as a JSON array. One with opaque bytes is sent alone."""
        together = list(takewhile(lambda one: one.payload is not None, submissions))
        if len(together) < 2:
            return [await self.submit(submissions[0])]
        now = datetime.now(UTC)
        connection = self._connection
        body = b"[" + b",".join(map(_entry, together)) + b"]"
        headers = connection.headers.for_array(together, body, now)
        response = await connection.post(self._url, headers, body, *together)
        if not isinstance(response, Response):
            return [response] * (len(together) if isinstance(response, Unknown) else 1)
        keys = [one.submission_key for one in together]
        outcome = classify_submission(response, self._statuses, keys[0], now, connection.sanitizer)
        return classify_array(outcome, response, keys)

    async def lookup(self, submission: Submission) -> LookupAnswer:
        """GET the state of the submission. A lookup that fails may be repeated."""
        if self._lookup_url is None:
            return Unknown(reason="no_lookup", detail="the contract has no lookup_url")
        url = URL(self._lookup_url.replace("{key}", str(submission.submission_key)))
        connection = self._connection
        response = await connection.get(url, connection.headers.for_lookup(submission), submission)
        if not isinstance(response, Response):
            return response
        return classify_lookup(
            response, submission.submission_key, datetime.now(UTC), connection.sanitizer
        )

    async def close(self) -> None:
        """Close all connections. Calls in flight fail."""
        await self._connection.close()


def _entry(submission: Submission) -> bytes:
    payload = submission.payload.raw if submission.payload else b"null"
    return b'{"idempotency_key":"%s","fencing_token":%d,"attempt":%d,"payload":%s}' % (
        str(submission.submission_key).encode(),
        submission.fencing_token,
        submission.attempt_no,
        payload,
    )

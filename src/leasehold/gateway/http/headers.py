"""The headers of a call: what each receiver may rely on, and what the contract adds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from multidict import CIMultiDict

from leasehold.gateway.errors import GatewayMisconfigured
from leasehold.gateway.http.signature import Signer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from leasehold.domain.gateway_terms import HttpTerms
    from leasehold.gateway.protocol import Submission

USER_AGENT = "leasehold"
JSON_TYPE = "application/json"

_VALUE = re.compile(r"[\x20-\x7e\x80-\xff]*\Z")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")


class Headers:
    """Makes the headers of every call of one contract; reads its secrets once, when it is made."""

    def __init__(self, terms: HttpTerms, environment: Mapping[str, str]) -> None:
        # No compression is asked for: a small answer can unpack to a large one.
        self._fixed = CIMultiDict({"User-Agent": USER_AGENT, "Accept-Encoding": "identity"})
        self._fixed.update(terms.headers)
        for header, name in terms.secret_headers.items():
            self._fixed[header] = _secret(name, environment, f"for the header {header}")
        self._signer: Signer | None = None
        if terms.signing_secret_env is not None:
            secret = _secret(terms.signing_secret_env, environment, "for signatures")
            self._signer = Signer(secret, name=terms.signing_secret_env)

    def for_submission(
        self, submission: Submission, body: bytes, now: datetime
    ) -> CIMultiDict[str]:
        """Give the headers of one try; ours replace the contract's, in whatever case they are."""
        headers = self.for_lookup(submission)
        headers["Content-Type"] = _content_type(submission)
        headers["Idempotency-Key"] = str(submission.submission_key)
        headers["Fencing-Token"] = str(submission.fence)
        headers["Leasehold-Attempt"] = str(submission.attempt_no)
        if self._signer is not None:
            headers.update(self._signer.headers(submission.submission_key, body, now))
        return headers

    def for_lookup(self, submission: Submission) -> CIMultiDict[str]:
        """Give the headers of a question; it carries no key that could be taken for a call."""
        headers = self._fixed.copy()
        traceparent = submission.trace_context
        # What is no traceparent would make receivers drop the whole trace, or worse.
        if traceparent is not None and _TRACEPARENT.match(traceparent):
            headers["traceparent"] = traceparent
        return headers


def _content_type(submission: Submission) -> str:
    """Name the body's type. It came with the intent, so anything may be in it."""
    if submission.body is None:
        return JSON_TYPE
    given = submission.content_type or "application/octet-stream"
    return given if given.isascii() and _VALUE.match(given) else quote(given, safe="/;=+ ")


def _secret(name: str, environment: Mapping[str, str], purpose: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise GatewayMisconfigured(
            f"the environment variable {name} is not set ({purpose}): set it where the worker runs"
        )
    if not _VALUE.match(value):
        raise GatewayMisconfigured(
            f"the environment variable {name} ({purpose}) holds a line break or other characters"
            " that no header may have"
        )
    return value

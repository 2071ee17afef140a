"""The headers of a call: those that every gateway can rely on, the contract's, and the signature.

Calls are signed by the Standard Webhooks specification, which receivers can verify with a library
in any language.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid5

from multidict import CIMultiDict
from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

from leasehold.gateway.errors import GatewayMisconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from leasehold.gateway.http.connection_terms import ConnectionTerms
    from leasehold.gateway.protocol import Submission

USER_AGENT = "leasehold"
JSON_TYPE = "application/json"
OPAQUE_TYPE = "application/octet-stream"

# What a stream's name may contain and is sent as it is; the rest is percent-encoded.
_STREAM_SAFE = "!#$&'()*+,/:;=?@[]"

_VALUE = re.compile(r"[\x20-\x7e\x80-\xff]*\Z")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
_SECRET_PREFIX = "whsec_"  # noqa: S105 (a prefix that every secret has)
_SECRET_BYTES_MIN = 16


class Headers:
    """Builds the headers of every call of one contract. Reads its secrets once, at construction."""

    def __init__(self, terms: ConnectionTerms, environment: Mapping[str, str]) -> None:
        # No compression: a small response could unpack to a huge one.
        self._fixed = CIMultiDict({"User-Agent": USER_AGENT, "Accept-Encoding": "identity"})
        self._fixed.update(terms.headers)
        for header, name in terms.secret_headers.items():
            self._fixed[header] = _read_secret(name, environment, f"for the header {header}")
        self._signer: Signer | None = None
        if terms.signing_variable is not None:
            secret = _read_secret(terms.signing_variable, environment, "for signatures")
            self._signer = Signer(secret, name=terms.signing_variable)
        self._stream_header = terms.stream_header

    def for_array(
        self, submissions: Sequence[Submission], body: bytes, now: datetime
    ) -> CIMultiDict[str]:
        """Return the headers of several submissions in one body, which has the key of each."""
        headers = self._for_call(submissions[0])
        headers["Content-Type"] = JSON_TYPE
        if self._signer is not None:
            keys = " ".join(str(one.submission_key) for one in submissions)
            message_id = uuid5(submissions[0].submission_key, keys)  # again the same if resent
            headers.update(self._signer.headers(message_id, body, now))
        return headers

    def for_batches(self, first: Submission, batch_ids: str) -> CIMultiDict[str]:
        """Return the headers of signed batches of one stream. Their ids are their keys."""
        headers = self._for_call(first)
        headers["Content-Type"] = OPAQUE_TYPE
        headers["Leasehold-Batch-Id"] = batch_ids
        return headers

    def for_submission(
        self, submission: Submission, body: bytes, now: datetime
    ) -> CIMultiDict[str]:
        """Return the headers of one attempt. Ours replace the contract's, in whatever case."""
        headers = self._for_call(submission)
        headers["Content-Type"] = _content_type(submission)
        headers["Idempotency-Key"] = str(submission.submission_key)
        if self._signer is not None:
            headers.update(self._signer.headers(submission.submission_key, body, now))
        return headers

    def for_lookup(self, submission: Submission) -> CIMultiDict[str]:
        """Return the headers of a lookup; without a key, so that no gateway takes it for a call."""
        headers = self._fixed.copy()
        traceparent = submission.trace_context
        # A receiver drops the whole trace if this header is malformed.
        if traceparent is not None and _TRACEPARENT.match(traceparent):
            headers["traceparent"] = traceparent
        return headers

    def _for_call(self, submission: Submission) -> CIMultiDict[str]:
        headers = self.for_lookup(submission)
        headers["Fencing-Token"] = str(submission.fencing_token)
        headers["Leasehold-Attempt"] = str(submission.attempt_no)
        if self._stream_header is not None and submission.stream is not None:
            headers[self._stream_header] = quote(submission.stream, safe=_STREAM_SAFE)
        return headers


class Signer:
    """Signs bodies with one secret, or with several (separated by spaces) during a rotation."""

    def __init__(self, secrets: str, *, name: str) -> None:
        """`name` is the environment variable that errors name; they never show the secret."""
        try:
            parts = secrets.split()
            self._keys = [base64.b64decode(_padded(part), validate=True) for part in parts]
            self._webhooks = [Webhook(key) for key in self._keys]
        except (ValueError, EmptyWebhookSecretError):
            raise GatewayMisconfigured(
                f"{name} holds no signing secret: expected whsec_ and base64"
            ) from None
        if not self._keys or min(map(len, self._keys)) < _SECRET_BYTES_MIN:
            raise GatewayMisconfigured(
                f"{name} holds a signing secret of less than {_SECRET_BYTES_MIN} bytes"
            )

    def headers(self, message_id: UUID, body: bytes, now: datetime) -> Mapping[str, str]:
        """Return the signature headers. The id is the same on every attempt, the time is not."""
        seconds = int(now.timestamp())
        return {
            "webhook-id": str(message_id),
            "webhook-timestamp": str(seconds),
            "webhook-signature": " ".join(self._signatures(str(message_id), seconds, body)),
        }

    def _signatures(self, message_id: str, seconds: int, body: bytes) -> list[str]:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            # The library signs text only; the specification signs bytes, and ours may be any.
            signed = f"{message_id}.{seconds}.".encode() + body
            digests = (hmac.new(key, signed, hashlib.sha256).digest() for key in self._keys)
            return [f"v1,{base64.b64encode(digest).decode()}" for digest in digests]
        timestamp = datetime.fromtimestamp(seconds, UTC)
        return [webhook.sign(message_id, timestamp, text) for webhook in self._webhooks]


def _padded(secret: str) -> str:
    bare = secret.removeprefix(_SECRET_PREFIX)
    return bare + "=" * (-len(bare) % 4)


def _content_type(submission: Submission) -> str:
    """Return the body's type. It was enqueued with the intent, so it may contain anything."""
    if submission.body is None:
        return JSON_TYPE
    given = submission.content_type or OPAQUE_TYPE
    return given if given.isascii() and _VALUE.match(given) else quote(given, safe="/;=+ ")


def _read_secret(name: str, environment: Mapping[str, str], purpose: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise GatewayMisconfigured(
            f"the environment variable {name} is not set ({purpose}): set it where the worker runs"
        )
    if not _VALUE.match(value):
        raise GatewayMisconfigured(
            f"the environment variable {name} ({purpose}) holds a line break or another character"
            " that a header must not contain"
        )
    return value

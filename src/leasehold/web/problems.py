"""Refusals as problem documents (RFC 9457): the kinds, and how they are written.

`code` is for programs and never changes; `detail` is for people, says what to do, and may change. A
document never repeats a value that was sent: it may be a secret.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from leasehold.domain.errors import (
    AccessDenied,
    DatabaseUnavailable,
    GenerationChanged,
    IntakeFull,
    InvalidArgument,
    LeaseholdError,
    MigrationError,
    RetryCeilingReached,
)
from leasehold.domain.intent_rules import Fault
from leasehold.web.strict_json import NotStrictJson

if TYPE_CHECKING:
    from collections.abc import Sequence

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 1
DATABASE_RETRY_SECONDS = 2
# Nobody corrects more at once, and a response should not be larger than its request.
FAULTS_MAX = 100
_DETAIL_LENGTH_MAX = 2000
_READ_FAILED = "The database did not answer. Nothing was changed: try again."
_WRITE_FAILED = "Outcome unknown. Retry with the same idempotency key."


class Kind(NamedTuple):
    """The status and title of a kind of problem."""

    status: int
    title: str


KINDS = {
    "bad_request": Kind(400, "The request is malformed"),
    "invalid_json": Kind(400, "The body is not valid JSON"),
    "unauthenticated": Kind(401, "A valid token is required"),
    "forbidden": Kind(403, "The token does not permit this"),
    "not_found": Kind(404, "Not found"),
    "unknown_target": Kind(404, "The target has no published contract"),
    "method_not_allowed": Kind(405, "The method is not allowed here"),
    "too_slow": Kind(408, "The request took too long to arrive"),
    "idempotency_conflict": Kind(409, "The idempotency key belongs to another intent"),
    "not_possible": Kind(409, "The state of the intent or the stream does not allow this"),
    "not_confirmed": Kind(409, "The confirmation does not match what would be done now"),
    "too_large": Kind(413, "The body is too large"),
    "unsupported_media_type": Kind(415, "The media type is not supported"),
    "misdirected": Kind(421, "This host is not served here"),
    "invalid": Kind(422, "The request is invalid"),
    "queue_full": Kind(429, "The target's queue is full"),
    "too_many": Kind(429, "Too many requests"),
    "headers_too_large": Kind(431, "The request head is too large"),
    "internal": Kind(500, "Internal error"),
    "database_unavailable": Kind(503, "The database is unavailable"),
    "intake_full": Kind(503, "Too many intents are waiting to be written"),
    "overloaded": Kind(503, "Too many concurrent requests"),
}

Header = tuple[bytes, bytes]


class Problem(Exception):
    """A refused request; `code` is a key of KINDS."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        faults: Sequence[Fault] = (),
        faults_left_out: int = 0,
        headers: Sequence[Header] = (),
        retry_seconds: int | None = None,
        **more: Any,  # noqa: ANN401 (JSON)
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.kind = KINDS[code]
        self.detail = detail
        self.faults = faults[:FAULTS_MAX]
        self.faults_left_out = len(faults) - len(self.faults) + faults_left_out
        self.headers = list(headers)
        self.retry_seconds = retry_seconds
        if retry_seconds is not None:
            self.headers.append((b"retry-after", str(retry_seconds).encode()))
        self.more = more

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.kind.status

    def document(self) -> dict[str, Any]:
        """Return the document without the request id."""
        document: dict[str, Any] = {
            "type": f"/problems/{self.code.replace('_', '-')}",
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "code": self.code,
            **self.more,
        }
        if self.faults:
            document["problems"] = [fault._asdict() for fault in self.faults]
        if self.faults_left_out:
            document["problems_left_out"] = self.faults_left_out
        return document

    def body(self, request_id: str) -> bytes:
        """Return the document as JSON, with the id of the request that it answers."""
        return json.dumps({**self.document(), "request_id": request_id}).encode()


def invalid(faults: Sequence[Fault], left_out: int = 0) -> Problem:
    """Refuse a request that could be read, listing up to FAULTS_MAX things to correct."""
    listed = "; ".join(
        f"{one.place}: {one.message}" if one.place else one.message for one in faults[:FAULTS_MAX]
    )
    return Problem("invalid", listed[:_DETAIL_LENGTH_MAX], faults=faults, faults_left_out=left_out)


def problem_of(error: LeaseholdError, *, is_read: bool = False) -> Problem | None:
    """Translate one of our errors for a client; None if it is a defect."""
    match error:
        case DatabaseUnavailable() | MigrationError() | AccessDenied():
            return Problem(
                "database_unavailable",
                _READ_FAILED if is_read else _WRITE_FAILED,
                retry_seconds=DATABASE_RETRY_SECONDS,
            )
        case IntakeFull():
            return Problem("intake_full", str(error), retry_seconds=RETRY_SECONDS)
        case NotStrictJson():
            return Problem("invalid_json", str(error))
        case InvalidArgument():
            # The text may come from the database, which quotes values.
            return invalid([Fault("", "the database cannot take a value of this request")])
        case GenerationChanged():  # of an operator's functions: a restore is being repaired
            detail = "The database was restored. Try again when `leasehold restored` has ended."
            return Problem("not_possible", detail, retry_seconds=RETRY_SECONDS, verdict="restoring")
        case RetryCeilingReached():
            return Problem("not_possible", str(error), verdict="ceiling_reached")
        case _:
            return None


DEFECT = Problem(
    "internal", "This is a defect. The outcome is unknown; the server's log has the details."
)

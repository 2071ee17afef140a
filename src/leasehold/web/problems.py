"""Every refusal, as a problem document (RFC 9457): which kinds there are, and how they read.

`code` is for programs and never changes; `detail` is for people, says what to do, and may. What was
sent is never repeated: it may be a secret.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from leasehold.domain.errors import (
    AccessDenied,
    DatabaseUnavailable,
    IntakeFull,
    InvalidArgument,
    LeaseholdError,
    MigrationError,
    RetryCeilingReached,
)
from leasehold.web.strict_json import NotStrictJson

if TYPE_CHECKING:
    from collections.abc import Sequence

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 1
DATABASE_RETRY_SECONDS = 2
# More than anybody corrects at once: an answer is not to be larger than what it answers.
FAULTS_MAX = 100
_DETAIL_LENGTH_MAX = 2000


class Kind(NamedTuple):
    """A kind of problem: its status, and what it is called."""

    status: int
    title: str


KINDS = {
    "bad_request": Kind(400, "The request cannot be read"),
    "invalid_json": Kind(400, "The body is no JSON that can be kept"),
    "unauthenticated": Kind(401, "A valid token is needed"),
    "forbidden": Kind(403, "The token may not do this"),
    "not_found": Kind(404, "There is no such thing"),
    "unknown_target": Kind(404, "No contract is published for the target"),
    "method_not_allowed": Kind(405, "The method is not one for this address"),
    "too_slow": Kind(408, "The request took too long to arrive"),
    "idempotency_conflict": Kind(409, "The idempotency key stands for another intent"),
    "not_possible": Kind(409, "This cannot be done to the intent as it stands"),
    "not_confirmed": Kind(409, "The confirmation is not of what would be done now"),
    "too_large": Kind(413, "The body is too large"),
    "unsupported_media_type": Kind(415, "The body is not of a kind that can be read"),
    "misdirected": Kind(421, "This host is not served here"),
    "invalid": Kind(422, "The request was refused"),
    "queue_full": Kind(429, "The target has as many unfinished intents as its contract allows"),
    "too_many": Kind(429, "Too much was asked for in too short a time"),
    "headers_too_large": Kind(431, "The head of the request is too large"),
    "internal": Kind(500, "This is a defect"),
    "database_unavailable": Kind(503, "The database did not answer"),
    "intake_full": Kind(503, "Too much is waiting already"),
    "overloaded": Kind(503, "Too many requests are being answered already"),
}

Header = tuple[bytes, bytes]


class Fault(NamedTuple):
    """One thing that must change: its place in what was sent, and what is allowed there."""

    place: str
    message: str


class Problem(Exception):
    """A request that is refused; `code` is one of KINDS."""

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
        """Give the HTTP status."""
        return self.kind.status

    def document(self) -> dict[str, Any]:
        """Give what the document says, whichever request it answers."""
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
        """Write the document for one request."""
        return json.dumps({**self.document(), "request_id": request_id}).encode()


def invalid(faults: Sequence[Fault], left_out: int = 0) -> Problem:
    """Refuse what can be read but not be done, with all that is wrong, up to a hundred things."""
    told = "; ".join(
        f"{one.place}: {one.message}" if one.place else one.message for one in faults[:FAULTS_MAX]
    )
    return Problem("invalid", told[:_DETAIL_LENGTH_MAX], faults=faults, faults_left_out=left_out)


def problem_of(error: LeaseholdError) -> Problem | None:
    """Give the problem that an error of ours is for a client; None for what is our own defect."""
    match error:
        case DatabaseUnavailable() | MigrationError() | AccessDenied():
            return Problem(
                "database_unavailable",
                "nothing is known of what was asked: with an idempotency key it is safe to repeat",
                retry_seconds=DATABASE_RETRY_SECONDS,
            )
        case IntakeFull():
            return Problem("intake_full", str(error), retry_seconds=RETRY_SECONDS)
        case NotStrictJson():
            return Problem("invalid_json", str(error))
        case InvalidArgument():
            return invalid([Fault("", str(error))])
        case RetryCeilingReached():
            return Problem("not_possible", str(error), verdict="ceiling_reached")
        case _:
            return None


DEFECT = Problem("internal", "this is a defect of ours: what was asked may or may not be done")

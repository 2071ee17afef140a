"""Response bodies as pydantic models, for writing them and for OpenAPI."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_type_hints
from uuid import UUID

from pydantic import BaseModel, ConfigDict, create_model

from leasehold.domain.intent import AttemptState, Status
from leasehold.domain.verdict import BatchVerdict, RedriveVerdict  # noqa: TC001
from leasehold.store import reader_rows
from leasehold.web.schemas.requests import AnyJson, ObjectOrNull  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Callable


Body = TypeVar("Body", bound="ResponseBody")
# What the rows import for type checkers only. An id is a UUID in the schema.
_TYPES_OF_ROWS = {
    "AttemptState": AttemptState,
    "IntentId": UUID,
    "Status": Status,
    "datetime": datetime,
}


class ResponseBody(BaseModel):
    """The base of all response bodies."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


def of_row(row: type) -> Callable[[type[Body]], type[Body]]:
    """Give a response the fields of a store's row, besides those that it declares itself."""

    def decorate(body: type[Body]) -> type[Body]:
        types = get_type_hints(row, localns=_TYPES_OF_ROWS)
        given: dict[str, Any] = {
            one.name: (types[one.name], ...)
            for one in fields(row)
            if one.name not in body.model_fields
        }
        return create_model(body.__name__, __base__=body, __doc__=body.__doc__, **given)

    return decorate


@of_row(reader_rows.IntentStatus)
class Intent(ResponseBody):
    """The current state of an intent."""


class Accepted(ResponseBody):
    """A committed intent.

    If the client waited, `status` is present; with the scope `read`, `intent` is present too. Both
    are null if the state could not be read.
    """

    intent_id: UUID
    target: str
    href: str
    status: Status | None = None
    intent: Intent | None = None


class Fault(ResponseBody):
    """One thing to correct."""

    place: str
    message: str


class Verdict(ResponseBody):
    """The verdict on one intent of a batch, with the status that a single request would get.

    `retry_seconds` is present if a retry with the same key may succeed after that time.
    `problems_left_out` counts the problems that are not listed.
    """

    ordinal: int
    status: int
    verdict: BatchVerdict
    intent_id: UUID | None = None
    problems: list[Fault] | None = None
    problems_left_out: int | None = None
    retry_seconds: int | None = None


class Verdicts(ResponseBody):
    """One verdict for each intent, in their order."""

    results: list[Verdict]


@of_row(reader_rows.Attempt)
class Attempt(ResponseBody):
    """One ledger row."""


class Attempts(ResponseBody):
    """The ledger of an intent."""

    attempts: list[Attempt]


class Content(ResponseBody):
    """The content of an intent: exactly one of `payload` and `body` (base64) is not null."""

    intent_id: UUID
    payload: AnyJson
    body: str | None
    content_type: str | None
    metadata: ObjectOrNull


class Page(ResponseBody):
    """Intents, newest first; `next` is the `before` of the next page, if there may be more."""

    intents: list[Intent]
    next: UUID | None


class Intervened(ResponseBody):
    """An operation that was done, and the operator."""

    intent_id: UUID
    verdict: str
    operator: str


class Retried(ResponseBody):
    """The new intent that replaces a finished one."""

    intent_id: UUID
    verdict: RedriveVerdict
    new_intent_id: UUID
    operator: str
    href: str


class Redriven(ResponseBody):
    """The verdict on one finished intent."""

    intent_id: UUID
    verdict: RedriveVerdict
    new_intent_id: UUID | None


class Redrive(ResponseBody):
    """What a redrive would do, or did; `next` is the `before` of the next part."""

    dry_run: bool
    count: int
    confirmation: str
    next: UUID | None
    intent_ids: list[UUID]
    results: list[Redriven] | None


class Target(ResponseBody):
    """A target with its current contract."""

    target: str
    version: int
    published_at: datetime
    published_by: str
    is_full: bool
    terms: dict[str, Any]


class Targets(ResponseBody):
    """Every target that the token covers."""

    targets: list[Target]


class Instance(ResponseBody):
    """An instance as of its last report. Its role is stopped or silent if it is not alive."""

    instance_id: str
    role: str
    started_at: datetime
    seen_at: datetime
    expires_at: datetime
    is_alive: bool
    detail: dict[str, Any]


class Instances(ResponseBody):
    """Instances by id; `next` is the `after` of the next page."""

    instances: list[Instance]
    next: str | None


@of_row(reader_rows.LeaseSeen)
class Lease(ResponseBody):
    """A lease, held or not. `expires_at` is null for a stream that nobody holds."""


class Leases(ResponseBody):
    """Leases by name; `next` is the `after` of the next page."""

    leases: list[Lease]
    next: str | None


class Stats(ResponseBody):
    """Totals of the whole queue as they were last counted.

    `seen_at` is when the oldest part was counted. It is null until every part was, and the totals
    are too low until then. Of a stream only its head can be due, and not while the stream is paused
    or held; its calls in flight are `leased`. `streams_blocked` counts, by target,
    streams that are paused until somebody resumes them.
    """

    pending: int
    due: int
    leased: int
    expired_leases: int
    due_unleased: int
    in_doubt: int
    held: int
    confirming: int
    deferred: int
    oldest_pending_seconds: float | None
    oldest_deferred_seconds: float | None
    streams_blocked: dict[str, int]
    seen_at: datetime | None
    age_seconds: float | None


class ScopeState(ResponseBody):
    """The role of this instance in one scope."""

    mode: str
    holder_id: str | None
    lease_expires_at: datetime | None


class Readiness(ResponseBody):
    """Whether this instance should get requests."""

    status: Literal["ready", "draining", "database_unavailable"]
    instance_id: str
    scopes: dict[str, ScopeState]


class Health(ResponseBody):
    """The process is alive."""

    status: Literal["ok"]


class ProblemDocument(ResponseBody):
    """A refusal (RFC 9457): `code` is for programs, `detail` says what to do.

    `problems_left_out` counts the problems beyond the first hundred. A used key has `differs`
    and `intent_id`; `verdict` says why an operation is not possible.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    problems: list[Fault] | None = None
    problems_left_out: int | None = None
    differs: str | None = None
    intent_id: UUID | None = None
    verdict: str | None = None


_Blocked: TypeAlias = Literal["paused", "held", "in_doubt", "confirming", "deferred", "retrying"]


class StreamIntervened(ResponseBody):
    """An operation on a stream that was done, and the operator."""

    target: str
    stream: str
    verdict: str
    operator: str


@of_row(reader_rows.StreamPause)
class StreamPause(ResponseBody):
    """A reason for which a stream stands still: a person (or token) paused it, or an intent failed.

    `paused_by` is `on_failure` for a failed intent, which is `paused_for`. `paused_until` is null
    if it ends only by a resume that names it.
    """


@of_row(reader_rows.BlockedStream)
class BlockedStream(ResponseBody):
    """A stream that is paused, or whose head was tried and has not ended.

    `head` is null if nothing waits. `pauses` are the reasons for which the stream is paused, the
    first 20: failed intents, then people. It goes on when the last one has ended. `paused_by`,
    `paused_for` and `reason` are those of the first. A failed intent is finished, and `head` is the
    next one. `paused_until` is the latest end, null if it is not paused, or until somebody resumes
    it. `waiting` counts the intents behind the head that
    were not submitted, up to 1,000; `submitted` those of a pipeline that await their confirmation.
    """

    state: _Blocked
    pauses: list[StreamPause]


class BlockedStreams(ResponseBody):
    """Blocked streams by target and name; `next` is the `after` of the next page."""

    streams: list[BlockedStream]
    next: str | None


@of_row(reader_rows.StreamSeen)
class Stream(ResponseBody):
    """A stream, blocked or not, with the members of a blocked stream and its holder, if any.

    If it is not blocked, its state is `in_flight`, `waiting` (the head was not tried yet),
    `confirming` (only submitted intents are left) or `empty`, and `blocked_since` is null.
    `in_flight_since` is when a call began that has not ended. If the holder has died, others take
    the stream after `grace_expires_at` while a call is in flight, else after `lease_expires_at`.
    """

    state: Literal[_Blocked, "in_flight", "waiting", "empty"]
    pauses: list[StreamPause]

"""What is sent and answered, as pydantic models: they check the one and describe both.

Strict: a number is not taken from text, and an unknown member is a mistake of the sender's.
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID  # noqa: TC003 (pydantic reads the annotations)

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
)

from leasehold.domain.intent import AttemptState, Status
from leasehold.domain.verdict import RedriveVerdict  # noqa: TC001 (as above)

TEN_YEARS_SECONDS = 315_360_000
NOTE_LENGTH_MAX = 2000
PAGE_MAX = 200
REDRIVE_MAX = 1000
WAIT_SECONDS_MAX = 30

_MOMENT = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,6})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)
_NO_CONTROLS = r"^[^\u0000-\u001f\u007f-\u009f]+$"


def _moment(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str) and _MOMENT.fullmatch(value):
        try:
            return datetime.fromisoformat(value.upper())
        except ValueError:
            pass
    raise ValueError("must be a moment with its time zone, such as 2030-01-31T12:00:00Z")


Moment = Annotated[
    datetime,
    BeforeValidator(_moment),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
Name = Annotated[str, Field(min_length=1, max_length=255, pattern=_NO_CONTROLS)]
Target = Annotated[str, Field(min_length=1, max_length=64, pattern=_NO_CONTROLS)]
Seconds = Annotated[float, Field(ge=0, le=TEN_YEARS_SECONDS, allow_inf_nan=False)]
Note = Annotated[
    str,
    Field(
        min_length=1,
        max_length=NOTE_LENGTH_MAX,
        description="Why; it stands on the ledger for ever.",
    ),
]
AnyJson = Annotated[Any, WithJsonSchema({"description": "Any JSON but null."})]
JsonObject = Annotated[Any, WithJsonSchema({"type": "object"})]


class Sent(BaseModel):
    """What a client sends."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Answered(BaseModel):
    """What we answer."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class IntentSent(Sent):
    """An intent to accept. Exactly one of `payload` and `body`."""

    target: Target
    payload: AnyJson = None
    body: Annotated[
        str | None,
        Field(description="Opaque bytes in base64, in the place of a payload."),
    ] = None
    content_type: Annotated[Name | None, Field(description="Goes with `body`.")] = None
    idempotency_key: Annotated[
        Name | None,
        Field(description="The same key with the same target and content is the same intent."),
    ] = None
    stream: Name | None = None
    priority: Annotated[int | None, Field(ge=0, le=3, description="0 first to 3 last.")] = None
    due_at: Moment | None = None
    delay_seconds: Seconds | None = None
    deadline_at: Moment | None = None
    deadline_seconds: Seconds | None = None
    metadata: JsonObject = None


class BatchSent(Sent):
    """Up to 1,000 intents."""

    intents: Annotated[list[IntentSent], Field(min_length=1, max_length=1000)]


class NoteSent(Sent):
    """An intervention, and why."""

    note: Note


class ResolutionSent(Sent):
    """What became of an intent that is in doubt, held or awaiting confirmation.

    dispatched: it had its effect. failed: it had none, and shall have none. retry: it had none, and
    is to be tried again.
    """

    resolution: Literal["dispatched", "failed", "retry"]
    note: Note
    reference: Annotated[Name | None, Field(description="What the gateway calls it.")] = None


def _final(status: Status) -> Status:
    if status not in {Status.REJECTED, Status.EXHAUSTED, Status.CANCELLED}:
        raise ValueError("must be rejected, exhausted or cancelled")
    return status


class RedriveSent(Sent):
    """Finished intents of one target, to be tried anew.

    First as a dry run, which finds them and gives a `confirmation`; then with it, unchanged.
    """

    target: Target
    status: Annotated[
        Status,
        Field(strict=False),
        AfterValidator(_final),
        WithJsonSchema({"type": "string", "enum": ["rejected", "exhausted", "cancelled"]}),
    ]
    note: Note
    stream: Name | None = None
    since: Moment | None = None
    until: Moment | None = None
    before: Annotated[UUID | None, Field(strict=False)] = None
    limit: Annotated[int, Field(ge=1, le=REDRIVE_MAX)] = 100
    dry_run: bool = True
    confirmation: Annotated[str | None, Field(max_length=64)] = None


class Intent(Answered):
    """Where an intent stands."""

    intent_id: UUID
    target: str
    stream: str | None
    stream_seq: int | None
    idempotency_key: str | None
    contract_version: int
    status: Status
    reason: str | None
    attempts: int
    reference: str | None
    code: str | None
    detail: str | None
    priority: int | None
    due_at: datetime | None
    claimed_by: str | None
    created_at: datetime
    deadline_at: datetime | None
    finished_at: datetime | None
    redrive_of: UUID | None


class Accepted(Answered):
    """An intent that is committed; `intent` only where the client waited for it."""

    intent_id: UUID
    target: str
    href: str
    intent: Intent | None = None


class Fault(Answered):
    """One thing that must change."""

    place: str
    message: str


class BatchVerdict(StrEnum):
    """What became of one intent of a batch; only ACCEPTED wrote something."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    UNKNOWN_TARGET = "unknown_target"
    INVALID = "invalid"
    TOO_LARGE = "too_large"
    FORBIDDEN = "forbidden"
    QUEUE_FULL = "queue_full"
    UNAVAILABLE = "unavailable"


class Verdict(Answered):
    """What became of one intent of a batch, as the status of a request of its own would say."""

    ordinal: int
    status: int
    verdict: BatchVerdict
    intent_id: UUID | None = None
    problems: list[Fault] | None = None


class Verdicts(Answered):
    """One verdict for each intent, in their order."""

    results: list[Verdict]


class Attempt(Answered):
    """One row of the ledger."""

    intent_id: UUID
    attempt_no: int
    state: AttemptState
    reason: str | None
    holder: str
    lease_name: str | None
    lease_epoch: int | None
    started_at: datetime
    finished_at: datetime
    reference: str | None
    code: str | None
    detail: str | None


class Attempts(Answered):
    """The ledger of an intent."""

    attempts: list[Attempt]


class Content(Answered):
    """What an intent carries: exactly one of `payload` and `body` (base64)."""

    intent_id: UUID
    payload: AnyJson = None
    body: str | None = None
    content_type: str | None = None
    metadata: JsonObject = None


class Page(Answered):
    """Intents, newest first; `next` is the `before` to go on with, if there may be more."""

    intents: list[Intent]
    next: UUID | None


class Intervened(Answered):
    """What was done, in whose name."""

    intent_id: UUID
    verdict: str
    operator: str


class Retried(Answered):
    """The new intent in the place of a finished one."""

    intent_id: UUID
    verdict: RedriveVerdict
    new_intent_id: UUID
    operator: str
    href: str


class Redriven(Answered):
    """What became of one finished intent."""

    intent_id: UUID
    verdict: RedriveVerdict
    new_intent_id: UUID | None


class Redrive(Answered):
    """What a redrive would do, or did. `next` is the `before` to go on with."""

    dry_run: bool
    count: int
    confirmation: str
    next: UUID | None
    intent_ids: list[UUID]
    results: list[Redriven] | None = None


class TargetSeen(Answered):
    """A target under its current contract."""

    target: str
    version: int
    published_at: datetime
    published_by: str
    is_full: bool
    terms: dict[str, Any]


class Targets(Answered):
    """Every target that the token covers."""

    targets: list[TargetSeen]


class InstanceSeen(Answered):
    """An instance, as it last said of itself."""

    instance_id: str
    role: str
    started_at: datetime
    seen_at: datetime
    expires_at: datetime
    is_alive: bool
    detail: dict[str, Any]


class Instances(Answered):
    """Instances by their ids; `next` is the `after` to go on with."""

    instances: list[InstanceSeen]
    next: str | None


class LeaseSeen(Answered):
    """A lease, held or not."""

    lease_name: str
    holder_id: str
    lease_epoch: int
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime
    is_live: bool


class Leases(Answered):
    """Leases by their names; `next` is the `after` to go on with."""

    leases: list[LeaseSeen]
    next: str | None


class Stats(Answered):
    """The whole queue, in numbers."""

    pending: int
    due: int
    leased: int
    expired_leases: int
    due_unleased: int
    in_doubt: int
    held: int
    confirming: int
    oldest_pending_seconds: float | None


class ScopeState(Answered):
    """What this instance is in one scope."""

    mode: str
    holder_id: str | None
    lease_expires_at: datetime | None


class Readiness(Answered):
    """Whether requests should be sent to this instance."""

    status: Literal["ready", "draining", "database_unavailable"]
    instance_id: str
    scopes: dict[str, ScopeState]


class Health(Answered):
    """The process answers."""

    status: Literal["ok"]


class ProblemDocument(Answered):
    """A refusal (RFC 9457): `code` is for programs, `detail` says what to do."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    problems: list[Fault] | None = None

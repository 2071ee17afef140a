"""What we answer, as pydantic models: they write it and describe it."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 (pydantic reads the annotations)
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID  # noqa: TC003

from pydantic import BaseModel, ConfigDict

from leasehold.domain.intent import AttemptState, Status  # noqa: TC001
from leasehold.domain.verdict import RedriveVerdict  # noqa: TC001
from leasehold.web.schemas.types import AnyJson, JsonObject  # noqa: TC001


class Answered(BaseModel):
    """What we answer."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


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
    FORBIDDEN = "forbidden"
    QUEUE_FULL = "queue_full"
    UNAVAILABLE = "unavailable"


class Verdict(Answered):
    """What became of one intent of a batch, as the status of a request of its own would say.

    `retry_seconds` is there where it may be otherwise after so long, with the same key.
    `problems_left_out` counts what is wrong with it and not listed.
    """

    ordinal: int
    status: int
    verdict: BatchVerdict
    intent_id: UUID | None = None
    problems: list[Fault] | None = None
    problems_left_out: int | None = None
    retry_seconds: int | None = None


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
    """A refusal (RFC 9457): `code` is for programs, `detail` says what to do.

    `problems_left_out` counts what is wrong beyond the first hundred things.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    problems: list[Fault] | None = None
    problems_left_out: int | None = None

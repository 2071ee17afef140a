"""Intents: what a caller gives, and what an executor gets when it claims one."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.lease import Claim

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from typing import Unpack

    from leasehold.domain.lease import LeaseToken

IntentId = NewType("IntentId", UUID)
PRIORITIES = 4  # 0 goes first


class AttemptState(StrEnum):
    """What one row of the ledger says. At most one row of an intent is terminal, ever."""

    DISPATCHED = "DISPATCHED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    RETRYABLE = "RETRYABLE"
    ZOMBIE_REQUEUE = "ZOMBIE_REQUEUE"
    IN_DOUBT = "IN_DOUBT"
    SUBMITTED = "SUBMITTED"

    __hash__ = str.__hash__  # that of an enum is a function in Python, and states are keys a lot

    @property
    def is_terminal(self) -> bool:
        """Whether nothing can follow."""
        return self in _TERMINAL


_TERMINAL = frozenset({AttemptState.DISPATCHED, AttemptState.FAILED, AttemptState.CANCELLED})


class Status(StrEnum):
    """An intent as its user sees it; derived from the ledger, never stored."""

    PENDING = "pending"
    IN_DOUBT = "in_doubt"
    HELD = "held"
    CONFIRMING = "confirming"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether it will never change again."""
        return self in {self.ACCEPTED, self.REJECTED, self.EXHAUSTED, self.CANCELLED}


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """JSON as it came from the database: parsed only for those who look inside.

    A gateway that passes the payload on sends `raw` and never pays for the parsing.
    """

    raw: bytes

    def value(self) -> Any:  # noqa: ANN401 (any JSON)
        """Parse it; anew on each call, so that nobody shares what somebody else changes."""
        # The database writes UTF-8 only; given bytes, the parser would have to guess.
        return json.loads(self.raw.decode())


@dataclass(slots=True, kw_only=True)  # frozen, each of a large batch would cost four times as much
class NewIntent:
    """What a caller gives to enqueue. The database judges it and answers per intent.

    Exactly one of `payload` (any JSON but null) and `body` (opaque bytes, with `content_type`).
    Without an `idempotency_key` every call is a new intent. A key stands for one intent of its
    target; with `key_scope` "all", for one intent among all those whose key was given so.
    A `payload` or `metadata` that is a JsonDocument has been checked, and goes as it is written.
    """

    target: str
    payload: Any = None
    body: bytes | None = None
    content_type: str | None = None
    idempotency_key: str | None = None
    key_scope: Literal["all"] | None = None
    stream: str | None = None
    priority: int | None = None
    due_at: datetime | None = None
    delay_seconds: float | None = None
    deadline_at: datetime | None = None
    deadline_seconds: float | None = None
    metadata: Mapping[str, Any] | JsonDocument | None = None
    trace_context: str | None = None


class IntentOptions(TypedDict, total=False):
    """What may be said of an intent beside its target and payload; see NewIntent."""

    body: bytes | None
    content_type: str | None
    idempotency_key: str | None
    key_scope: Literal["all"] | None
    stream: str | None
    priority: int | None
    due_at: datetime | None
    delay_seconds: float | None
    deadline_at: datetime | None
    deadline_seconds: float | None
    metadata: Mapping[str, Any] | None
    trace_context: str | None


def as_intent(
    intent: NewIntent | str,
    payload: Any,  # noqa: ANN401 (any JSON)
    **options: Unpack[IntentOptions],
) -> NewIntent:
    """Read either spelling: a whole intent, or a target with all the rest beside it."""
    if isinstance(intent, str):
        return NewIntent(target=intent, payload=payload, **options)
    if payload is not None or options:
        raise InvalidArgument("give either a NewIntent, or a target with its payload and options")
    return intent


class Claimed(NamedTuple):
    """A due item under a fresh claim, or under a leader's lease, with all that a call needs.

    `submission_key` is the idempotency key for the gateway, the same on every try. `last_state`
    says what to do: None, RETRYABLE and ZOMBIE_REQUEUE ask for a call, SUBMITTED for a look whether
    it is confirmed, IN_DOUBT for what the contract's guarantee allows.
    """

    intent_id: IntentId
    lease_token: LeaseToken | None  # that of its own claim
    last_state: AttemptState | None
    target: str
    contract_version: int
    attempt_no: int
    reference: str | None
    priority: int
    stream: str | None
    submission_key: UUID
    payload: JsonDocument | None
    body: bytes | None
    content_type: str | None
    metadata: JsonDocument | None
    trace_context: str | None
    created_at: datetime
    due_at: datetime
    deadline_at: datetime | None
    first_tried_at: datetime
    claimed_at: datetime

    @property
    def claim(self) -> Claim:
        """The claim of an item; what stands under a lease has none."""
        if self.lease_token is None:
            raise TypeError(f"intent {self.intent_id} stands under a lease, not a claim")
        return Claim(self.intent_id, self.lease_token)


def queue_delays(claimed: Iterable[Claimed]) -> dict[str, list[float]]:
    """Say by target how many seconds each had been due, on the database's clock."""
    delays: defaultdict[str, list[float]] = defaultdict(list)
    for one in claimed:
        delays[one.target].append((one.claimed_at - one.due_at).total_seconds())
    return delays

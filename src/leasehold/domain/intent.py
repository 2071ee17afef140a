"""Intents: as a caller enqueues them, and as an executor claims them."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
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
KeyScope = Literal["target", "all"]
# What an operator can say of an intent in doubt.
Resolution = Literal["dispatched", "failed", "retry"]
PRIORITIES = 4  # 0 is the most urgent


class AttemptState(StrEnum):
    """The state of a ledger row. An intent has at most one terminal row, ever."""

    DISPATCHED = "DISPATCHED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    RETRYABLE = "RETRYABLE"
    ZOMBIE_REQUEUE = "ZOMBIE_REQUEUE"
    IN_DOUBT = "IN_DOUBT"
    SUBMITTED = "SUBMITTED"

    __hash__ = str.__hash__  # much faster than the hash of an enum, and states are often keys

    @property
    def is_terminal(self) -> bool:
        """Whether it is the last state of the intent."""
        return self in _TERMINAL


_TERMINAL = frozenset({AttemptState.DISPATCHED, AttemptState.FAILED, AttemptState.CANCELLED})
# The ledger state that records each resolution.
RESOLVED_STATES: Mapping[Resolution, AttemptState] = {
    "dispatched": AttemptState.DISPATCHED,
    "failed": AttemptState.FAILED,
    "retry": AttemptState.RETRYABLE,
}


class Status(StrEnum):
    """The status of an intent for its user. Derived from the ledger, never stored."""

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
        """Whether the status can no longer change."""
        return self in {self.ACCEPTED, self.REJECTED, self.EXHAUSTED, self.CANCELLED}


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """JSON as received from the database, parsed only on demand.

    A gateway that passes the payload on sends `raw` without parsing it.
    """

    raw: bytes

    def value(self, *, decimals: bool = False) -> Any:  # noqa: ANN401 (any JSON)
        """Parse it. Each call returns a new object, so that callers may modify theirs.

        With `decimals`, a number that is not an integer becomes a Decimal with every digit.
        """
        # Decoded here because the database always writes UTF-8, and json.loads would have to guess.
        return json.loads(self.raw.decode(), parse_float=Decimal if decimals else None)


@dataclass(slots=True, kw_only=True)  # not frozen: that would make large batches four times slower
class NewIntent:
    """An intent to enqueue. The database validates it and returns a verdict.

    Exactly one of `payload` (any JSON but null) and `body` (opaque bytes, with `content_type`) is
    set. Without an `idempotency_key` every call creates a new intent. A key identifies one intent
    of its target; with `key_scope` "all", one intent among all that have this key scope.
    A `payload` or `metadata` that is a JsonDocument has been validated and is sent unchanged.
    """

    target: str
    payload: Any = None
    body: bytes | None = None
    content_type: str | None = None
    idempotency_key: str | None = None
    key_scope: KeyScope | None = None
    stream: str | None = None
    priority: int | None = None
    due_at: datetime | None = None
    delay_seconds: float | None = None
    deadline_at: datetime | None = None
    deadline_seconds: float | None = None
    metadata: Mapping[str, Any] | JsonDocument | None = None
    trace_context: str | None = None


class IntentOptions(TypedDict, total=False):
    """The fields of NewIntent besides target and payload."""

    body: bytes | None
    content_type: str | None
    idempotency_key: str | None
    key_scope: KeyScope | None
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
    """Accept both forms of a call: a NewIntent, or a target with a payload and options."""
    if isinstance(intent, str):
        return NewIntent(target=intent, payload=payload, **options)
    if payload is not None or options:
        raise InvalidArgument("give either a NewIntent, or a target with its payload and options")
    return intent


class Claimed(NamedTuple):
    """A due intent with everything that a call needs, under a claim or under a leader's lease.

    `submission_key` is the idempotency key for the gateway, the same on every attempt.
    `fencing_token` rises with every attempt for one submission key. `last_state`
    decides the next step: a call for None, RETRYABLE and ZOMBIE_REQUEUE, a confirmation for
    SUBMITTED, and for IN_DOUBT what the contract's guarantee permits.
    """

    intent_id: IntentId
    lease_token: LeaseToken | None  # None under a leader's lease
    last_state: AttemptState | None
    target: str
    contract_version: int
    attempt_no: int
    reference: str | None
    priority: int
    stream: str | None
    submission_key: UUID
    fencing_token: int
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
    def content_bytes(self) -> int:
        """How many bytes the payload or body and the metadata have."""
        content = self.body if self.payload is None else self.payload.raw
        return len(content or b"") + (len(self.metadata.raw) if self.metadata else 0)

    @property
    def claim(self) -> Claim:
        """The claim. Raises TypeError under a leader's lease."""
        if self.lease_token is None:
            raise TypeError(f"intent {self.intent_id} is held under a lease, not a claim")
        return Claim(self.intent_id, self.lease_token)


def queue_delays(claimed: Iterable[Claimed]) -> dict[str, list[float]]:
    """Return by target how long each intent had been due, on the database's clock."""
    delays: defaultdict[str, list[float]] = defaultdict(list)
    for one in claimed:
        delays[one.target].append((one.claimed_at - one.due_at).total_seconds())
    return delays

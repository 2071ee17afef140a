"""What a store's methods answer: one frozen value per row of the function's answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast
from uuid import UUID

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import Claimed, IntentId

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from leasehold.domain.contract import Contract, Scope
    from leasehold.domain.intent import AttemptState, JsonDocument, Status
    from leasehold.domain.lease import Lease, LeaseToken
    from leasehold.domain.verdict import (
        BeginVerdict,
        EnqueueVerdict,
        RecordVerdict,
        RedriveVerdict,
        ReleaseVerdict,
        RenewVerdict,
    )


class Enqueued(NamedTuple):
    """One entry, by its place in the call (from 1): its id, or the first one's of the same key."""

    ordinal: int
    verdict: EnqueueVerdict
    intent_id: IntentId | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewedClaim:
    """Whether a claim still stands, and until when."""

    lease_token: LeaseToken
    verdict: RenewVerdict
    lease_expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedClaim:
    """Whether a claim was given back."""

    lease_token: LeaseToken
    verdict: ReleaseVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Whether the call for a claimed item may be made."""

    intent_id: IntentId
    verdict: BeginVerdict
    begun_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunLeased:
    """Whether the call for a scheduled item may be made; if so, with its content."""

    intent_id: IntentId
    verdict: BeginVerdict
    attempt_no: int | None
    begun_at: datetime | None
    submission_key: UUID | None
    payload: JsonDocument | None
    body: bytes | None
    content_type: str | None
    metadata: JsonDocument | None
    trace_context: str | None


class Recorded(NamedTuple):
    """What a result became on the ledger. No `due_at`: it is finished, or held for a person."""

    intent_id: IntentId
    verdict: RecordVerdict
    attempt_no: int | None
    state: AttemptState | None
    reason: str | None
    due_at: datetime | None
    is_held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What repair wrote in the name of a holder that fell silent."""

    intent_id: IntentId
    target: str
    attempt_no: int
    state: AttemptState
    reason: str | None
    replaced_holder: str
    stale_seconds: float
    trace_context: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedDeadline:
    """An item that repair finished because its deadline had passed."""

    intent_id: IntentId
    attempt_no: int
    trace_context: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquisition:
    """Whether the lease is ours now; `lease` is as it stands, whoever holds it, and by the
    database's clock it has `seconds_left`.
    """

    is_ours: bool
    lease: Lease
    seconds_left: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewedStream:
    """Whether a stream's lease still stands, and until when."""

    lease_name: str
    verdict: RenewVerdict
    expires_at: datetime | None
    grace_expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedStream:
    """Whether a stream's lease was given back."""

    lease_name: str
    verdict: ReleaseVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class SurplusStream:
    """A stream's lease that others have come to share."""

    lease_name: str
    lease_epoch: int


class DueRow(NamedTuple):
    """A row of a scheduled executor's memory: the columns of Claimed but for the last, then what
    only a schedule has to know. No `due_at`: held for a person.

    What its call needs is there where it came along, see `has_content`. `horizon` stands on the
    first row of an answer at least: a cursor may advance up to it, not past it. `wait_seconds` says
    in how long it was due when it was read, by the database's clock: nobody has to compare `due_at`
    with a clock of its own.
    """

    intent_id: IntentId
    lease_token: None
    last_state: AttemptState | None
    target: str
    contract_version: int
    attempt_no: int
    reference: str | None
    priority: int
    stream: str | None
    submission_key: UUID | None
    payload: JsonDocument | None
    body: bytes | None
    content_type: str | None
    metadata: JsonDocument | None
    trace_context: str | None
    created_at: datetime | None
    due_at: datetime | None
    deadline_at: datetime | None
    first_tried_at: datetime | None
    begun_at: datetime | None
    last_modified_at: datetime
    horizon: datetime
    wait_seconds: float | None

    @property
    def has_content(self) -> bool:
        """Whether all that its call needs is here."""
        return self.created_at is not None


def as_claimed(rows: Iterable[DueRow], at: datetime) -> list[Claimed]:
    """Make rows that have their content into what a runner gets, claimed at this moment.

    The columns of Claimed come first in a DueRow, so this is a slice of the tuple: it is done for
    every call of a leader.
    """
    make = partial(tuple[Any, ...].__new__, cast("type[tuple[Any, ...]]", Claimed))
    first_try = (at, at)
    made = [
        make(row[:_TRIED] + ((row.first_tried_at, at) if row.first_tried_at else first_try))
        for row in rows
    ]
    return cast("list[Claimed]", made)


_TRIED = Claimed._fields.index("first_tried_at")
handed_out = as_claimed  # the former name


# How far a target and priority were read in the order of their due times.
Position: TypeAlias = "tuple[datetime, IntentId]"


class Marked(NamedTuple):
    """The calls of a batch that may be made now, in the order of the rows, with all that a call
    needs; and those that are left out because their row has changed, which must not be made.
    """

    marked_at: datetime
    left_out: list[IntentId]
    calls: list[Claimed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """What became of one finished intent that was to be tried anew."""

    intent_id: IntentId
    verdict: RedriveVerdict
    new_intent_id: IntentId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One row of the ledger, as readers may see it: without the token."""

    intent_id: IntentId
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


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentStatus:
    """An intent as its user sees it."""

    intent_id: IntentId
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
    redrive_of: IntentId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedContract:
    """One version of a target's terms, as it was published."""

    target: str
    version: int
    terms: JsonDocument
    published_at: datetime
    published_by: str

    def contract(self) -> Contract:
        """Read the terms, or raise InvalidArgument where this release cannot."""
        return _contract(self.target, self.version, self.terms)


# Executors read the terms of all targets every few seconds, and hardly ever is one new.
@lru_cache(maxsize=10_000)
def _contract(target: str, version: int, terms: JsonDocument) -> Contract:
    from leasehold.domain.contract import Contract  # needs pydantic, which enqueuing does not

    return Contract.from_terms(target, version, terms.value())


@dataclass(frozen=True, slots=True)
class FormerTerms:
    """Terms that are no longer a target's current ones, but under which intents still wait."""

    target: str
    version: int
    scope: Scope
    lease_name: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """Intents that were looked for, newest first.

    `searched_to`: there may be older ones than this intent that were not looked at; go on from it.
    """

    intents: list[IntentStatus]
    searched_to: IntentId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What an intent carries: exactly one of `payload` and `body`."""

    payload: JsonDocument | None
    body: bytes | None
    content_type: str | None
    metadata: JsonDocument | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSeen:
    """An instance as it last reported itself, and whether it still has the time it asked for."""

    instance_id: str
    role: str
    detail: JsonDocument
    started_at: datetime
    seen_at: datetime
    expires_at: datetime
    is_alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSeen:
    """A lease as it stood when it was looked at."""

    lease_name: str
    holder_id: str
    lease_epoch: int
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime
    is_live: bool


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class EventCursor:
    """A place in the order of events, also as text: 'transaction-intent-attempt'."""

    transaction: int
    intent_id: IntentId
    attempt_no: int

    def __str__(self) -> str:
        return f"{self.transaction}-{self.intent_id}-{self.attempt_no}"

    @classmethod
    def parse(cls, text: str) -> EventCursor:
        """Read a cursor back, or raise InvalidArgument."""
        parts = _CURSOR.fullmatch(text)
        if parts is None:
            raise InvalidArgument("the cursor of events must be one that came with an event")
        transaction, intent_id, attempt_no = parts.groups()
        return cls(
            transaction=int(transaction),
            intent_id=IntentId(UUID(intent_id)),
            attempt_no=int(attempt_no),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEvent:
    """A row of the ledger that is final; no `target` where retention has taken the intent."""

    cursor: EventCursor
    target: str | None
    attempt: Attempt


# No longer than a bigint and an integer can be.
_CURSOR = re.compile(r"([0-9]{1,18})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([0-9]{1,9})")

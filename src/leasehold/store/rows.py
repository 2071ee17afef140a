"""The rows that a store returns to executors, intake and operators, one class per query."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from leasehold.domain.intent import Claimed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from uuid import UUID

    from leasehold.domain.contract import Scope
    from leasehold.domain.intent import AttemptState, IntentId, JsonDocument
    from leasehold.domain.lease import Lease, StreamLease, StreamState
    from leasehold.domain.verdict import (
        BeginVerdict,
        EnqueueVerdict,
        RecordVerdict,
        RedriveVerdict,
        ReleaseVerdict,
        RenewVerdict,
    )


class Enqueued(NamedTuple):
    """The verdict on one intent of an enqueue.

    `ordinal` is its position in the call, from 1. `intent_id` is its own id, or that of the first
    intent with the same key. `problem` of a conflict is what differs from that one.
    """

    ordinal: int
    verdict: EnqueueVerdict
    intent_id: IntentId | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewedClaim:
    """Whether a claim was renewed, and until when it is valid."""

    intent_id: IntentId
    verdict: RenewVerdict
    lease_expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedClaim:
    """Whether a claim was released."""

    intent_id: IntentId
    verdict: ReleaseVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Whether the call for a claimed item may be made."""

    intent_id: IntentId
    verdict: BeginVerdict
    begun_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunLeased:
    """Whether the call for an item under a lease may be made; if so, with its content."""

    intent_id: IntentId
    verdict: BeginVerdict
    attempt_no: int | None
    begun_at: datetime | None
    submission_key: UUID | None
    fencing_token: int | None
    payload: JsonDocument | None
    body: bytes | None
    content_type: str | None
    metadata: JsonDocument | None
    trace_context: str | None


class Recorded(NamedTuple):
    """What a result became on the ledger. `due_at` is None if it is finished, or held."""

    intent_id: IntentId
    verdict: RecordVerdict
    attempt_no: int | None
    state: AttemptState | None
    reason: str | None
    due_at: datetime | None
    is_held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What repair wrote for the holder of an expired claim.

    Without `attempt_no` and `state`, nothing was: the intent is finished (`terminal_guard_hit`).
    """

    intent_id: IntentId
    target: str
    attempt_no: int | None
    state: AttemptState | None
    reason: str | None
    replaced_holder: str
    stale_seconds: float
    trace_context: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedStreams:
    """How many streams one step deleted; go on after `walked_to`, None ends the walk."""

    pruned: int
    walked_to: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What one step deleted, and which months it kept because of unfinished intents."""

    intents_deleted: int
    partition_dropped: str | None
    partitions_kept: list[str]
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedDeadline:
    """An intent that repair ended because its deadline had passed.

    Without `attempt_no` it had ended before (`terminal_guard_hit`).
    """

    intent_id: IntentId
    attempt_no: int | None
    trace_context: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSquatter:
    """A session that holds an advisory lock of ours and is no instance.

    `lock` is election, call_marks or changes; `holder` names the session, or its transaction.
    """

    lease_name: str | None
    lock: str
    pid: int
    holder: str
    login: str | None
    application_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMove:
    """What a step of move_ledger_rows did: months that are complete now, and whether all are."""

    partitions: list[str]
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquisition:
    """Whether the lease is ours now.

    `lease` is its current state, whoever holds it, and `seconds_left` the time until it expires by
    the database's clock.
    """

    is_ours: bool
    lease: Lease
    seconds_left: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewedStream:
    """Whether a stream's lease was renewed, and until when it is valid."""

    lease_name: str
    verdict: RenewVerdict
    expires_at: datetime | None
    grace_expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedStream:
    """Whether a stream's lease was released."""

    lease_name: str
    verdict: ReleaseVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWork:
    """What can be done next in a stream.

    `heads` are the items to call or to ask about, in order, if the state is READY; otherwise there
    are none. `is_begun` says that their calls are marked as begun and may be made. `wait_seconds`
    is the time until a WAITING or PAUSED stream goes on; None if a person must decide. If
    `is_held` is false, the stream was freed, or it is lost. `is_taken_over` says that this claim
    took the stream from another holder, whose lease had expired.
    """

    lease: StreamLease
    state: StreamState
    wait_seconds: float | None
    is_held: bool
    is_begun: bool
    heads: list[Claimed]
    is_taken_over: bool


class RecordedStreams(NamedTuple):
    """What results of streams became on the ledger, and what is next in each stream."""

    results: list[Recorded]
    streams: list[StreamWork]


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunInStream:
    """Whether the call for the head of a stream may be made."""

    intent_id: IntentId
    verdict: BeginVerdict
    attempt_no: int | None
    begun_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SurplusStreams:
    """How many streams of a target this instance should keep; others want the rest."""

    target: str
    kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingStreams:
    """How many streams of a target somebody could claim now."""

    target: str
    waiting: int


# Only the store knows what it is. The later version of a row is greater.
RowVersion: TypeAlias = Any


class DueRow(NamedTuple):
    """A pending row as a leader reads it.

    The first columns are those of Claimed, except its last. `due_at` is None if the row is held.
    The content is present if `has_content`. `wait_seconds` is the time until the row was due when
    it was read, by the database's clock, so nobody compares `due_at` with a clock of their own.
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
    fencing_token: int | None
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
    version: RowVersion
    wait_seconds: float | None
    content_bytes: int = 0

    @property
    def has_content(self) -> bool:
        """Whether the row has everything that its call needs."""
        return self.created_at is not None


def as_claimed(due: Iterable[DueRow], at: datetime) -> list[Claimed]:
    """Convert rows with content to what a runner gets, claimed at this moment.

    The columns of Claimed come first in a DueRow, so this slices the tuple: it is done for every
    call of a leader.
    """
    make = partial(tuple[Any, ...].__new__, cast("type[tuple[Any, ...]]", Claimed))
    first_try = (at, at)
    made = [
        make(row[:_TRIED] + ((row.first_tried_at, at) if row.first_tried_at else first_try))
        for row in due
    ]
    return cast("list[Claimed]", made)


_TRIED = Claimed._fields.index("first_tried_at")

# How far a target and priority have been read, in the order of due times.
Position: TypeAlias = "tuple[datetime, IntentId]"


class Marked(NamedTuple):
    """The calls of a batch that may be made now, and the rows that are left out.

    `calls` are complete and in the order of the rows. Rows in `left_out` have changed since they
    were read; their calls must not be made.
    """

    marked_at: datetime
    left_out: list[IntentId]
    calls: list[Claimed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """Whether a finished intent was redriven, and the id of the new one."""

    intent_id: IntentId
    verdict: RedriveVerdict
    new_intent_id: IntentId | None


@dataclass(frozen=True, slots=True)
class FormerTerms:
    """Terms that are no longer current for a target, but still have pending intents."""

    target: str
    version: int
    scope: Scope
    lease_name: str | None

"""The rows that a store returns to readers: contracts, the ledger, statuses, instances, leases."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from datetime import datetime

    from leasehold.domain.contract import Contract
    from leasehold.domain.intent import AttemptState, IntentId, JsonDocument, Status

# A position in the order of events. Only the store that made it can read it; of two positions the
# later one is greater, as a text.
EventCursor = NewType("EventCursor", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One row of the ledger, without its lease token, which readers may not see."""

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
class StreamPause:
    """A reason for which a stream stands still.

    `paused_by` is a person, or on_failure: then `paused_for` is the failed intent. It ends by
    itself at `paused_until`; None: only if a person ends it.
    """

    paused_by: str
    paused_for: IntentId | None
    paused_since: datetime
    paused_until: datetime | None
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedStream:
    """A stream that is paused, or whose head was tried and has not ended.

    `state` is paused, held, in_doubt, confirming, deferred or retrying. `head` is None if nothing
    waits. `pauses` are the reasons for which the stream is paused, the first 20: failed intents,
    then people. It goes on when the last one has ended. `paused_by`, `paused_for` and `reason` are
    those of the first; `head` is what comes next. `paused_until` is the latest end, None if a
    person must resume the stream, or if it is not paused. `waiting` counts the intents behind the
    head that were not submitted, up to 1,000; `submitted` those of a pipeline that await their
    confirmation.
    """

    target: str
    stream: str
    head: IntentId | None
    state: str
    reason: str | None
    blocked_since: datetime
    paused_until: datetime | None
    paused_by: str | None
    paused_for: IntentId | None
    attempts: int | None
    due_at: datetime | None
    waiting: int
    submitted: int
    pauses: list[StreamPause]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSeen:
    """A stream when it was read, blocked or not.

    `state` is one of a BlockedStream, or else in_flight, waiting, confirming or empty.
    `blocked_since` is None if it is not blocked. `in_flight_since` is when a call began that has
    not ended. The holder, its epoch and its expiries are None if nobody holds the stream. If the
    holder has died, others take the stream after `grace_expires_at` while a call is in flight, else
    after `lease_expires_at`.
    """

    target: str
    stream: str
    head: IntentId | None
    state: str
    reason: str | None
    blocked_since: datetime | None
    paused_until: datetime | None
    paused_by: str | None
    paused_for: IntentId | None
    attempts: int | None
    due_at: datetime | None
    waiting: int
    submitted: int
    pauses: list[StreamPause]
    in_flight_since: datetime | None
    holder_id: str | None
    lease_epoch: int | None
    lease_expires_at: datetime | None
    grace_expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentStatus:
    """An intent and its status, as users see it."""

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
    deferred_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedContract:
    """One version of a target's terms, as it was published."""

    target: str
    version: int
    terms: JsonDocument
    published_at: datetime
    published_by: str

    def contract(self) -> Contract:
        """Parse the terms, or raise InvalidArgument if this release cannot read them."""
        return _contract(self.target, self.version, self.terms)


# Executors read the terms of all targets every few seconds, and they rarely change.
@lru_cache(maxsize=10_000)
def _contract(target: str, version: int, terms: JsonDocument) -> Contract:
    from leasehold.domain.contract import Contract  # needs pydantic, which enqueuing does not

    return Contract.from_terms(target, version, terms.value())


@dataclass(frozen=True, slots=True)
class Listing:
    """Intents that match a search, newest first.

    If `searched_to` is set, the search ended there: older intents may match too. Continue from it.
    """

    intents: list[IntentStatus]
    searched_to: IntentId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of an intent: exactly one of `payload` and `body`."""

    payload: JsonDocument | None
    body: bytes | None
    content_type: str | None
    metadata: JsonDocument | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSeen:
    """An instance as of its last report. Its role is stopped or silent if it is not alive."""

    instance_id: str
    role: str
    detail: JsonDocument
    started_at: datetime
    seen_at: datetime
    expires_at: datetime
    is_alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSeen:
    """A lease when it was read. `expires_at` is None for a stream that nobody holds."""

    lease_name: str
    holder_id: str
    lease_epoch: int
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime | None
    is_live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """The last count of a queue with a limit. `seen_at` and `age_seconds` are None before it."""

    target: str
    pending_max: int
    depth: int
    seen_at: datetime | None
    age_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEvent:
    """A final row of the ledger. `target` is None if retention has deleted the intent."""

    cursor: EventCursor
    target: str | None
    attempt: Attempt

"""Workers of every scope, behind one interface: what all scopes share is one case for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from leasehold.domain.lease import Claim, StreamState
from leasehold.domain.outcome import Result
from leasehold.domain.verdict import BeginVerdict

if TYPE_CHECKING:
    from uuid import UUID

    from leasehold.domain.intent import AttemptState, Claimed, IntentId, JsonDocument
    from leasehold.domain.lease import Lease
    from leasehold.domain.outcome import Outcome
    from leasehold.store.protocol import Store
    from leasehold.store.rows import BegunLeased, DueRow, Recorded

_LEASE_SECONDS = 600.0
_MANY = 100


@dataclass(slots=True, kw_only=True)
class Work:
    """A due intent that was handed out. A leader learns the last four when it begins the call."""

    intent_id: IntentId
    attempt_no: int
    last_state: AttemptState | None
    reference: str | None
    claim: Claim | None = None
    lease: Lease | None = None
    submission_key: UUID | None = None
    fencing_token: int | None = None
    payload: JsonDocument | None = None
    body: bytes | None = None

    def learn(self, known: Claimed | BegunLeased) -> None:
        """Adopt what a call needs."""
        self.submission_key, self.fencing_token = known.submission_key, known.fencing_token
        self.payload, self.body = known.payload, known.body


class Worker(Protocol):
    """What a worker of any scope does with due intents of one target."""

    name: str

    async def take(self) -> list[Work]:
        """Take what is due now."""
        ...

    async def begin(self, work: Work) -> BeginVerdict:
        """Record that the call is about to be made."""
        ...

    async def record(
        self, work: Work, outcome: Outcome, *, attempt_no: int | None = None
    ) -> Recorded:
        """Record what the call led to; with `attempt_no`, an outcome without a call."""
        ...

    async def give_back(self, work: Work, *, is_begun: bool = False) -> None:
        """Give it back: nothing was sent."""
        ...

    async def leave(self) -> None:
        """Make room for another worker of the target, if there can be only one."""
        ...


@dataclass(slots=True)
class ItemWorker:
    """Claims items."""

    store: Store
    name: str
    target: str
    seconds: float = _LEASE_SECONDS

    async def take(self) -> list[Work]:
        """Claim what is due now."""
        claimed = await self.store.claim_outbox_batch(_MANY, self.name, self.seconds, [self.target])
        return [_work_of(one, claim=one.claim) for one in claimed]

    async def begin(self, work: Work) -> BeginVerdict:
        """Record that the call is about to be made."""
        [told] = await self.store.begin_outbox_attempts(self.name, [_claim_of(work)])
        return told.verdict

    async def record(
        self, work: Work, outcome: Outcome, *, attempt_no: int | None = None
    ) -> Recorded:
        """Record what the call led to."""
        result = Result(work.intent_id, outcome, _claim_of(work).lease_token, 0.0, attempt_no)
        [told] = await self.store.complete_outbox_attempts(self.name, [result])
        return told

    async def give_back(self, work: Work, *, is_begun: bool = False) -> None:
        """Release the claim."""
        unsent = [work.intent_id] if is_begun else []
        await self.store.release_outbox_claims(self.name, [_claim_of(work)], 0, unsent)

    async def leave(self) -> None:
        """Do nothing: there can be many."""


@dataclass(slots=True)
class LeaderWorker:
    """Acts under the lease of a cluster."""

    store: Store
    lease: Lease
    target: str
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.lease.holder_id

    async def take(self) -> list[Work]:
        """Read what is due now and is not begun."""
        due = await self.read()
        return [_work_of(row, lease=self.lease) for row in due if (row.wait_seconds or 0) <= 0]

    async def read(self) -> list[DueRow]:
        """Read the next due rows, also those that are due later."""
        return await self.store.refresh_due_rows(self.name, [self.lease], [self.target], _MANY)

    async def begin(self, work: Work) -> BeginVerdict:
        """Record that the call is about to be made."""
        [told] = await self.store.begin_leased_attempts(self.lease, [work.intent_id])
        if told.verdict is BeginVerdict.BEGUN:
            work.learn(told)
        return told.verdict

    async def record(
        self, work: Work, outcome: Outcome, *, attempt_no: int | None = None
    ) -> Recorded:
        """Record what the call led to."""
        result = Result(work.intent_id, outcome, None, 0.0, attempt_no)
        [told] = await self.store.record_attempts(self.lease, [result])
        return told

    async def give_back(self, work: Work, *, is_begun: bool = False) -> None:
        """Take the begin mark back; nothing else is held of one intent."""
        if is_begun:
            await self.store.release_leased_attempts(self.lease, [work.intent_id])

    async def leave(self) -> None:
        """Release the lease."""
        await self.store.release_lease(self.lease)


@dataclass(slots=True)
class StreamWorker:
    """Claims streams, and frees each with the result of its head."""

    store: Store
    name: str
    target: str
    seconds: float = _LEASE_SECONDS
    grace_seconds: float = _LEASE_SECONDS

    async def take(self) -> list[Work]:
        """Claim the streams whose head is due now."""
        claimed = await self.store.claim_streams(
            _MANY, self.name, self.seconds, self.grace_seconds, [self.target]
        )
        return [
            _work_of(head, lease=one.lease.lease)
            for one in claimed
            if one.state is StreamState.READY
            for head in one.heads
        ]

    async def begin(self, work: Work) -> BeginVerdict:
        """Record that the call is about to be made."""
        [told] = await self.store.begin_stream_attempts(
            self.name, [_lease_of(work)], [work.intent_id]
        )
        return told.verdict

    async def record(
        self, work: Work, outcome: Outcome, *, attempt_no: int | None = None
    ) -> Recorded:
        """Record what the call led to, and free the stream."""
        told = await self.store.record_stream_attempts(
            self.name,
            [_lease_of(work)],
            [Result(work.intent_id, outcome, None, 0.0, attempt_no)],
            kept=[],
        )
        [one] = told.results
        return one

    async def give_back(self, work: Work, *, is_begun: bool = False) -> None:
        """Release the stream."""
        unsent = [work.intent_id] if is_begun else []
        await self.store.release_streams(self.name, [_lease_of(work)], unsent)

    async def leave(self) -> None:
        """Do nothing: there can be many."""


def _work_of(
    row: Claimed | DueRow, *, claim: Claim | None = None, lease: Lease | None = None
) -> Work:
    return Work(
        intent_id=row.intent_id,
        attempt_no=row.attempt_no,
        last_state=row.last_state,
        reference=row.reference,
        claim=claim,
        lease=lease,
        submission_key=row.submission_key,
        fencing_token=row.fencing_token,
        payload=row.payload,
        body=row.body,
    )


def _claim_of(work: Work) -> Claim:
    if work.claim is None:
        raise TypeError("this work is held under a lease")
    return work.claim


def _lease_of(work: Work) -> Lease:
    if work.lease is None:
        raise TypeError("this work is held by a claim")
    return work.lease

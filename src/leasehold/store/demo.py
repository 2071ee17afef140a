"""What the demo reads of its database: rows, and the protocol that returns them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import datetime
    from uuid import UUID


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """An instance, and the numbers of its claims and of the streams that it holds."""

    instance_id: str
    role: str
    pid: int
    claims: int
    streams: int
    seen_seconds: float
    is_alive: bool


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease and its holder."""

    lease_name: str
    holder_id: str
    lease_epoch: int
    left_seconds: float


@dataclass(frozen=True, slots=True)
class UnfinishedRow:
    """The numbers of unfinished intents of a target."""

    target: str
    unfinished: int
    claimed: int
    in_doubt: int
    held: int


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A row of the ledger, and the target of its intent."""

    intent_id: UUID
    target: str
    attempt_no: int
    state: str
    reason: str | None
    code: str | None
    holder: str
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim of a worker, and the rest of its lease."""

    intent_id: UUID
    target: str
    left_seconds: float


@dataclass(frozen=True, slots=True)
class RecoveryRow:
    """The ledger row with which the reaper ended a claim of a dead worker."""

    intent_id: UUID
    state: str
    after_seconds: float


@dataclass(frozen=True, slots=True)
class IntentRow:
    """An intent, for the audit."""

    intent_id: UUID
    submission_key: UUID
    status: str
    stream: str | None = None
    stream_seq: int | None = None


class DemoStore(Protocol):
    """Reads for the view, the kill and the audit. Every query is bounded."""

    async def instances(self) -> list[InstanceRow]:
        """Read the instances, newest first."""
        ...

    async def leases(self) -> list[LeaseRow]:
        """Read the leases, without those of streams that nobody holds."""
        ...

    async def unfinished(self) -> dict[str, UnfinishedRow]:
        """Count the unfinished intents, by target."""
        ...

    async def ledger(self, limit: int) -> list[LedgerRow]:
        """Read the newest ledger rows of the last minute."""
        ...

    async def finished_per_second(self, seconds: float) -> float:
        """Read the rate at which intents finished in the last `seconds`."""
        ...

    async def unsettled(self) -> int:
        """Count the intents that are neither finished nor held."""
        ...

    async def clock(self) -> datetime:
        """Read the clock of the database, which all leases go by."""
        ...

    async def claims_of(self, instance_id: str) -> list[ClaimRow]:
        """Read the claims of a worker."""
        ...

    async def recoveries(
        self, holder: str, intent_ids: Sequence[UUID], since: datetime
    ) -> list[RecoveryRow]:
        """Read the ledger rows that ended expired claims of a holder."""
        ...

    async def statuses(self, intent_ids: Sequence[UUID]) -> list[str]:
        """Read the status of each of these intents."""
        ...

    def all_intents(self) -> AsyncGenerator[IntentRow]:
        """Read every intent, page by page."""
        ...

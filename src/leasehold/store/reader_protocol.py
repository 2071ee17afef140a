"""What readers need of a database: contracts, the ledger, statuses, and content for auditors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime

    from leasehold.domain.contract import Contract
    from leasehold.domain.intent import IntentId, Status
    from leasehold.store import reader_rows as rows

    # A target, a key, and whether the key is one of all targets.
    TargetKey = tuple[str, str, bool]


class ContractStore(Protocol):
    """Contracts, which executors and readers need."""

    async def read_contracts(
        self, refused: Callable[[str, str], None] | None = None
    ) -> list[Contract]:
        """Read the current contract of every target, by name.

        Terms that this release cannot read are left out and reported to `refused` (target, reason),
        so that one bad contract does not stop the other targets.
        """
        ...

    async def read_contract(self, target: str, version: int) -> Contract | None:
        """Read one version, or raise InvalidArgument if this release cannot read it."""
        ...


class WatchTurnStore(Protocol):
    """Turns to count the queue. Everybody reads the last count; the database gives out the turns.

    Begin a turn in a call of its own: then no instance repeats a count that fails.
    """

    async def begin_watch_turn(self, name: str) -> int | None:
        """Begin a turn if one is due, and return its number. `name` is counts or depths."""
        ...


class WatchStore(WatchTurnStore, Protocol):
    """Counts of the queue."""

    async def record_queue_counts(self, turn_no: int) -> float | None:
        """Count a part of the queue; return the seconds until the next turn.

        None if another turn has begun since.
        """
        ...

    async def read_supervisor(self) -> dict[str, Any]:
        """Read the state of the whole queue as it was last counted, by the columns of the view."""
        ...


class KeyStore(Protocol):
    """Idempotency keys that are taken."""

    async def read_known_keys(self, given: Collection[TargetKey]) -> set[TargetKey]:
        """Return those of these keys that belong to an intent."""
        ...


class StatusStore(Protocol):
    """Statuses of intents."""

    async def read_status(self, intent_ids: Sequence[IntentId]) -> list[rows.IntentStatus]:
        """Read the status of these intents."""
        ...


class EventStore(Protocol):
    """Ledger rows in the order in which they can be followed."""

    async def read_events(
        self, after: rows.EventCursor | None, limit: int
    ) -> list[rows.LedgerEvent]:
        """Read ledger rows after a cursor, in an order in which none can appear behind it.

        None starts at the beginning. An open transaction, of anyone, holds back newer rows.
        """
        ...

    async def newest_event(self) -> rows.EventCursor:
        """Return the cursor after which only rows follow that are not final yet."""
        ...


class QueueDepthStore(WatchTurnStore, Protocol):
    """How full the queues with a limit are."""

    async def record_queue_depths(self, turn_no: int) -> float | None:
        """Count the queues that have a limit; return the seconds until the next turn.

        None if another turn has begun since.
        """
        ...

    async def read_queue_depths(self) -> list[rows.QueueDepth]:
        """Read the last count of every queue that has a limit."""
        ...


class ReaderStore(
    ContractStore, EventStore, KeyStore, QueueDepthStore, StatusStore, WatchStore, Protocol
):
    """Everything that the role leasehold_readonly may read. Unknown intents are left out."""

    async def read_ledger(self, intent_ids: Sequence[IntentId]) -> list[rows.Attempt]:
        """Read the attempts of these intents, in order."""
        ...

    async def list_intents(
        self,
        *,
        status: Status | None = None,
        target: str | None = None,
        targets: Collection[str] | None = None,
        stream: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: IntentId | None = None,
        limit: int = 50,
    ) -> rows.Listing:
        """Find the newest intents accepted before `before`; see Listing for how far it searches.

        `targets` are the only ones allowed, whatever `target` asks for. `since` is inclusive,
        `until` exclusive, both to the millisecond.
        """
        ...

    async def read_instances(self, after: str | None, limit: int) -> list[rows.InstanceSeen]:
        """Read instances as of their last report, by id, after an id."""
        ...

    async def read_leases(
        self, prefix: str | None, after: str | None, limit: int
    ) -> list[rows.LeaseSeen]:
        """Read leases by name, after a name, whose names start with a prefix."""
        ...

    async def read_blocked_streams(
        self, targets: Sequence[str] | None, after: tuple[str, str] | None, limit: int
    ) -> list[rows.BlockedStream]:
        """Read the streams that do not go on, by target and name, after a target and name."""
        ...

    async def read_stream(self, target: str, stream: str) -> rows.StreamSeen | None:
        """Read one stream, blocked or not; None if there is none."""
        ...

    async def read_published_contracts(self) -> list[rows.PublishedContract]:
        """Read the current terms of every target as they were published, by name."""
        ...

    async def read_published_contract(
        self, target: str, version: int | None = None
    ) -> rows.PublishedContract | None:
        """Read one version of a target's terms, or the current one; None if there is none."""
        ...


class AuditorStore(ReaderStore, Protocol):
    """Everything that the role leasehold_auditor may read."""

    async def read_content(self, intent_id: IntentId) -> rows.Content | None:
        """Read the content of an intent as it was accepted; None if it is not known."""
        ...

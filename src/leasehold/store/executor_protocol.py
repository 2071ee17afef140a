"""What executors of items and streams need of a database: one protocol for each consumer.

ExecutorStore is their sum, for the composition root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from leasehold.store.leader_protocol import LeaderStore
from leasehold.store.reader_protocol import ContractStore, WatchStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from leasehold.domain.intent import Claimed, IntentId
    from leasehold.domain.lease import Claim, Lease
    from leasehold.domain.outcome import Deferral, Outcome, Result
    from leasehold.store import generation_rows, rows

    Json = Mapping[str, Any]


class WakeStore(Protocol):
    """Sends hints."""

    async def notify_targets(self, targets: Sequence[str]) -> None:
        """Wake the executors of these targets."""
        ...


class OpenTransactions(Protocol):
    """Who may still commit rows behind what was read. Only the store knows what it has of them."""

    @property
    def seen_at(self) -> datetime:
        """When this was read, by the database's clock."""
        ...

    @property
    def since(self) -> datetime | None:
        """The earliest due time of rows that may have come since the look before; None: any."""
        ...


class LowWaterStore(Protocol):
    """Says who may still commit rows behind what was read."""

    async def read_open_transactions(self, former: OpenTransactions | None) -> OpenTransactions:
        """Read which transactions may still commit rows, or give up rows that they have locked.

        `former` is what the look before returned; None: there was none.
        """
        ...


class ClaimHeartbeatStore(Protocol):
    """Extends claims. Lost ones are reported per row."""

    async def renew_outbox_leases(
        self, worker_id: str, claims: Sequence[Claim], lease_seconds: float
    ) -> list[rows.RenewedClaim]:
        """Extend these claims, and report which are lost."""
        ...


class ClaimWriteStore(Protocol):
    """Writes under claims. Lost ones are reported per row."""

    async def begin_outbox_attempts(
        self, worker_id: str, claims: Sequence[Claim]
    ) -> list[rows.Begun]:
        """Record durably that these calls are about to be made."""
        ...

    async def complete_outbox_attempts(
        self, worker_id: str, results: Sequence[Result], *, tell_dispatched: bool = True
    ) -> list[rows.Recorded]:
        """Record the results of claimed items.

        Without `tell_dispatched` the rows leave out results that were applied as DISPATCHED. These
        are most, and reading them costs more than the rest.
        """
        ...

    async def complete_outbox_attempt(self, worker_id: str, claim: Claim, outcome: Outcome) -> int:
        """Record one result and return its attempt number.

        Raises LeaseLost or RetryCeilingReached.
        """
        ...

    async def release_outbox_claims(
        self,
        worker_id: str,
        claims: Sequence[Claim],
        delay_seconds: float,
        unsent: Sequence[IntentId] = (),
    ) -> list[rows.ReleasedClaim]:
        """Give claims back without an attempt; the items are due again after the delay.

        For the `unsent` items a call was begun, but nothing was sent.
        """
        ...


class ItemStore(ClaimWriteStore, Protocol):
    """What a claimer of items needs: its claims become items that write by them."""

    async def claim_outbox_batch(
        self,
        batch_size: int,
        worker_id: str,
        lease_seconds: float,
        targets: Sequence[str],
        target_limits: Sequence[int] | None = None,
        due_from: Sequence[datetime] | None = None,
    ) -> list[Claimed]:
        """Claim due items, each under a new token; of each target at most its limit.

        `due_from` has four times for each target, one per priority: rows due before them are not
        looked at. Without it, all due rows are.
        """
        ...


class GenerationStore(Protocol):
    """Generations of the database: each may have lost commits of the one before."""

    async def begin_generation(self, instance_id: str) -> generation_rows.Generation:
        """Return the current generation; begin a new one if the database is another one."""
        ...


class LeaseStore(Protocol):
    """Leases of clusters."""

    async def acquire_lease(
        self, lease_name: str, holder_id: str, lease_seconds: float, grace_seconds: float = 0
    ) -> rows.Acquisition:
        """Take a lease if it is free, and report who holds it."""
        ...

    async def renew_lease(
        self, lease: Lease, lease_seconds: float, grace_seconds: float = 0
    ) -> datetime:
        """Extend a lease and return its expiry, or raise LeaseLost."""
        ...

    async def release_lease(self, lease: Lease) -> bool:
        """Release a lease; False if it was already lost."""
        ...


class ReaperStore(LeaseStore, Protocol):
    """What the reaper needs: its lease, repair in any scope, upkeep, and who has fallen silent."""

    async def repair_expired_leases(
        self, batch_size: int, worker_id: str, *, is_full: bool = False
    ) -> list[rows.Repaired]:
        """End the expired claims of workers that no longer renew them.

        They are looked for at the head of each queue, or everywhere if `is_full`.
        """
        ...

    async def repair_missed_deadlines(
        self, batch_size: int, worker_id: str
    ) -> list[rows.MissedDeadline]:
        """End intents whose deadline has passed and that nobody works on, in any scope."""
        ...

    async def read_returned_instances(self, silent_for: Mapping[str, float]) -> list[str]:
        """List those of these instances that reported within as many seconds."""
        ...

    async def read_silent_instances(self, within_seconds: float) -> list[str]:
        """List the instances that recently stopped reporting without saying so."""
        ...

    async def move_ledger_rows(self, rows_max: int) -> rows.LedgerMove:
        """Copy some rows of the ledger's default partition to their months."""
        ...

    async def create_ledger_partitions(self, months_ahead: int) -> list[str]:
        """Create the ledger's partitions ahead of time."""
        ...

    async def prune_streams(
        self, idle_seconds: float, batch_size: int, after: str | None
    ) -> rows.PrunedStreams:
        """Delete empty streams that were not used for so long; look at the next `batch_size`."""
        ...


class InstanceStore(Protocol):
    """The registration of instances, for shares of streams and for people."""

    async def renew_instance(
        self,
        instance_id: str,
        role: str,
        stream_targets: Sequence[str],
        detail: Json,
        alive_seconds: float,
        streams_held: Sequence[int] | None = None,
        streams_wanted: Sequence[int] | None = None,
    ) -> None:
        """Report that an instance is alive, its role, and whose streams it serves.

        For each of `stream_targets`: how many streams it holds, and for how many more it has free
        slots and found none. `surplus_streams` decides by these numbers.
        """
        ...

    async def release_instance(self, instance_id: str) -> bool:
        """Report that an instance is stopping; False if it was not known."""
        ...


class LeaderHeartbeatStore(Protocol):
    """Reports of leaders, for monitoring."""

    async def record_leader_heartbeat(self, lease: Lease, detail: Json) -> None:
        """Record what a leader is doing, for monitoring."""
        ...


class StreamWriteStore(Protocol):
    """Writes under streams, and releases them. Lost ones are reported per stream or item.

    `begin` marks the calls of the heads that are returned as begun, which saves a round trip: then
    each of them is made, or given back (`unsent`, `deferred`).
    """

    async def release_streams(
        self, holder_id: str, leases: Sequence[Lease], unsent: Sequence[IntentId] = ()
    ) -> list[rows.ReleasedStream]:
        """Release streams. For the `unsent` items a call was begun, but nothing was sent."""
        ...

    async def begin_stream_attempts(
        self, holder_id: str, leases: Sequence[Lease], intent_ids: Sequence[IntentId]
    ) -> list[rows.BegunInStream]:
        """Record durably that the calls for these heads are about to be made."""
        ...

    async def record_stream_attempts(
        self,
        holder_id: str,
        leases: Sequence[Lease],
        results: Sequence[Result],
        *,
        deferred: Sequence[Deferral] = (),
        kept: Sequence[Lease] | None = None,
        free_idle: bool = True,
        begin: bool = False,
        tell_dispatched: bool = True,
    ) -> rows.RecordedStreams:
        """Record results in streams, and return the next heads of these streams.

        `deferred` are items without a call, or with a lookup without news: they are due again after
        so many seconds, without an attempt. Streams that are not `kept` are freed (None: all are
        kept), and so are those without due work if `free_idle`. Without `tell_dispatched` the
        results leave out those that were applied as DISPATCHED.
        """
        ...


class OrderedStore(StreamWriteStore, WakeStore, Protocol):
    """What an ordered executor needs: it claims streams, and reads what is next in its own."""

    async def claim_streams(
        self,
        streams_max: int,
        holder_id: str,
        lease_seconds: float,
        grace_seconds: float,
        targets: Sequence[str],
        target_limits: Sequence[int] | None = None,
        due_from: Sequence[datetime] | None = None,
        *,
        begin: bool = False,
    ) -> list[rows.StreamWork]:
        """Claim streams whose head is due, of each target at most its limit, with their heads.

        `due_from` has four times for each target, one per priority: heads due before them are not
        looked at. Without it all due heads are, and streams of dead holders are taken over.
        """
        ...

    async def refresh_streams(
        self,
        holder_id: str,
        leases: Sequence[Lease],
        *,
        free_idle: bool = True,
        begin: bool = False,
    ) -> list[rows.StreamWork]:
        """Look again at streams that are held; free those without due work if `free_idle`."""
        ...


class StreamHeartbeatStore(Protocol):
    """Extends streams, and says how many to hand over. Lost ones are reported per stream."""

    async def renew_streams(
        self, holder_id: str, leases: Sequence[Lease], lease_seconds: float, grace_seconds: float
    ) -> list[rows.RenewedStream]:
        """Extend stream leases, and report which are lost, and which are locked by others."""
        ...

    async def surplus_streams(self, instance_id: str) -> list[rows.SurplusStreams]:
        """Say how many streams this instance should keep, of targets of which others want some."""
        ...

    async def waiting_streams(
        self, targets: Sequence[str], streams_max: int
    ) -> list[rows.WaitingStreams]:
        """Count the streams of targets that could be claimed now, up to a number for each."""
        ...


class TargetStore(ContractStore, Protocol):
    """The contracts that an executor serves."""

    async def read_former_terms(self) -> list[rows.FormerTerms]:
        """Read the terms that are no longer current but still have pending intents."""
        ...


class ExecutorStore(
    ClaimHeartbeatStore,
    GenerationStore,
    InstanceStore,
    ItemStore,
    LeaderHeartbeatStore,
    LeaderStore,
    LowWaterStore,
    OrderedStore,
    ReaperStore,
    StreamHeartbeatStore,
    TargetStore,
    WatchStore,
    Protocol,
):
    """Everything that the role leasehold_executor may do."""

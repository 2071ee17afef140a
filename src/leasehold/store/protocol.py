"""What the engine needs of a database: one method per function of the schema, under its name.

The parts are those of the database's roles, so that a process asks only for what its login may do.
Every method is one call and one transaction: when it returns, what it says is committed; when it
raises DatabaseUnavailable, nothing is known. Verdicts come per row, in no promised order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from leasehold.store.protocol_schedule import ScheduleStore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime

    from leasehold.domain import intent, lease, outcome, verdict
    from leasehold.domain.api_token import ApiToken, TokenScope
    from leasehold.domain.contract import Contract
    from leasehold.domain.intent import AttemptState, IntentId, NewIntent
    from leasehold.domain.lease import Claim, Lease
    from leasehold.domain.outcome import Result
    from leasehold.store import rows as answers

    Json = Mapping[str, Any]


class IngestStore(Protocol):
    """For whoever hands in intents."""

    async def enqueue_intents(self, intents: Sequence[NewIntent]) -> list[answers.Enqueued]:
        """Accept intents; the verdicts come in the order of `intents`."""
        ...

    async def enqueue_intent(self, new: NewIntent, *, wakes: bool = False) -> IntentId:
        """Accept one, or raise IdempotencyConflict or InvalidArgument; `wakes` whoever waits for
        its target in the same transaction, which then fails with it.
        """
        ...

    async def notify_targets(self, targets: Sequence[str]) -> None:
        """Wake whoever waits for work of these targets: a hint, after the commits, for many."""
        ...


class ContractStore(Protocol):
    """For whoever acts by contracts."""

    async def read_contracts(
        self, refused: Callable[[str, str], None] | None = None
    ) -> list[Contract]:
        """Read the current contract of every target, by name. What this release cannot read is left
        out and told to `refused` (target, why): one target's bad terms do not stop the others.
        """
        ...

    async def read_contract(self, target: str, version: int) -> Contract | None:
        """Read one version; raises InvalidArgument where this release cannot read it."""
        ...


class ExecutorStore(ContractStore, ScheduleStore, Protocol):
    """For whoever submits intents. Fenced methods raise LeaseLost, or say so per row."""

    async def read_former_terms(self) -> list[answers.FormerTerms]:
        """Read under which terms, no longer current, intents are still pending."""
        ...

    async def claim_outbox_batch(
        self,
        batch_size: int,
        worker_id: str,
        lease_seconds: float,
        targets: Sequence[str],
        target_limits: Sequence[int] | None = None,
    ) -> list[intent.Claimed]:
        """Lease due items, each under a fresh token."""
        ...

    async def renew_outbox_leases(
        self, worker_id: str, claims: Sequence[Claim], lease_seconds: float
    ) -> list[answers.RenewedClaim]:
        """Beat the heart of these claims, and learn which are lost."""
        ...

    async def begin_outbox_attempts(
        self, worker_id: str, claims: Sequence[Claim]
    ) -> list[answers.Begun]:
        """Make "about to call" durable."""
        ...

    async def complete_outbox_attempts(
        self, worker_id: str, results: Sequence[Result], *, tell_dispatched: bool = True
    ) -> list[answers.Recorded]:
        """Record what became of claimed items. Without `tell_dispatched` the answer leaves out what
        was applied as DISPATCHED, as most are: reading that costs more than the rest of the answer.
        """
        ...

    async def complete_outbox_attempt(
        self, worker_id: str, claim: Claim, outcome: outcome.Outcome
    ) -> int:
        """Record one and return its attempt number, or raise LeaseLost or RetryCeilingReached."""
        ...

    async def release_outbox_claims(
        self, worker_id: str, claims: Sequence[Claim], delay_seconds: float
    ) -> list[answers.ReleasedClaim]:
        """Give claims back without a try."""
        ...

    async def repair_expired_leases(
        self, batch_size: int, worker_id: str
    ) -> list[answers.Repaired]:
        """End the claims of holders that fell silent."""
        ...

    async def repair_missed_deadlines(
        self, batch_size: int, worker_id: str
    ) -> list[answers.MissedDeadline]:
        """Finish items that passed their deadline while nobody had them."""
        ...

    async def acquire_lease(
        self, lease_name: str, holder_id: str, lease_seconds: float, grace_seconds: float = 0
    ) -> answers.Acquisition:
        """Take a lease that is free, or learn who holds it."""
        ...

    async def renew_lease(
        self, lease: Lease, lease_seconds: float, grace_seconds: float = 0
    ) -> datetime:
        """Extend it and return its expiry, or raise LeaseLost."""
        ...

    async def release_lease(self, lease: Lease) -> bool:
        """Let go; False when it was not ours any more."""
        ...

    async def claim_streams(
        self,
        holder_id: str,
        targets: Sequence[str],
        lease_seconds: float,
        grace_seconds: float,
        streams_max: int,
    ) -> list[lease.StreamLease]:
        """Claim streams up to this holder's fair share; the new ones only."""
        ...

    async def renew_streams(
        self, holder_id: str, leases: Sequence[Lease], lease_seconds: float, grace_seconds: float
    ) -> list[answers.RenewedStream]:
        """Extend the leases of streams, and learn which are lost."""
        ...

    async def release_streams(
        self, holder_id: str, leases: Sequence[Lease]
    ) -> list[answers.ReleasedStream]:
        """Let go of streams."""
        ...

    async def surplus_streams(
        self, holder_id: str, targets: Sequence[str]
    ) -> list[answers.SurplusStream]:
        """Say which streams to release because others have come to share the work."""
        ...

    async def renew_instance(
        self,
        instance_id: str,
        role: str,
        stream_targets: Sequence[str],
        detail: Json,
        alive_seconds: float,
    ) -> None:
        """Say that an instance is alive, as what, and whose streams it serves."""
        ...

    async def release_instance(self, instance_id: str) -> bool:
        """Say that an instance is going."""
        ...

    async def record_leader_heartbeat(self, lease: Lease, detail: Json) -> None:
        """Say what a leader does, for monitoring."""
        ...

    async def read_supervisor(self) -> dict[str, Any]:
        """Read the state of the whole queue, by the names of the view's columns."""
        ...

    async def read_silent_instances(self, within_seconds: float) -> list[str]:
        """Name the instances that fell silent lately, without having said that they were going."""
        ...

    async def create_ledger_partitions(self, months_ahead: int) -> list[str]:
        """Make the ledger's partitions ahead of time."""
        ...

    async def notify_targets(self, targets: Sequence[str]) -> None:
        """Wake whoever waits for work of these targets."""
        ...


class OperatorStore(Protocol):
    """For people who intervene; every change is a ledger row in the operator's name."""

    async def publish_contract(self, target: str, terms: Json, operator: str) -> int:
        """Publish terms and return their version."""
        ...

    async def cancel_intent(
        self, intent_id: IntentId, operator: str, note: str
    ) -> verdict.CancelVerdict:
        """Cancel what no call was made for."""
        ...

    async def resolve_intent(
        self,
        intent_id: IntentId,
        state: AttemptState,
        operator: str,
        note: str,
        reference: str | None = None,
    ) -> verdict.ResolveVerdict:
        """Say what became of a doubt: DISPATCHED, FAILED or RETRYABLE."""
        ...

    async def redrive_intents(
        self, intent_ids: Sequence[IntentId], operator: str, note: str
    ) -> list[answers.Redriven]:
        """Try finished intents anew, as new intents."""
        ...


class ReaderStore(ContractStore, Protocol):
    """For whoever looks. Intents that are not known are left out."""

    async def read_ledger(self, intent_ids: Sequence[IntentId]) -> list[answers.Attempt]:
        """Read the attempts of these intents, in order."""
        ...

    async def read_status(self, intent_ids: Sequence[IntentId]) -> list[answers.IntentStatus]:
        """Read where these intents stand."""
        ...

    async def has_content(self, intent_id: IntentId, new: NewIntent) -> bool:
        """Say whether an intent that has a key carries what another one would."""
        ...

    async def list_intents(
        self,
        *,
        status: intent.Status | None = None,
        target: str | None = None,
        targets: Collection[str] | None = None,
        stream: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: IntentId | None = None,
        limit: int = 50,
    ) -> answers.Listing:
        """Find the newest intents that were accepted before one; see Listing for how far.

        With `targets` only of those, whatever `target` asks for. `since` is included, `until` is
        not; both to the millisecond.
        """
        ...

    async def read_events(
        self, after: answers.EventCursor | None, limit: int
    ) -> list[answers.LedgerEvent]:
        """Read rows of the ledger after a cursor, in an order in which none can appear behind it;
        None is the beginning. An open transaction of anybody holds newer rows back.
        """
        ...

    async def newest_event(self) -> answers.EventCursor:
        """Give the cursor after which only what is not final yet will come."""
        ...

    async def read_queue_depths(self, limits: Mapping[str, int]) -> dict[str, int]:
        """Count the unfinished intents of each target, but no further than its limit."""
        ...

    async def read_instances(self, after: str | None, limit: int) -> list[answers.InstanceSeen]:
        """Read the instances after an id, as they last reported themselves, by id."""
        ...

    async def read_leases(
        self, prefix: str | None, after: str | None, limit: int
    ) -> list[answers.LeaseSeen]:
        """Read the leases after a name, and of names that begin so, by name."""
        ...

    async def read_published_contracts(self) -> list[answers.PublishedContract]:
        """Read the current terms of every target as they were published, by name."""
        ...

    async def read_published_contract(
        self, target: str, version: int | None = None
    ) -> answers.PublishedContract | None:
        """Read one version of a target's terms, or the current one; None where there is none."""
        ...


class AuditorStore(ReaderStore, Protocol):
    """For whoever may see what intents carry, too."""

    async def read_content(self, intent_id: IntentId) -> answers.Content | None:
        """Read what an intent carries, as it was accepted; None where it is not known."""
        ...


class TokenStore(Protocol):
    """For whoever keeps the tokens of the HTTP API, as the owner; and for who checks them."""

    async def create_token(
        self,
        *,
        name: str,
        token_hash: bytes,
        scopes: Collection[TokenScope],
        targets: Collection[str] | None,
        operator: str,
    ) -> ApiToken:
        """Make a token known by its hash, or raise InvalidArgument."""
        ...

    async def revoke_token(self, name: str, operator: str) -> verdict.RevokeVerdict:
        """End a token, for ever."""
        ...

    async def list_tokens(self, after: str | None = None, limit: int = 1000) -> list[ApiToken]:
        """Read what is known of the tokens after a name, the revoked ones too, by name."""
        ...

    async def read_active_tokens(self) -> dict[bytes, ApiToken]:
        """Read the tokens that are in force, by their hashes."""
        ...


class Store(IngestStore, ExecutorStore, OperatorStore, AuditorStore, TokenStore, Protocol):
    """All of it, for a process that is everything at once."""

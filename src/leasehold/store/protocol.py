"""The store: what the engine needs of a database, one method per function of the schema.

There is one protocol per role of the database, so a process asks only for what its login may do. A
consumer takes a narrower one, of what it uses: those of executors are in executor_protocol and
leader_protocol, those of readers in reader_protocol. Rows are in `rows` and `reader_rows`.

A method is one call and one transaction. When it returns, the work is committed; when it raises
DatabaseUnavailable, the outcome is unknown. Verdicts come per row, in no particular order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from leasehold.store.executor_protocol import ExecutorStore, WakeStore
from leasehold.store.reader_protocol import AuditorStore, ReaderStore

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from leasehold.domain import verdict
    from leasehold.domain.api_token import ApiToken, TokenScope
    from leasehold.domain.intent import AttemptState, IntentId, NewIntent
    from leasehold.store import generation_rows, rows

__all__ = [
    "ApiStore",
    "AuditorStore",
    "ConsoleStore",
    "ExecutorStore",
    "IngestStore",
    "OperatorStore",
    "ReaderStore",
    "Store",
    "TokenCheckStore",
    "TokenStore",
]


class IngestStore(WakeStore, Protocol):
    """Everything that the role leasehold_ingest may do."""

    async def enqueue_intents(self, intents: Sequence[NewIntent]) -> list[rows.Enqueued]:
        """Accept intents; the verdicts are in the order of `intents`."""
        ...

    async def enqueue_intent(self, new: NewIntent, *, wakes: bool = False) -> IntentId:
        """Accept one intent, or raise IdempotencyConflict or InvalidArgument.

        With `wakes`, the same transaction also wakes the executors of its target.
        """
        ...


class OperatorStore(Protocol):
    """Interventions by people. Each is recorded in the operator's name, as a rule on the ledger."""

    async def publish_contract(self, target: str, terms: Mapping[str, Any], operator: str) -> int:
        """Publish terms and return their version."""
        ...

    async def cancel_intent(
        self, intent_id: IntentId, operator: str, note: str
    ) -> verdict.CancelVerdict:
        """Cancel an intent for which no call was made."""
        ...

    async def resolve_intent(
        self,
        intent_id: IntentId,
        state: AttemptState,
        operator: str,
        note: str,
        reference: str | None = None,
    ) -> verdict.ResolveVerdict:
        """Resolve an intent in doubt as DISPATCHED, FAILED or RETRYABLE."""
        ...

    async def retry_intent_now(
        self, intent_id: IntentId, operator: str, note: str
    ) -> verdict.RetryNowVerdict:
        """Make an intent due now that waits for a backoff, or whose call was deferred."""
        ...

    async def redrive_intents(
        self, intent_ids: Sequence[IntentId], operator: str, note: str
    ) -> list[rows.Redriven]:
        """Submit finished intents again, as new intents."""
        ...

    async def pause_stream(
        self, target: str, stream: str, operator: str, note: str, seconds: float | None = None
    ) -> verdict.PauseVerdict:
        """Pause a stream, for a time or until somebody resumes it."""
        ...

    async def resume_stream(
        self,
        target: str,
        stream: str,
        operator: str,
        note: str,
        *,
        paused_by: str | None = None,
        paused_for: IntentId | None = None,
    ) -> verdict.ResumeVerdict:
        """End a pause of a stream: the operator's own, that of a person, or for a failed intent."""
        ...

    async def skip_stream_head(
        self, target: str, stream: str, intent_id: IntentId, operator: str, note: str
    ) -> verdict.SkipVerdict:
        """End the head of a stream without a call, if it is still this intent."""
        ...

    async def begin_restored_generation(
        self, operator: str, note: str
    ) -> generation_rows.RestoredGeneration:
        """Begin the generation of a restored database, or go on with it. No lease is granted then
        until the last step of `repair_restored_intents`.
        """
        ...

    async def repair_restored_intents(self, batch_size: int) -> generation_rows.RestoreStep:
        """Put those of the next unfinished intents in doubt that may have been sent."""
        ...


class TokenCheckStore(Protocol):
    """Tokens of the HTTP API, as the API checks them."""

    async def read_active_tokens(self) -> dict[bytes, ApiToken]:
        """Read the tokens that are not revoked, by their hashes."""
        ...


class ApiStore(TokenCheckStore, Protocol):
    """What the HTTP API does in its own name."""

    async def renew_api_instance(
        self, instance_id: str, detail: Mapping[str, Any], alive_seconds: float
    ) -> None:
        """Report that an instance without an executor is alive; 0 seconds: that it stops."""
        ...


class TokenStore(TokenCheckStore, Protocol):
    """Tokens of the HTTP API, as the owner manages them."""

    async def create_token(
        self,
        *,
        name: str,
        token_hash: bytes,
        scopes: Collection[TokenScope],
        targets: Collection[str] | None,
        operator: str,
    ) -> ApiToken:
        """Store a token by its hash, or raise InvalidArgument."""
        ...

    async def revoke_token(self, name: str, operator: str) -> verdict.RevokeVerdict:
        """Revoke a token for good."""
        ...

    async def list_tokens(self, after: str | None = None, limit: int = 1000) -> list[ApiToken]:
        """List tokens by name, after a name, including revoked ones."""
        ...


class ConsoleStore(OperatorStore, ReaderStore, Protocol):
    """What the commands of people need."""


class Store(IngestStore, ExecutorStore, ConsoleStore, AuditorStore, TokenStore, Protocol):
    """All of them, for a process that has every role."""

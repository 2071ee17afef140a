"""What the executor needs of a gateway: submit an intent, look a submission up."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from uuid import UUID

    from leasehold.domain.intent import IntentId, JsonDocument
    from leasehold.domain.outcome import LookupAnswer, Outcome


class Trace(Protocol):
    """The span of one call."""

    @property
    def trace_id(self) -> str:
        """The id of the trace that the span belongs to."""
        ...

    @property
    def traceparent(self) -> str:
        """The span as the header `traceparent`."""
        ...


class Submission(NamedTuple):
    """One attempt to submit an intent: everything that a gateway needs for the call.

    `submission_key` is the idempotency key towards the gateway: the same on every attempt, whoever
    makes it. `fencing_token` is a number that never falls for a key and rises with every new holder
    of the work: a gateway may refuse a lower one than it has seen. `worker_id` names the instance
    that makes the call, for logs.
    """

    intent_id: IntentId
    target: str
    attempt_no: int
    submission_key: UUID
    fencing_token: int
    worker_id: str
    payload: JsonDocument | None = None
    body: bytes | None = None
    content_type: str | None = None
    metadata: JsonDocument | None = None
    trace: Trace | None = None
    reference: str | None = None

    @property
    def trace_context(self) -> str | None:
        """The `traceparent` of this call, to send to the gateway."""
        return self.trace.traceparent if self.trace else None

    @property
    def log_fields(self) -> dict[str, str | int | None]:
        """The fields of every log line about this submission."""
        return {
            "intent_id": str(self.intent_id),
            "attempt_no": self.attempt_no,
            "target": self.target,
            "worker_id": self.worker_id,
            "trace_id": self.trace.trace_id if self.trace else None,
        }


class Gateway(Protocol):
    """The connection of one target to the outside. Safe for concurrent calls."""

    async def submit(self, submission: Submission) -> Outcome:
        """Make the call and return its outcome. Raises nothing but cancellation.

        A caller that cancels must treat the outcome as Unknown.
        """
        ...

    async def lookup(self, submission: Submission) -> LookupAnswer:
        """Ask what became of earlier attempts. Unknown if the gateway cannot tell."""
        ...

    async def close(self) -> None:
        """Close all connections. Nothing may be submitted afterwards."""
        ...

"""What the engine needs of a gateway: perform a submission, say what became of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from uuid import UUID

    from leasehold.domain.intent import IntentId, JsonDocument
    from leasehold.domain.outcome import LookupAnswer, Outcome


class Trace(Protocol):
    """The span that a call is."""

    @property
    def traceparent(self) -> str:
        """Write it as the header `traceparent`."""
        ...


class Submission(NamedTuple):
    """All that a call needs.

    `submission_key` is the idempotency key towards the gateway: the same on every try, whoever
    makes it. `fencing_token` names the claim or "<lease name>:<epoch>" for people and logs; `fence`
    is the number for gateways that refuse what is older than they have seen: the attempt's number
    for items, the epoch under a lease. Both only rise.
    """

    intent_id: IntentId
    target: str
    attempt_no: int
    submission_key: UUID
    fencing_token: str
    fence: int
    payload: JsonDocument | None = None
    body: bytes | None = None
    content_type: str | None = None
    metadata: JsonDocument | None = None
    trace: Trace | None = None
    reference: str | None = None

    @property
    def trace_context(self) -> str | None:
        """The call's own `traceparent`, to be sent along."""
        return self.trace.traceparent if self.trace else None


class Gateway(Protocol):
    """One target's way to the outside. Safe for many calls at once."""

    async def submit(self, submission: Submission) -> Outcome:
        """Make the call and say what became of it. Raises nothing but cancellation; a caller that
        cancels must take the outcome for Unknown.
        """
        ...

    async def lookup(self, submission: Submission) -> LookupAnswer:
        """Ask what became of earlier calls. Unknown where the gateway cannot be asked."""
        ...

    async def close(self) -> None:
        """Give the connections back. Nothing may be submitted afterwards."""
        ...

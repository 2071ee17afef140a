"""What the executor needs of a gateway: submit an intent, look a submission up.

A gateway that takes several at once also is a `LookupBatcher`, a `SubmissionBatcher` or both. The
executor asks with `isinstance`; with any other gateway it makes one call per submission.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
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
    makes it. `fencing_token` is a number that rises with every attempt for a key: a gateway may
    refuse a lower one than it has seen. `worker_id` names the instance
    that makes the call, for logs. `stream` is the intent's stream, if it has one. `permit` is what
    `may_send` asks.
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
    stream: str | None = None
    permit: Callable[[], bool] | None = None

    def may_send(self) -> bool:
        """Say whether the lease of this call is still trusted. Ask right before you send.

        A process can be paused anywhere. After the pause, another may have made the call.
        """
        return self.permit is None or self.permit()

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
    """The connection of one target to the outside. Safe for concurrent calls.

    One with a true attribute `asks_before_sending` asks `submission.may_send()` right before the
    first bytes of each call leave. So until it has asked, nothing was sent.
    """

    async def submit(self, submission: Submission) -> Outcome:
        """Make the call and return its outcome. Raises nothing but cancellation and TrustEnded.

        TrustEnded says that nothing was sent, because `submission.may_send()` was false. A caller
        that cancels must treat the outcome as Unknown.
        """
        ...

    async def lookup(self, submission: Submission) -> LookupAnswer:
        """Ask what became of earlier attempts. Unknown if the gateway cannot tell.

        Raises what `submit` raises.
        """
        ...

    async def close(self) -> None:
        """Close all connections. Nothing may be submitted afterwards."""
        ...


@runtime_checkable
class LookupBatcher(Protocol):
    """A gateway that looks many submissions up with one request."""

    @property
    def lookups_max(self) -> int:
        """The most submissions that one `lookup_many` takes. At least 1."""
        ...

    async def lookup_many(self, submissions: Sequence[Submission]) -> Sequence[LookupAnswer]:
        """Return the answer to each submission, in their order. They may be of any streams.

        Each answer means what `lookup` would have answered. If the request fails, all are Unknown.
        """
        ...


@runtime_checkable
class SubmissionBatcher(Protocol):
    """A gateway that takes consecutive heads of one stream with one request."""

    @property
    def submissions_max(self) -> int:
        """The most submissions that one `submit_many` takes. With 1, use `submit` alone."""
        ...

    async def submit_many(self, submissions: Sequence[Submission]) -> Sequence[Outcome]:
        """Submit heads of one stream in their order; return the outcomes of the first of them.

        - Submissions beyond the returned outcomes had certainly no effect and are still to be made.
        - All outcomes but the last are Accepted or Submitted, or all are Unknown: what follows a
          submission that failed was not taken.
        - No outcome at all: the gateway refuses them together, and none was taken. Which of them it
          refuses is unclear, so submit the first of them alone.
        """
        ...

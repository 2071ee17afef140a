"""The error tree. Each error says what to do next and carries its data.

LeaseholdError
├── InvalidArgument            a value that no call may have (SQLSTATE 22023)
│   ├── UnknownTarget          no contract is published for the target
│   └── UnknownIntent          no intent of that id is known
├── LeaseLost                  someone newer owns the work; drop the result (P7002)
├── NotLeader                  only the leader of a group may do that, and we are not it
├── InvalidCompletionState     a result that no attempt may have (P7003)
├── RetryCeilingReached        no try is left to schedule (P7004)
├── IdempotencyConflict        the key was used for another payload (P7005)
├── AppendOnlyViolation        the ledger refuses changes (P0001)
├── TerminalGuardHit           a second terminal row was stopped by its index (23505)
├── AccessDenied               this login lacks the role that the call needs (42501)
├── DatabaseUnavailable        the database did not answer; nothing is known
├── IntakeFull                 too much waits to be handed in; nothing was written
├── ApiError                   the HTTP API answered with what no caller can mend
│   └── ApiUnavailable         it did not answer, or could not; nothing is known
├── MigrationError             the schema is not what this release needs
└── EmbeddedDatabaseError      the private PostgreSQL cannot run here
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.domain.intent import IntentId


class LeaseholdError(Exception):
    """The root: `except LeaseholdError` catches all that Leasehold raises on purpose."""


class InvalidArgument(LeaseholdError):
    """A value was refused before anything was written."""


class UnknownTarget(InvalidArgument):
    """Nothing can be enqueued for `target` before a contract for it is published."""

    def __init__(self, message: str, *, target: str) -> None:
        super().__init__(message)
        self.target = target


class UnknownIntent(InvalidArgument):
    """No intent of that id is known, or retention has taken it."""


class LeaseLost(LeaseholdError):
    """The lease or claim is gone. Drop the result; whoever holds the work now decides.

    `lease_name` is set for a cluster or stream lease. For a claim, `verdict` tells apart whether
    somebody else has the work (lease_lost), it is finished (already_terminal) or unknown
    (not_found).
    """

    def __init__(
        self, message: str, *, lease_name: str | None = None, verdict: str = "lease_lost"
    ) -> None:
        super().__init__(message)
        self.lease_name = lease_name
        self.verdict = verdict


class NotLeader(LeaseholdError):
    """This instance does not lead the group `lease_name`; as far as it knows, `holder_id` does."""

    def __init__(self, message: str, *, lease_name: str, holder_id: str | None = None) -> None:
        super().__init__(message)
        self.lease_name = lease_name
        self.holder_id = holder_id


class InvalidCompletionState(LeaseholdError):
    """The reported state is not one that an executor may write."""


class RetryCeilingReached(LeaseholdError):
    """No further try may be scheduled for this intent."""


class IdempotencyConflict(LeaseholdError):
    """The idempotency key already stands for another payload: that of `intent_id`."""

    def __init__(self, message: str, *, intent_id: IntentId | None = None) -> None:
        super().__init__(message)
        self.intent_id = intent_id


class AppendOnlyViolation(LeaseholdError):
    """Somebody tried to change what may only be appended to."""


class TerminalGuardHit(LeaseholdError):
    """The index that allows one terminal row per intent stopped a second one for `intent_id`."""

    def __init__(self, message: str, *, intent_id: IntentId | None = None) -> None:
        super().__init__(message)
        self.intent_id = intent_id


class AccessDenied(LeaseholdError):
    """This login is no member of the role that the call needs; a DBA grants it."""


class DatabaseUnavailable(LeaseholdError):
    """The database did not answer in time. Nothing is known; act as if every lease is lost.

    `sqlstate` is set when the server itself said why, as on a shutdown or a timeout.
    """

    def __init__(self, message: str, *, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class IntakeFull(LeaseholdError):
    """Too many intents wait to be handed in already; this one was not taken. Try again later."""


class ApiError(LeaseholdError):
    """The HTTP API answered with a defect, or somebody else did in its place; see `status`."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ApiUnavailable(ApiError):
    """The HTTP API did not answer, or could not. Nothing is known of what was asked; with an
    idempotency key it is safe to ask again. `status` is None where there was no answer at all.
    """


class MigrationError(LeaseholdError):
    """The schema in the database is not what this release needs."""


class EmbeddedDatabaseError(LeaseholdError):
    """The private PostgreSQL cannot run here; the message says what to change."""

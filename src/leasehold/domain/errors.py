"""The error tree. Each error says what to do next and carries its data.

LeaseholdError
├── InvalidArgument            a refused value; nothing was written (SQLSTATE 22023)
│   ├── UnknownTarget          the target has no contract
│   ├── ContentTooLarge        the payload's text or the body has more than 1 MiB (P7007)
│   └── UnknownIntent          there is no intent with this id
├── LeaseLost                  another holder has the work now; drop the result (P7002)
├── GenerationChanged          the database may have lost commits; drop all leases (P7006)
├── NotLeader                  only the leader of the group may do this
├── InvalidCompletionState     a result that an executor may not write (P7003)
├── RetryCeilingReached        the intent has no attempts left (P7004)
├── IdempotencyConflict        the key was used for another payload or stream (P7005)
├── AppendOnlyViolation        the ledger refuses changes (P0001)
├── TerminalGuardHit           the unique index stopped a second terminal row (23505)
├── AccessDenied               this login lacks the role that the call needs (42501)
├── DatabaseUnavailable        the database did not answer; the outcome is unknown
├── IntakeFull                 too many intents are waiting; nothing was written
├── ApiError                   the HTTP API failed in a way that the caller cannot fix
│   └── ApiUnavailable         the HTTP API did not answer, or not in every try
├── MigrationError             the schema does not match this release
│   ├── SchemaTooOld           migrate the database
│   └── SchemaTooNew           use a newer release
└── EmbeddedDatabaseError      the private PostgreSQL cannot run here
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.domain.intent import IntentId

# In what enqueue_problem says of content that is too large.
_SIZE_AND_LIMIT = re.compile(r"(?:has|takes at least) (\d+) bytes.*; the limit is (\d+)")


class LeaseholdError(Exception):
    """The base class of all errors that Leasehold raises on purpose.

    If `enqueue` of an API client raises, `idempotency_key` is the key that was sent, also one that
    the client generated. If `enqueue_many` raises, `idempotency_keys` has the keys of all intents
    that it has read so far, in their order.
    """

    idempotency_key: str | None = None
    idempotency_keys: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[object, ...]:
        # Without this, an error with a required keyword argument cannot be unpickled, and an error
        # that a process pool cannot unpickle breaks the pool.
        return _restore, (type(self), self.args), self.__dict__


def _restore(kind: type[LeaseholdError], arguments: tuple[object, ...]) -> LeaseholdError:
    return kind.__new__(kind, *arguments)


class InvalidArgument(LeaseholdError):
    """A value was refused. Nothing was written."""


class UnknownTarget(InvalidArgument):
    """`target` has no contract. Publish one before enqueuing intents for it."""

    def __init__(self, message: str, *, target: str) -> None:
        super().__init__(message)
        self.target = target


class ContentTooLarge(InvalidArgument):
    """A payload or body is over the limit, for which the text of a payload counts.

    `size_bytes` and `limit_bytes` are None if the refusal did not say them.
    """

    def __init__(
        self, message: str, *, size_bytes: int | None = None, limit_bytes: int | None = None
    ) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    @classmethod
    def of(cls, message: str, problem: str) -> ContentTooLarge:
        """Make the error of a problem that the database or another instance told."""
        found = _SIZE_AND_LIMIT.search(problem)
        if found is None:
            return cls(message)
        return cls(message, size_bytes=int(found[1]), limit_bytes=int(found[2]))


class UnknownIntent(InvalidArgument):
    """There is no intent with this id, or retention has removed it."""


class LeaseLost(LeaseholdError):
    """The lease or claim is gone. Drop the result: the current holder of the work decides.

    `lease_name` is set for a cluster or stream lease. For a claim, `verdict` says whether another
    worker has the item (lease_lost), it is finished (already_terminal) or unknown (not_found).
    """

    def __init__(
        self, message: str, *, lease_name: str | None = None, verdict: str = "lease_lost"
    ) -> None:
        super().__init__(message)
        self.lease_name = lease_name
        self.verdict = verdict


class GenerationChanged(LeaseholdError):
    """The database is another one than before, or was restored: it may have lost commits.

    Drop all leases, call begin_generation, and start anew. Results of calls that were made may
    still be recorded, under their leases.
    """


class NotLeader(LeaseholdError):
    """This instance does not lead the group `lease_name`; `holder_id` is the last known leader."""

    def __init__(self, message: str, *, lease_name: str, holder_id: str | None = None) -> None:
        super().__init__(message)
        self.lease_name = lease_name
        self.holder_id = holder_id


class InvalidCompletionState(LeaseholdError):
    """An executor may not write the reported state."""


class RetryCeilingReached(LeaseholdError):
    """This intent has no attempts left."""


class IdempotencyConflict(LeaseholdError):
    """The idempotency key was already used for another payload or stream, that of `intent_id`."""

    def __init__(self, message: str, *, intent_id: IntentId | None = None) -> None:
        super().__init__(message)
        self.intent_id = intent_id


class AppendOnlyViolation(LeaseholdError):
    """Rows of this table can only be appended, not changed or deleted."""


class TerminalGuardHit(LeaseholdError):
    """The index that allows one terminal row per intent stopped a second one for `intent_id`."""

    def __init__(self, message: str, *, intent_id: IntentId | None = None) -> None:
        super().__init__(message)
        self.intent_id = intent_id


class AccessDenied(LeaseholdError):
    """This login is not a member of a role that the call needs. A DBA can grant it.

    `roles` names the roles that allow the call; any one of them is enough. Empty if unknown.
    """

    def __init__(self, message: str, *, roles: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.roles = roles


class Unavailable(StrEnum):
    """Why the database was unavailable, as far as it matters for what to do next.

    LOCKED: another transaction held a lock for too long; this one was rolled back.
    ROLLED_BACK: rolled back for another reason, such as its time limit.
    REFUSED: it refuses the connection until a person changes something.
    """

    NO_ANSWER = "no_answer"
    LOCKED = "locked"
    ROLLED_BACK = "rolled_back"
    REFUSED = "refused"


class DatabaseUnavailable(LeaseholdError):
    """The database did not answer in time. The outcome is unknown; treat every lease as lost.

    If it `is_rolled_back`, the outcome is known: nothing was written, and the call may
    be repeated.
    """

    def __init__(self, message: str, *, reason: Unavailable = Unavailable.NO_ANSWER) -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def is_rolled_back(self) -> bool:
        """Whether the server has certainly rolled the call back."""
        return self.reason in {Unavailable.LOCKED, Unavailable.ROLLED_BACK}


class IntakeFull(LeaseholdError):
    """Too many intents are waiting to be written; this one was refused. Retry later."""


class ApiError(LeaseholdError):
    """The HTTP API, or a proxy in front of it, answered with an error; see `status`.

    If `outcome_unknown` is true, what was asked may have been done: retry an enqueue with the same
    idempotency key, and look at the intent before you repeat an operation.
    """

    def __init__(
        self, message: str, *, status: int | None = None, outcome_unknown: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.outcome_unknown = outcome_unknown


class ApiUnavailable(ApiError):
    """The HTTP API did not answer, or an earlier try got no answer and the last one was refused.

    In the second case `__cause__` is the refusal. It proves nothing about the earlier try, so
    `outcome_unknown` is true. `status` is None if there was no response at all.
    """


class MigrationError(LeaseholdError):
    """The schema in the database does not match this release, or cannot be migrated to it."""


class SchemaTooOld(MigrationError):
    """The schema is missing or older than this release needs: run `leasehold migrate`."""


class SchemaTooNew(MigrationError):
    """A newer release migrated the schema, and this one cannot use it: upgrade this one."""


class EmbeddedDatabaseError(LeaseholdError):
    """The private PostgreSQL cannot run here; the message says what to change."""


def is_rolled_back(error: Exception) -> bool:
    """Say whether a write failed, but certainly wrote nothing, so that it may be repeated."""
    return isinstance(error, DatabaseUnavailable) and error.is_rolled_back

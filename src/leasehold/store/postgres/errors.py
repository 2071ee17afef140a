"""Maps each SQLSTATE to an error class, in one table.

An error that is not in the table is a defect, ours or the server's. It stays psycopg's, and whoever
acts under a lease stops for it as for any other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
from psycopg.errors import UniqueViolation

from leasehold.domain.errors import (
    AccessDenied,
    AppendOnlyViolation,
    ContentTooLarge,
    DatabaseUnavailable,
    GenerationChanged,
    IdempotencyConflict,
    InvalidArgument,
    InvalidCompletionState,
    LeaseholdError,
    LeaseLost,
    RetryCeilingReached,
    SchemaTooOld,
    TerminalGuardHit,
    Unavailable,
)
from leasehold.domain.intent import IntentId
from leasehold.domain.verdict import RecordVerdict
from leasehold.store.postgres.sql_files import granted_roles

if TYPE_CHECKING:
    from collections.abc import Sequence

# A whole SQLSTATE takes precedence over its class, the first two characters.
# A reason is that of DatabaseUnavailable. With LOCKED and ROLLED_BACK the server has certainly
# rolled the statement back.
ERRORS: dict[str, type[LeaseholdError] | Unavailable] = {
    "P7002": LeaseLost,
    "P7003": InvalidCompletionState,
    "P7004": RetryCeilingReached,
    "P7005": IdempotencyConflict,
    "P7006": GenerationChanged,
    "P7007": ContentTooLarge,
    "P0001": AppendOnlyViolation,
    "42501": AccessDenied,
    "3F000": SchemaTooOld,  # no such schema
    "42883": SchemaTooOld,  # no such function
    "42P01": SchemaTooOld,  # no such table
    "0A000": Unavailable.NO_ANSWER,  # a plan from before a migration; another connection has none
    "25006": Unavailable.NO_ANSWER,  # read-only: a failover left us on a standby
    "25P03": Unavailable.NO_ANSWER,  # idle_in_transaction_session_timeout
    "55000": Unavailable.NO_ANSWER,  # in recovery: a failover left us on a standby
    "55P03": Unavailable.LOCKED,  # lock_timeout
    "08": Unavailable.NO_ANSWER,  # connection
    "08P01": Unavailable.REFUSED,  # a pooler that does not take our settings
    "40001": Unavailable.ROLLED_BACK,
    "40P01": Unavailable.LOCKED,  # deadlock
    "40": Unavailable.NO_ANSWER,  # 40003, for example, leaves open whether it took effect
    "53": Unavailable.NO_ANSWER,  # out of connections, memory or disk
    "57014": Unavailable.ROLLED_BACK,  # statement_timeout, or cancelled
    "57": Unavailable.NO_ANSWER,  # shutdown, crash
    "58": Unavailable.NO_ANSWER,  # the server's system failed
    "22": InvalidArgument,  # 22023 is ours; others, such as 22P02: a value of the wrong type
    "54": InvalidArgument,  # a value over a limit of PostgreSQL
}
_ADVICE: dict[type[LeaseholdError], str] = {
    SchemaTooOld: "run `leasehold migrate`",
}
# The name of the index, or that of its copy on a partition.
_TERMINAL_GUARD = re.compile(
    r"outbox_attempts_(one_terminal_per_intent|(default|\d{4}_\d{2})_intent_id_idx\d*)"
)
_NAME = re.compile(r"[a-z_]+")
_OUR_NAME = re.compile(r"leasehold\.([a-z_]+)")
# SQL calls an argument p_note, users call it note.
_ARGUMENT = re.compile(r"^(the length of )?p_(?=[a-z])")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class translated:  # noqa: N801 (a block, as those of contextlib are)
    """A block that raises our errors for psycopg's.

    `lease_name` is the lease that the call acts under, if any; `statement` what it runs.
    """

    # A class, because a generator would cost each call five times as much.
    __slots__ = ("_lease_name", "_statement")

    def __init__(self, lease_name: str | None = None, statement: str = "") -> None:
        self._lease_name = lease_name
        self._statement = statement

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, psycopg.Error):
            _hide_row(error)
            ours = translate(error, self._lease_name, self._statement)
            if ours is not None:
                raise ours from error


def translate(
    error: psycopg.Error, lease_name: str | None = None, statement: str = ""
) -> LeaseholdError | None:
    """Return our error for psycopg's, or None for a defect."""
    kind = _kind(error)
    if kind is None:
        return None
    if isinstance(kind, Unavailable):
        return DatabaseUnavailable(_message(error, DatabaseUnavailable), reason=kind)
    message = _message(error, kind)
    detail = error.diag.message_detail or ""
    if kind is LeaseLost:
        if detail in set(RecordVerdict):
            return LeaseLost(message, verdict=detail)
        return LeaseLost(message, lease_name=detail or lease_name)
    if kind is IdempotencyConflict or kind is TerminalGuardHit:
        return kind(message, intent_id=_intent_id(detail))
    if kind is ContentTooLarge:
        return ContentTooLarge.of(message, message)
    if kind is AccessDenied:
        return _access_denied(message, statement)
    return kind(message)


def _hide_row(error: psycopg.Error) -> None:
    """Keep what failed and where, but not the row or key that the server quotes: errors are logged,
    and a row may have the payload of an intent.
    """
    said = error.diag.message_primary
    if said is not None:
        places = (error.diag.context or "").splitlines()
        ours = [place for place in places if place.startswith("PL/pgSQL function")]
        error.args = ("\n".join([said, *ours]),)


def _access_denied(message: str, statement: str) -> AccessDenied:
    """Name the roles that allow what was refused. Who has no role at all is refused the schema:
    then the statement says what was called.
    """
    names: list[str] = [*_NAME.findall(message), *_OUR_NAME.findall(statement)]
    roles = next((found for name in names if (found := granted_roles(name))), ())
    return AccessDenied(f"{message}: {role_advice(roles)}", roles=roles)


def role_advice(roles: Sequence[str]) -> str:
    """Say how a login gets the rights of one of these roles.

    A login that is NOINHERIT has only the rights of the role that it acts as.
    """
    if not roles:
        return "have a DBA grant this login a role that allows it"
    needed = f"{'one of the roles' if len(roles) > 1 else 'the role'} {', '.join(roles)}"
    example = f"LEASEHOLD_DATABASE_ROLE={roles[0]}"
    return (
        f"have a DBA grant this login {needed}, or set {example} if it is a member but does not "
        "inherit rights"
    )


def _kind(error: psycopg.Error) -> type[LeaseholdError] | Unavailable | None:
    if isinstance(error, UniqueViolation):
        guard = _TERMINAL_GUARD.fullmatch(error.diag.constraint_name or "")
        return TerminalGuardHit if guard else None
    if error.sqlstate is not None:
        return ERRORS.get(error.sqlstate) or ERRORS.get(error.sqlstate[:2])
    # An error without a SQLSTATE is not the server's: the network or pool failed, or a value cannot
    # be sent.
    if isinstance(error, psycopg.OperationalError):
        return Unavailable.NO_ANSWER
    return InvalidArgument if isinstance(error, psycopg.DataError) else None


def _message(error: psycopg.Error, kind: type[LeaseholdError]) -> str:
    said = error.diag.message_primary or " ".join(str(error).split())
    if kind is DatabaseUnavailable:
        said = f"the database did not answer: {said}"
    if kind is InvalidArgument:
        said = _ARGUMENT.sub(r"\1", said)
    advice = _ADVICE.get(kind) or error.diag.message_hint
    return f"{said}: {advice}" if advice else said


def _intent_id(detail: str) -> IntentId | None:
    found = _UUID.search(detail)
    return IntentId(UUID(found.group())) if found else None

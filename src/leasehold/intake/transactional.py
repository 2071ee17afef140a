"""Enqueues in the caller's own transaction: the intent exists if, and only if, it commits.

    with psycopg.connect(...) as connection, connection.transaction():
        connection.execute("UPDATE orders SET state = 'paid' ...")
        enqueue_in(connection, "sms", {"to": "+41 79 000 00 00"}, idempotency_key="order-4711")

Nothing here commits, rolls back or notifies; workers find the intent with their next poll. The
connection is one of psycopg, SQLAlchemy (also a Session) or Django. `aenqueue_in` takes an async
one of psycopg, SQLAlchemy or asyncpg.

All drivers run one statement, which returns a verdict instead of raising. So the transaction can go
on after an IdempotencyConflict or an InvalidArgument. Errors of the database itself, such as a
login without the role leasehold_ingest, are raised as the driver raises them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import UUID

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import IntentId, as_intent
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.intake.validation import BATCH_MAX, CheckedBatch, accepted_id
from leasehold.store.postgres.json_arguments import intents_argument
from leasehold.store.rows import Enqueued

if TYPE_CHECKING:
    from typing import Unpack

    from leasehold.domain.intent import IntentOptions, NewIntent

# A connection of one of the drivers above. We import none of them before the caller has.
AnyConnection: TypeAlias = Any
Rows: TypeAlias = Iterable[Sequence[Any]]
_NO_ROWS: Rows = ()
Run = TypeVar("Run", bound="Callable[[AnyConnection, str], Rows | Awaitable[Rows]]")

# CAST, because "::" clashes with the placeholders of some drivers; to text first, because a driver
# may be configured to encode JSON itself.
_STATEMENT = (
    "SELECT ordinal, verdict, intent_id, problem"
    " FROM leasehold.enqueue_intents(CAST(CAST({placeholder} AS text) AS jsonb)) ORDER BY ordinal"
)
_PERCENT = _STATEMENT.format(placeholder="%s")
_NAMED = _STATEMENT.format(placeholder=":intents")
_NUMBERED = _STATEMENT.format(placeholder="$1")


def enqueue_in(
    connection: AnyConnection,
    intent: NewIntent | str,
    payload: Any = None,  # noqa: ANN401 (any JSON)
    **options: Unpack[IntentOptions],
) -> IntentId:
    """Enqueue one intent in the transaction of `connection`. Raises what Intake.enqueue raises."""
    new = as_intent(intent, payload, **options)
    [result] = enqueue_many_in(connection, [new])
    return accepted_id(new, result)


async def aenqueue_in(
    connection: AnyConnection,
    intent: NewIntent | str,
    payload: Any = None,  # noqa: ANN401 (any JSON)
    **options: Unpack[IntentOptions],
) -> IntentId:
    """Enqueue one intent in the transaction of an async connection."""
    new = as_intent(intent, payload, **options)
    [result] = await aenqueue_many_in(connection, [new])
    return accepted_id(new, result)


def enqueue_many_in(connection: AnyConnection, intents: Sequence[NewIntent]) -> list[Enqueued]:
    """Enqueue up to 10,000 intents in the transaction of `connection`. Returns results in order."""
    run, batch = _driver(connection, _DRIVERS), _check(intents)
    rows = run(connection, intents_argument(batch.sendable)) if batch.sendable else _NO_ROWS
    return batch.results(map(_enqueued, rows))


async def aenqueue_many_in(
    connection: AnyConnection, intents: Sequence[NewIntent]
) -> list[Enqueued]:
    """Enqueue up to 10,000 intents in the transaction of an async connection."""
    run, batch = _driver(connection, _ASYNC_DRIVERS), _check(intents)
    rows = await run(connection, intents_argument(batch.sendable)) if batch.sendable else _NO_ROWS
    return batch.results(map(_enqueued, rows))


def _check(intents: Sequence[NewIntent]) -> CheckedBatch:
    if len(intents) > BATCH_MAX:
        raise InvalidArgument(f"{len(intents)} intents in one call; the maximum is {BATCH_MAX}")
    return CheckedBatch(intents)


def _enqueued(row: Sequence[Any]) -> Enqueued:
    ordinal, verdict, intent_id, problem = row
    return Enqueued(
        ordinal=ordinal,
        verdict=EnqueueVerdict(_text(verdict)),
        # Some drivers have a UUID class of their own, others return text.
        intent_id=None if intent_id is None else IntentId(UUID(str(intent_id))),
        problem=None if problem is None else _text(problem),
    )


def _text(value: str | bytes) -> str:
    """Return text; psycopg returns bytes if the client encoding of the session is SQL_ASCII."""
    return value.decode() if isinstance(value, bytes) else value


def _run_psycopg(connection: AnyConnection, argument: str) -> Rows:
    from psycopg.rows import tuple_row

    with connection.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(_PERCENT, [argument]).fetchall()


async def _run_psycopg_async(connection: AnyConnection, argument: str) -> Rows:
    from psycopg.rows import tuple_row

    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(_PERCENT, [argument])
        return await cursor.fetchall()


def _run_sqlalchemy(connection: AnyConnection, argument: str) -> Rows:
    text = import_module("sqlalchemy").text
    return connection.execute(text(_NAMED), {"intents": argument}).all()


async def _run_sqlalchemy_async(connection: AnyConnection, argument: str) -> Rows:
    text = import_module("sqlalchemy").text
    return (await connection.execute(text(_NAMED), {"intents": argument})).all()


def _run_django(connection: AnyConnection, argument: str) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(_PERCENT, [argument])
        return cursor.fetchall()


async def _run_asyncpg(connection: AnyConnection, argument: str) -> Rows:
    return await connection.fetch(_NUMBERED, argument)


# By the package that the class of the connection, or one of its bases, comes from.
_DRIVERS: Mapping[str, Callable[[AnyConnection, str], Rows]] = {
    "psycopg": _run_psycopg,
    "sqlalchemy": _run_sqlalchemy,
    "django": _run_django,
}
_ASYNC_DRIVERS: Mapping[str, Callable[[AnyConnection, str], Awaitable[Rows]]] = {
    "psycopg": _run_psycopg_async,
    "sqlalchemy": _run_sqlalchemy_async,
    "asyncpg": _run_asyncpg,
}


def _driver(connection: object, drivers: Mapping[str, Run]) -> Run:
    return drivers[_package(type(connection), use_async=drivers is _ASYNC_DRIVERS)]


@lru_cache(maxsize=64)
def _package(kind: type, *, use_async: bool) -> str:
    packages = [one.__module__.partition(".")[0] for one in kind.__mro__]
    found = next((package for package in packages if package in {*_DRIVERS, *_ASYNC_DRIVERS}), None)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if found is None:
        raise InvalidArgument(
            f"{name} is not a connection of psycopg, SQLAlchemy, Django or asyncpg: "
            "run SELECT leasehold.enqueue_intent(...) on it instead"
        )
    is_async = found == "asyncpg" or iscoroutinefunction(getattr(kind, "execute", None))
    if is_async != use_async:
        call = "await aenqueue_in(...)" if is_async else "enqueue_in(...)"
        raise InvalidArgument(f"{name} is {'' if is_async else 'not '}async: use {call}")
    return found

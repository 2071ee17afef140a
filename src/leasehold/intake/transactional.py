"""Enqueuing inside the caller's own transaction: the intent is there if, and only if, it commits.

    with psycopg.connect(...) as connection, connection.transaction():
        connection.execute("UPDATE orders SET state = 'paid' ...")
        enqueue_in(connection, "sms", {"to": "+41 79 000 00 00"}, idempotency_key="order-4711")

Nothing here commits, rolls back or notifies; workers find the intent by polling. The connection
may be psycopg's, SQLAlchemy's (a Session too) or Django's; for `aenqueue_in` psycopg's or
SQLAlchemy's async one, or asyncpg's. All run one statement, which answers with a verdict instead of
an error: after an IdempotencyConflict or an InvalidArgument from here the transaction can go on.
What the database itself refuses (a login without the role leasehold_ingest) is raised as the driver
raises it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import IntentId, as_intent
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.intake.validation import BATCH_MAX, Asked, accepted_id
from leasehold.store.rows import Enqueued

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Unpack

    import psycopg

    from leasehold.domain.intent import IntentOptions, NewIntent

Rows: TypeAlias = Iterable[Sequence[Any]]
_NO_ROWS: Rows = ()

# CAST, since "::" and the places of some drivers do not go together; by way of text, since a
# driver may have been told to write JSON by itself.
_STATEMENT = (
    "SELECT ordinal, verdict, intent_id, problem"
    " FROM leasehold.enqueue_intents(CAST(CAST({place} AS text) AS jsonb)) ORDER BY ordinal"
)
_SQLALCHEMY_NAME = "intents"


def enqueue_in(
    connection: Any,  # noqa: ANN401 (any of the drivers above, none of which we import)
    intent: NewIntent | str,
    payload: Any = None,  # noqa: ANN401 (any JSON)
    **options: Unpack[IntentOptions],
) -> IntentId:
    """Accept one intent in the transaction of `connection`, or raise as Intake.enqueue does."""
    new = as_intent(intent, payload, **options)
    [answer] = enqueue_many_in(connection, [new])
    return accepted_id(new, answer)


async def aenqueue_in(
    connection: Any,  # noqa: ANN401 (as above)
    intent: NewIntent | str,
    payload: Any = None,  # noqa: ANN401 (any JSON)
    **options: Unpack[IntentOptions],
) -> IntentId:
    """Accept one intent in the transaction of an async connection."""
    new = as_intent(intent, payload, **options)
    [answer] = await aenqueue_many_in(connection, [new])
    return accepted_id(new, answer)


def enqueue_many_in(
    connection: Any,  # noqa: ANN401 (as above)
    intents: Sequence[NewIntent],
) -> list[Enqueued]:
    """Accept up to 10,000 intents in the transaction of `connection`; the verdicts in order."""
    driver = _driver_of(connection, _DRIVERS)
    asked = Asked(_bounded(intents))
    rows = (
        driver.run(connection, driver.statement, asked.argument()) if asked.readable else _NO_ROWS
    )
    return asked.answered(map(_enqueued, rows))


async def aenqueue_many_in(
    connection: Any,  # noqa: ANN401 (as above)
    intents: Sequence[NewIntent],
) -> list[Enqueued]:
    """Accept up to 10,000 intents in the transaction of an async connection."""
    driver = _driver_of(connection, _ASYNC_DRIVERS)
    asked = Asked(_bounded(intents))
    rows = (
        await driver.run(connection, driver.statement, asked.argument())
        if asked.readable
        else _NO_ROWS
    )
    return asked.answered(map(_enqueued, rows))


def _bounded(intents: Sequence[NewIntent]) -> Sequence[NewIntent]:
    if len(intents) > BATCH_MAX:
        raise InvalidArgument(
            f"{len(intents)} intents are more than {BATCH_MAX}, the most per call"
        )
    return intents


def _enqueued(row: Sequence[Any]) -> Enqueued:
    ordinal, verdict, intent_id, problem = row
    return Enqueued(
        ordinal=ordinal,
        verdict=EnqueueVerdict(verdict),
        # Each driver has a class of its own for it, or none.
        intent_id=None if intent_id is None else IntentId(UUID(str(intent_id))),
        problem=problem,
    )


class _Result(Protocol):
    def all(self) -> Sequence[Sequence[Any]]: ...


class _Executes(Protocol):
    """A Session or a Connection of SQLAlchemy."""

    def execute(self, statement: Any, parameters: Any, /) -> _Result: ...  # noqa: ANN401


class _ExecutesAsync(Protocol):
    """An AsyncSession or an AsyncConnection of SQLAlchemy."""

    async def execute(self, statement: Any, parameters: Any, /) -> _Result: ...  # noqa: ANN401


class _Cursor(Protocol):
    def execute(self, statement: str, parameters: Sequence[object], /) -> object: ...

    def fetchall(self) -> Sequence[Sequence[Any]]: ...


class _HasCursor(Protocol):
    """A connection of Django."""

    def cursor(self) -> AbstractContextManager[_Cursor]: ...


class _Fetches(Protocol):
    """A connection of asyncpg, or one that its pool has lent."""

    async def fetch(self, statement: str, /, *arguments: object) -> Sequence[Sequence[Any]]: ...


Answered = TypeVar("Answered", covariant=True)


@dataclass(frozen=True, slots=True)
class _Driver(Generic[Answered]):
    """The statement as a driver marks the place of its argument, and how it runs one."""

    statement: str
    run: Callable[[Any, str, str], Answered]


def _run_psycopg(connection: psycopg.Connection[Any], statement: str, argument: str) -> Rows:
    from psycopg.rows import tuple_row

    with connection.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(statement.encode(), [argument]).fetchall()


async def _run_psycopg_async(
    connection: psycopg.AsyncConnection[Any], statement: str, argument: str
) -> Rows:
    from psycopg.rows import tuple_row

    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement.encode(), [argument])
        return await cursor.fetchall()


def _run_sqlalchemy(connection: _Executes, statement: str, argument: str) -> Rows:
    return connection.execute(_text(statement), {_SQLALCHEMY_NAME: argument}).all()


async def _run_sqlalchemy_async(connection: _ExecutesAsync, statement: str, argument: str) -> Rows:
    return (await connection.execute(_text(statement), {_SQLALCHEMY_NAME: argument})).all()


def _run_django(connection: _HasCursor, statement: str, argument: str) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(statement, [argument])
        return cursor.fetchall()


async def _run_asyncpg(connection: _Fetches, statement: str, argument: str) -> Rows:
    return await connection.fetch(statement, argument)


def _text(statement: str) -> object:
    return import_module("sqlalchemy").text(statement)


# By the package that the connection's class, or one that it derives from, comes from.
_DRIVERS: Mapping[str, _Driver[Rows]] = {
    "psycopg": _Driver(_STATEMENT.format(place="%s"), _run_psycopg),
    "sqlalchemy": _Driver(_STATEMENT.format(place=f":{_SQLALCHEMY_NAME}"), _run_sqlalchemy),
    "django": _Driver(_STATEMENT.format(place="%s"), _run_django),
}
_ASYNC_DRIVERS: Mapping[str, _Driver[Awaitable[Rows]]] = {
    "psycopg": _Driver(_STATEMENT.format(place="%s"), _run_psycopg_async),
    "sqlalchemy": _Driver(_STATEMENT.format(place=f":{_SQLALCHEMY_NAME}"), _run_sqlalchemy_async),
    "asyncpg": _Driver(_STATEMENT.format(place="$1"), _run_asyncpg),
}


def _driver_of(connection: object, drivers: Mapping[str, _Driver[Answered]]) -> _Driver[Answered]:
    return drivers[_package_of(type(connection), is_asked_async=drivers is _ASYNC_DRIVERS)]


@lru_cache(maxsize=64)
def _package_of(kind: type, *, is_asked_async: bool) -> str:
    packages = [one.__module__.partition(".")[0] for one in kind.__mro__]
    found = next((package for package in packages if package in {*_DRIVERS, *_ASYNC_DRIVERS}), None)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if found is None:
        raise InvalidArgument(
            f"{name} is no connection of psycopg, SQLAlchemy, Django or asyncpg: run "
            "SELECT leasehold.enqueue_intent(...) with it instead"
        )
    is_async = found == "asyncpg" or iscoroutinefunction(getattr(kind, "execute", None))
    if is_async != is_asked_async:
        called = "await aenqueue_in(...)" if is_async else "enqueue_in(...)"
        raise InvalidArgument(f"{name} is {'' if is_async else 'not '}async: call {called}")
    return found

"""Runs one statement and returns typed rows, or raises one of our errors."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from psycopg import AsyncClientCursor

from leasehold.domain.errors import GenerationChanged
from leasehold.store.postgres.errors import translated
from leasehold.store.postgres.pool import SET_TRANSACTION, server_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import LiteralString

    from psycopg.rows import RowMaker

    from leasehold.store.postgres.connection import Connection, HasResult, RowFactory
    from leasehold.store.postgres.pool import Pool

Row = TypeVar("Row")

_SET_LIMITS = (
    "SELECT set_config(name, value, true) FROM unnest(%s::text[], %s::text[]) AS l (name, value)"
)


class Query:
    """Runs statements on a pool. The parts of a store share one."""

    def __init__(
        self, pool: Pool, on_generation_changed: Callable[[], None] = lambda: None
    ) -> None:
        """Run on `pool`. `on_generation_changed` is called before GenerationChanged is raised."""
        self._pool = pool
        self._on_generation_changed = on_generation_changed
        limits = server_settings(pool.settings)
        self._limits = (list(limits), list(limits.values()))

    async def rows(
        self,
        row: RowFactory[Row],
        statement: LiteralString,
        *arguments: object,
        lease_name: str | None = None,
    ) -> list[Row]:
        """Run a statement in its own transaction, and return its rows once it is committed.

        `lease_name` is the lease that the call acts under; a LeaseLost error carries it.
        """
        try:
            with translated(lease_name, statement):
                async with self._pool.connection() as connection:
                    if self._pool.settings.through_pooler:
                        return await self._rows_with_limits(connection, row, statement, arguments)
                    return await connection.fetch(statement, arguments, row)
        except GenerationChanged:
            self._on_generation_changed()
            raise

    async def value(
        self, statement: LiteralString, *arguments: object, lease_name: str | None = None
    ) -> Any:  # noqa: ANN401 (the caller knows what its function returns)
        """Return the only value of a statement."""
        [only] = await self.rows(first_column, statement, *arguments, lease_name=lease_name)
        return only

    async def _rows_with_limits(
        self,
        connection: Connection,
        row: RowFactory[Row],
        statement: LiteralString,
        arguments: Sequence[object],
    ) -> list[Row]:
        """Send the limits and the statement as one query string, which is one transaction.

        Every pooler supports that. A pipeline would do the same, but with fifty at once through two
        sessions of pgbouncer 1.18, some never got an answer.
        """
        cursor = AsyncClientCursor(connection, row_factory=row)
        text = f"{SET_TRANSACTION}; {_SET_LIMITS}; {statement}"
        await cursor.execute(text, [*self._limits, *arguments])
        cursor.nextset()
        cursor.nextset()
        return await cursor.fetchall()


def rows_of(kind: Callable[..., Row], **convert: Callable[[Any], Any]) -> RowFactory[Row]:
    """Return a factory that makes rows into values of `kind` by column name.

    `convert` maps a column to a function for its values, for example the enum of a text. A
    NamedTuple whose fields are the columns, in order, is made without looking up names.
    """
    converters = {name: _converter(to) for name, to in convert.items()}

    def factory(source: HasResult) -> RowMaker[Row]:
        names = _column_names(source)
        converted = [(names.index(name), to) for name, to in converters.items() if name in names]
        is_in_order = getattr(kind, "_fields", None) == tuple(names)
        whole = tuple_maker(kind) if is_in_order else None
        if whole is not None and not converted:
            return whole

        def make(values: Sequence[Any]) -> Row:
            row = list(values)
            for index, to in converted:
                row[index] = to(row[index])
            return whole(row) if whole else kind(**dict(zip(names, row, strict=True)))

        return make

    return factory


def _column_names(source: HasResult) -> list[str]:
    """Return the same names as a cursor's description, which creates an object per column."""
    result = source.pgresult
    if result is None:
        return []
    return [(result.fname(index) or b"").decode() for index in range(result.nfields)]


def tuple_maker(kind: Callable[..., Row]) -> RowMaker[Row]:
    """Return a faster constructor of a NamedTuple, from a sequence of all its fields in order."""
    new = tuple[Any, ...].__new__
    return cast("RowMaker[Row]", partial(new, cast("type[tuple[Any, ...]]", kind)))


def _converter(to: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Keep NULL as None, and look up the members of an enum without calling it."""
    if isinstance(to, type) and issubclass(to, StrEnum):
        return members_by_text(to).__getitem__
    return lambda value: None if value is None else to(value)


def members_by_text(enum: type[StrEnum]) -> dict[str | None, Any]:
    """Map the texts of the database to the members of an enum; NULL stays None."""
    return {None: None, **{member.value: member for member in enum}}


def first_column(_source: HasResult) -> RowMaker[Any]:
    """Make rows of one column into their values."""
    return lambda values: values[0]


def as_tuples(_source: HasResult) -> RowMaker[tuple[Any, ...]]:
    """Make rows into tuples."""
    return tuple

"""One call of one database function: the statement out, typed rows or one of our errors back."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from psycopg import AsyncClientCursor

from leasehold.store.postgres.errors import translated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import LiteralString

    from psycopg.rows import RowMaker

    from leasehold.store.postgres.connection import Answered, Connection, RowFactory
    from leasehold.store.postgres.pool import Pool

Row = TypeVar("Row")

_SET_LIMITS = (
    "SELECT set_config(name, value, true) FROM unnest(%s::text[], %s::text[]) AS l (name, value)"
)


class Calls:
    """Runs statements on a pool; the parts of a store share one."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        limits = pool.settings.server_settings()
        self._limits = (list(limits), list(limits.values()))

    async def rows(
        self,
        row: RowFactory[Row],
        statement: LiteralString,
        *arguments: object,
        lease_name: str | None = None,
    ) -> list[Row]:
        """Run a statement in a transaction of its own, and return its rows once it is committed."""
        with translated(lease_name):
            async with self._pool.connection() as connection:
                if self._pool.settings.through_pooler:
                    return await self._rows_with_limits(connection, row, statement, arguments)
                return await connection.ask(statement, arguments, row)

    async def value(
        self, statement: LiteralString, *arguments: object, lease_name: str | None = None
    ) -> Any:  # noqa: ANN401 (the caller knows what its function returns)
        """Return the one value of a statement."""
        [only] = await self.rows(first_column, statement, *arguments, lease_name=lease_name)
        return only

    async def _rows_with_limits(
        self,
        connection: Connection,
        row: RowFactory[Row],
        statement: LiteralString,
        arguments: Sequence[object],
    ) -> list[Row]:
        """Send the limits and the statement as one query string: it is one transaction.

        Any pooler understands that. A pipeline would do the same, but of fifty at once through two
        sessions of pgbouncer 1.18, some were seen to stay without an answer.
        """
        cursor = AsyncClientCursor(connection, row_factory=row)
        await cursor.execute(f"{_SET_LIMITS}; {statement}", [*self._limits, *arguments])
        cursor.nextset()
        return await cursor.fetchall()


def rows_of(kind: Callable[..., Row], **convert: Callable[[Any], Any]) -> RowFactory[Row]:
    """Make rows into values by column name; `convert` turns what a column holds into
    what it means, such as a text into a member of its enum.

    A NamedTuple whose fields are the columns in their order is made without looking at names.
    """
    meanings = {name: _meaning(to) for name, to in convert.items()}

    def factory(answered: Answered) -> RowMaker[Row]:
        names = _column_names(answered)
        converted = [(names.index(name), to) for name, to in meanings.items() if name in names]
        is_in_order = getattr(kind, "_fields", None) == tuple(names)
        whole = tuple_maker(kind) if is_in_order else None
        if whole is not None and not converted:
            return whole

        def make(values: Sequence[Any]) -> Row:
            row = list(values)
            for place, to in converted:
                row[place] = to(row[place])
            return whole(row) if whole else kind(**dict(zip(names, row, strict=True)))

        return make

    return factory


def _column_names(answered: Answered) -> list[str]:
    """As a cursor's description says, which makes an object of each column first."""
    result = answered.pgresult
    if result is None:
        return []
    return [(result.fname(place) or b"").decode() for place in range(result.nfields)]


def tuple_maker(kind: Callable[..., Row]) -> RowMaker[Row]:
    """Make a NamedTuple of values that are all of its fields, in their order: the same as calling
    it, in a fraction of the time.
    """
    new = tuple[Any, ...].__new__
    return cast("RowMaker[Row]", partial(new, cast("type[tuple[Any, ...]]", kind)))


def _meaning(to: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Leave NULL alone, and find an enum's member without calling the enum."""
    if isinstance(to, type) and issubclass(to, StrEnum):
        return members_by_text(to).__getitem__
    return lambda value: None if value is None else to(value)


def members_by_text(enum: type[StrEnum]) -> dict[str | None, Any]:
    """Give the members of an enum by what the database calls them; NULL stays None."""
    return {None: None, **{member.value: member for member in enum}}


def first_column(_answered: Answered) -> RowMaker[Any]:
    """Make rows of one column into their values."""
    return lambda values: values[0]


def as_tuples(_answered: Answered) -> RowMaker[tuple[Any, ...]]:
    """Leave rows as they come."""
    return tuple

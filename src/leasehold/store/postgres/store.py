"""PostgresStore: all protocols of the store on one pool.

Each base class works alone too, for a process whose login has fewer roles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from leasehold.store.pool_settings import PoolSettings
from leasehold.store.postgres.executor import PostgresExecutor
from leasehold.store.postgres.ingest import PostgresIngest
from leasehold.store.postgres.operators import PostgresOperators
from leasehold.store.postgres.pool import Pool
from leasehold.store.postgres.query import Query
from leasehold.store.postgres.readers import PostgresReaders
from leasehold.store.postgres.schema_version import check_schema
from leasehold.store.postgres.tokens import PostgresTokens

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from leasehold.store.postgres.sql_files import SqlFiles


class PostgresStore(
    PostgresIngest, PostgresExecutor, PostgresOperators, PostgresReaders, PostgresTokens
):
    """Store on PostgreSQL: `async with PostgresStore(database_url) as store`."""

    def __init__(
        self,
        database_url: str,
        settings: PoolSettings | None = None,
        *,
        on_generation_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_generation_changed` is called before a call raises GenerationChanged."""
        self.pool = Pool(database_url, settings or PoolSettings())
        super().__init__(Query(self.pool, on_generation_changed))

    async def check_schema(self, *, files: SqlFiles | None = None, role: str | None = None) -> None:
        await check_schema(self._query, files, role=role)

    async def __aenter__(self) -> Self:
        await self.pool.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.pool.close()

"""PostgresRoleStores: one login, and a store per scope of the HTTP API with the rights of one role.

So the database, not the code, bounds what a handler of a scope can do. This guards against
mistakes, not against an attacker who runs SQL in this process: the login is a member of all roles.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from leasehold.domain.errors import AccessDenied, SchemaTooOld
from leasehold.store.pool_settings import PoolSettings
from leasehold.store.postgres.pool import Pool
from leasehold.store.postgres.query import Query, as_tuples
from leasehold.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

# The most connections of each role. Ingest has the load, so it may use the whole pool size.
_SIZES_MAX = {"reader": 4, "operator": 2, "auditor": 2, "api": 1}
_NAME_LENGTH_MAX = 63
# Since PostgreSQL 16 the privilege MEMBER also includes members that may not SET ROLE.
_READ_MEMBERSHIPS = """
SELECT given.name, current_user::text, r.oid IS NOT NULL,
       coalesce(pg_has_role(r.oid, CASE WHEN current_setting('server_version_num')::integer
                                             >= 160000 THEN 'SET' ELSE 'MEMBER' END), false)
  FROM unnest(%s::text[]) AS given (name) LEFT JOIN pg_catalog.pg_roles r ON r.rolname = given.name
"""


class PostgresRoleStores:
    """`async with PostgresRoleStores(database_url, settings)`: raises if the login lacks a role."""

    def __init__(
        self,
        database_url: str,
        settings: PoolSettings | None = None,
        *,
        more_roles: Sequence[str] = (),
    ) -> None:
        """Configure the stores. `more_roles` are others that the login needs."""
        self._database_url = database_url
        self._more_roles = more_roles
        self._settings = settings or PoolSettings()
        self._opened = AsyncExitStack()
        self.ingest = self._store("ingest", "leasehold_ingest")
        self.reader = self._store("reader", "leasehold_readonly")
        self.operator = self._store("operator", "leasehold_operator")
        self.auditor = self._store("auditor", "leasehold_auditor")
        self.api = self._store("api", "leasehold_api")

    @property
    def all(self) -> tuple[PostgresStore, ...]:
        """All stores."""
        return (self.ingest, self.reader, self.operator, self.auditor, self.api)

    async def check_schema(self) -> None:
        await self.reader.check_schema()

    async def __aenter__(self) -> Self:
        await self._require_roles()
        async with AsyncExitStack() as opening:
            for store in self.all:
                await opening.enter_async_context(store)
            self._opened = opening.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._opened.__aexit__(kind, error, traceback)

    def _store(self, name: str, role: str) -> PostgresStore:
        size_max = min(self._settings.size_max, _SIZES_MAX.get(name, self._settings.size_max))
        settings = replace(
            self._settings,
            role=role,
            size_min=min(self._settings.size_min, size_max),
            size_max=size_max,
            application_name=f"{self._settings.application_name} {name}"[:_NAME_LENGTH_MAX],
        )
        return PostgresStore(self._database_url, settings)

    async def _require_roles(self) -> None:
        """Check as the login itself, and report all missing roles at once."""
        roles = [str(store.pool.settings.role) for store in self.all] + [*self._more_roles]
        pool = Pool(self._database_url, replace(self._settings, role=None, size_min=0, size_max=1))
        await pool.open()
        try:
            rows = await Query(pool).rows(as_tuples, _READ_MEMBERSHIPS, roles)
        finally:
            await pool.close()
        absent = [name for name, _, is_there, _ in rows if not is_there]
        if absent:
            raise SchemaTooOld(
                f"the server has no role {', '.join(absent)}: run `leasehold migrate`"
            )
        lacking = [name for name, _, _, is_member in rows if not is_member]
        if lacking:
            login, named = rows[0][1], ", ".join(lacking)
            raise AccessDenied(
                f"the login {login} may not act as {named}, which `leasehold serve` needs: "
                f'have a DBA run GRANT {named} TO "{login}"'
            )

"""PostgresDatabase: the port on PostgreSQL. It only puts the parts together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from leasehold.store.postgres import migrate, retention
from leasehold.store.postgres.database_url import (
    connect,
    passwords_in,
    public_url,
    unverified_hosts,
    with_tls,
)
from leasehold.store.postgres.demo import PostgresDemo
from leasehold.store.postgres.examination import examine
from leasehold.store.postgres.lock_session import PostgresLockSession
from leasehold.store.postgres.notifications import PostgresNotifications
from leasehold.store.postgres.role_stores import PostgresRoleStores
from leasehold.store.postgres.server import PostgresServer
from leasehold.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from types import TracebackType

    from leasehold.domain.contract import Scope
    from leasehold.store.database import Check
    from leasehold.store.lock_session import LockSession
    from leasehold.store.pool_settings import PoolSettings
    from leasehold.store.rows import Pruned

_SCOPES: frozenset[Scope] = frozenset(("item", "stream", "cluster"))


class PostgresDatabase:
    """Database on PostgreSQL."""

    server = PostgresServer
    with_tls = staticmethod(with_tls)
    schema_script = staticmethod(migrate.script)

    def __init__(
        self,
        database_url: str,
        settings: PoolSettings,
        on_generation_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = PostgresStore(
            database_url, settings, on_generation_changed=on_generation_changed
        )
        self._on_generation_changed = on_generation_changed
        self._database_url = database_url
        self._settings = settings

    @property
    def scopes(self) -> frozenset[Scope]:
        """All of them."""
        return _SCOPES

    @property
    def public_url(self) -> str:
        return public_url(self._database_url)

    @property
    def unverified_hosts(self) -> Sequence[str]:
        return unverified_hosts(self._database_url)

    @property
    def secrets(self) -> Sequence[str]:
        return passwords_in(self._database_url)

    async def open(self) -> None:
        await self.store.pool.open()

    async def close(self) -> None:
        await self.store.pool.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def check_schema(self, *, role: str | None = None) -> None:
        await self.store.check_schema(role=role)

    def role_stores(self, *, more_roles: Sequence[str] = ()) -> PostgresRoleStores:
        return PostgresRoleStores(self._database_url, self._settings, more_roles=more_roles)

    def demo_store(self) -> PostgresDemo:
        return PostgresDemo(self.store.pool)

    def notifications(self, instance_id: str) -> PostgresNotifications | None:
        """Return a connection for hints; None behind a pooler, which does not pass LISTEN on."""
        if self._settings.through_pooler:
            return None
        return PostgresNotifications(self._database_url, instance_id)

    async def open_lock_session(
        self, *, lease_seconds: float, holder_id: str, replaces: LockSession | None = None
    ) -> PostgresLockSession:
        return await PostgresLockSession.open(
            self._database_url,
            self._settings,
            lease_seconds=lease_seconds,
            holder_id=holder_id,
            replaces=replaces,
            on_generation_changed=self._on_generation_changed,
        )

    @property
    def schema_version(self) -> int:
        return migrate.SqlFiles().version

    def examine(self) -> Sequence[Check]:
        return examine(self._database_url, self._settings.role)

    def plan_migration(self) -> Sequence[migrate.Step]:
        with connect(self._database_url, application_name="leasehold migrate") as connection:
            return migrate.plan(connection)

    def migrate(self, report: Callable[[str], None] | None = None) -> Sequence[migrate.Step]:
        return migrate.migrate(self._database_url, report=report)

    def prune(
        self, *, before: datetime | None = None, keep_days: int = 0, batch_size: int = 10000
    ) -> Iterator[Pruned]:
        return retention.prune(
            self._database_url, before=before, keep_days=keep_days, batch_size=batch_size
        )

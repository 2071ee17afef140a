"""The port: everything above the store speaks to one Database, which its URL chooses.

    async with database_at(url, settings) as database:
        await database.check_schema()
        await database.store.read_contracts()

A process may have several. Nothing outside the store knows which implementation it uses: rows are
in `rows` and `reader_rows`, errors in `domain.errors`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Self, TypeAlias

from leasehold.domain.errors import InvalidArgument
from leasehold.store.pool_settings import PoolSettings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime
    from pathlib import Path
    from types import TracebackType

    from leasehold.domain.contract import Scope
    from leasehold.store import rows
    from leasehold.store.demo import DemoStore
    from leasehold.store.lock_session import LockSession
    from leasehold.store.postgres.database import PostgresDatabase
    from leasehold.store.protocol import (
        ApiStore,
        AuditorStore,
        IngestStore,
        OperatorStore,
        ReaderStore,
        Store,
    )

    StepKind = Literal["roles", "versions", "migration", "function", "view", "upkeep"]

_SCHEME = re.compile(r"([\w+.-]*)://")
_POSTGRES = ("postgresql", "postgres")


class Hint(NamedTuple):
    """A notification: a target has due work, or a lease is free. It may come late, or never."""

    kind: Literal["due", "lease"]
    name: str


class Notifications(Protocol):
    """Receives hints. Each method raises DatabaseUnavailable if the connection fails."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is listening."""
        ...

    async def listen(self) -> None:
        """Connect and subscribe."""
        ...

    def received(self, seconds: float) -> AsyncGenerator[Hint]:
        """Yield hints as they arrive, for this long."""
        ...

    async def ping(self) -> None:
        """Prove that the connection is alive."""
        ...

    async def close(self) -> None:
        """Close the connection; `listen` opens a new one."""
        ...


class ScratchDatabase(NamedTuple):
    """The new database, its URL, and the names of those that were dropped."""

    name: str
    url: str
    dropped: list[str]


class Server(Protocol):
    """A database server, with a login that may create databases."""

    def prepare(self, folder: Path, database: str) -> bool:
        """Create a database if it is missing, on the server whose data is in this folder.

        False, and nothing is created, if the data of the server is elsewhere.
        """
        ...

    def scratch_database(self, prefix: str) -> AbstractContextManager[ScratchDatabase]:
        """Create a database named `prefix` plus a random part; drop those of runs that have ended.

        While a run lasts, a concurrent run does not drop its database.
        """
        ...


Level: TypeAlias = Literal["ok", "warn", "fail"]


class Check(NamedTuple):
    """One thing that was looked at. `advice` says what to do, unless it is ok."""

    name: str
    level: Level
    found: str
    advice: str | None = None


class SchemaStep(Protocol):
    """One file of the schema that a migration applies."""

    @property
    def kind(self) -> StepKind:
        """What it changes."""
        ...

    @property
    def name(self) -> str:
        """Its path inside the folder of the schema."""
        ...


class Opens(Protocol):
    """What is opened with `async with`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class RoleStores(Opens, Protocol):
    """A store per scope of the HTTP API, each with the rights of one role only.

    Opening them raises AccessDenied if the login lacks a role.
    """

    @property
    def ingest(self) -> IngestStore:
        """Accepts intents."""
        ...

    @property
    def reader(self) -> ReaderStore:
        """Reads everything except content."""
        ...

    @property
    def operator(self) -> OperatorStore:
        """Interventions."""
        ...

    @property
    def auditor(self) -> AuditorStore:
        """Reads content too."""
        ...

    @property
    def api(self) -> ApiStore:
        """Checks tokens, and says that this instance is alive."""
        ...

    async def check_schema(self) -> None:
        """Raise MigrationError if this release cannot run on the schema, and say what to do."""
        ...


class Database(Opens, Protocol):
    """One database: its stores, sessions and hints, and its schema.

    `store` is connected from `open` to `close`; the other methods connect by themselves.
    """

    @property
    def scopes(self) -> frozenset[Scope]:
        """The scopes whose targets it can serve."""
        ...

    @property
    def public_url(self) -> str:
        """The URL for people: without the password and without parameters."""
        ...

    @property
    def unverified_hosts(self) -> Sequence[str]:
        """The servers on other machines whose certificates are not verified."""
        ...

    @property
    def secrets(self) -> Sequence[str]:
        """The passwords in the URL."""
        ...

    @property
    def store(self) -> Store:
        """All functions, with the rights of the login, or of the role in the settings."""
        ...

    async def open(self) -> None:
        """Connect `store`, or raise DatabaseUnavailable with the server's reason."""
        ...

    async def close(self) -> None:
        """Close the connections of `store`; those in use when they are returned."""
        ...

    async def check_schema(self, *, role: str | None = None) -> None:
        """Raise MigrationError if this release cannot run on the schema, and say what to do.

        `role` is what the caller needs, for the error if the login has no role at all.
        """
        ...

    def role_stores(self, *, more_roles: Sequence[str] = ()) -> RoleStores:
        """Return the stores of the HTTP API. `more_roles` are others that the login needs."""
        ...

    def demo_store(self) -> DemoStore:
        """Return what the demo reads, on the connections of `store`."""
        ...

    def notifications(self, instance_id: str) -> Notifications | None:
        """Return a connection for hints; None if there are none, so that everything polls."""
        ...

    async def open_lock_session(
        self, *, lease_seconds: float, holder_id: str, replaces: LockSession | None = None
    ) -> LockSession:
        """Connect a session for advisory locks, or raise InvalidArgument if it is not dedicated.

        A session that it replaces is ended, in case the server has not noticed that it is dead.
        """
        ...

    @property
    def schema_version(self) -> int:
        """The version of the schema that this release needs."""
        ...

    def examine(self) -> Sequence[Check]:
        """Look for what is wrong with the database. Changes nothing."""
        ...

    def plan_migration(self) -> Sequence[SchemaStep]:
        """List what `migrate` would apply now, in order. Changes nothing."""
        ...

    def migrate(self, report: Callable[[str], None] | None = None) -> Sequence[SchemaStep]:
        """Apply the missing steps and return them. Safe to run at any time, also concurrently."""
        ...

    def prune(
        self, *, before: datetime | None = None, keep_days: int = 0, batch_size: int = 10000
    ) -> Iterator[rows.Pruned]:
        """Delete what was accepted before a time, or too many days ago by the database's clock."""
        ...


def database_at(
    database_url: str,
    settings: PoolSettings | None = None,
    on_generation_changed: Callable[[], None] = lambda: None,
) -> Database:
    """Return the database at this URL. It connects when it is opened.

    `on_generation_changed` is called before a call raises GenerationChanged.
    """
    return _implementation(database_url)(
        database_url, settings or PoolSettings(), on_generation_changed
    )


def server_at(database_url: str) -> Server:
    """Return the server of this URL, to create databases on it."""
    return _implementation(database_url).server(database_url)


def schema_script(database_url: str = "postgresql://") -> str:
    """Return the whole schema for this kind of database, for someone with more privileges."""
    return _implementation(database_url).schema_script()


def with_tls(database_url: str, tls: str | None, authorities: str | None) -> str:
    """Return the URL with these TLS settings, or raise InvalidArgument if it contradicts them.

    `tls` is the minimum; the URL itself may be stricter. `authorities` is the file of trusted
    certificate authorities, or 'system'.
    """
    return _implementation(database_url).with_tls(database_url, tls, authorities)


def _implementation(database_url: str) -> type[PostgresDatabase]:
    """Choose by the scheme of the URL; `host=... dbname=...` is PostgreSQL's own format."""
    scheme = _SCHEME.match(database_url)
    if scheme is not None and scheme[1] not in _POSTGRES:
        raise InvalidArgument(
            f"databases at {scheme[1]}:// are not supported: write "
            "postgresql://user@host:port/database, with the password in PGPASSFILE or PGPASSWORD"
        )
    # Imported late: many commands and all API clients need no driver.
    from leasehold.store.postgres.database import PostgresDatabase

    return PostgresDatabase

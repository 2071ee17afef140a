"""A dedicated session of PostgreSQL for an advisory lock: never pooled, and ended in time.

A lock belongs to its session and is free when the session ends. If a client vanishes, its session
would not end by itself, so the server is told when to end it: after `lease_seconds` without a
statement (idle_session_timeout), or without a sign of life from the network (tcp_user_timeout,
keepalives). This needs a session that is only ours. A pooler is detected by the process id that
the server reports: it differs from the one that the connection got at its start.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import psycopg

from leasehold.domain.errors import (
    DatabaseUnavailable,
    GenerationChanged,
    InvalidArgument,
    LeaseholdError,
)
from leasehold.domain.lease import Lease
from leasehold.store.postgres.connection import shut_down
from leasehold.store.postgres.database_url import without_password
from leasehold.store.postgres.errors import translated
from leasehold.store.postgres.leases import fence
from leasehold.store.postgres.pool import connect_parameters
from leasehold.store.postgres.query import first_column, rows_of
from leasehold.store.rows import Acquisition

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import LiteralString

    from psycopg.rows import AsyncRowFactory

    from leasehold.store.lock_session import LockSession
    from leasehold.store.pool_settings import PoolSettings

    Connection = psycopg.AsyncConnection[Any]

Row = TypeVar("Row")

_CLOSE_SECONDS = 2.0
# There are few leases of clusters; more names than this are not compared.
_NAMES_MAX = 10_000
_NO_POOLER = (
    "the advisory-lock elector needs a dedicated session, but the database URL is of a pooler: use "
    "the URL of the database itself, or elect by the lease row (LEASEHOLD_ELECTOR=row)"
)


@dataclass(frozen=True, slots=True)
class Backend:
    """The server process of a session. The start time distinguishes it from a later process."""

    pid: int
    started_at: datetime | None  # hidden from other roles
    idle_limit_ms: int


class _Ping(NamedTuple):
    pid: int
    expires_at: datetime


class PostgresLockSession:
    """LockSession on PostgreSQL."""

    def __init__(
        self,
        connection: Connection,
        settings: PoolSettings,
        lease_seconds: float,
        on_generation_changed: Callable[[], None],
    ) -> None:
        self._on_generation_changed = on_generation_changed
        self.answer_seconds = settings.answer_seconds
        self._connection = connection
        self._lease_seconds = lease_seconds
        self._turn = asyncio.Lock()  # one statement at a time, and none while closing
        self._backend: Backend | None = None
        self._has_failed = False

    @classmethod
    async def open(
        cls,
        database_url: str,
        settings: PoolSettings,
        *,
        lease_seconds: float,
        holder_id: str,
        replaces: LockSession | None = None,
        on_generation_changed: Callable[[], None] = lambda: None,
    ) -> Self:
        """Connect, or raise InvalidArgument if the session is not dedicated.

        `on_generation_changed` is called before a call raises GenerationChanged.
        A session that it replaces is ended, in case the server has not noticed that it is dead.
        """
        parameters = connect_parameters(database_url, settings)
        parameters["application_name"] = f"leasehold lock {holder_id}"[:63]
        parameters["prepare_threshold"] = None
        limits = _limits(lease_seconds).items()
        given = str(parameters.get("options") or "")
        parameters["options"] = " ".join([given, *(f"-c {name}={value}" for name, value in limits)])
        try:
            connection = await psycopg.AsyncConnection[Any].connect(**parameters)
        except psycopg.OperationalError as error:
            message = without_password(str(error), parameters)
            if "unsupported startup parameter" in message:
                raise InvalidArgument(_NO_POOLER) from None
            raise DatabaseUnavailable(f"cannot connect to the database: {message}") from None
        session = cls(connection, settings, lease_seconds, on_generation_changed)
        try:
            await session.require_dedicated()
            if isinstance(replaces, cls):
                await session.end(replaces)
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def has_ended(self) -> bool:
        return self._has_failed or self._connection.closed

    @property
    def is_ready(self) -> bool:
        return not self.has_ended and not self._turn.locked()

    async def require_dedicated(self) -> None:
        """Read which server process serves us, or raise InvalidArgument if it is not only ours."""
        [backend] = await self._rows(
            rows_of(Backend),
            "SELECT pid, backend_start AS started_at, (SELECT setting::integer FROM pg_settings"
            "         WHERE name = 'idle_session_timeout') AS idle_limit_ms"
            "  FROM pg_stat_activity WHERE pid = pg_backend_pid()",
        )
        is_limited = backend.idle_limit_ms == _milliseconds(self._lease_seconds)
        if backend.pid != self._connection.info.backend_pid or not is_limited:
            raise InvalidArgument(_NO_POOLER)
        self._backend = backend

    async def end(self, former: PostgresLockSession) -> None:
        """End a session of ours that we can no longer reach, if we have the right."""
        if former._backend is None:
            return
        with suppress(LeaseholdError):
            await self._rows(
                first_column,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid = %s AND backend_start = %s AND usename = session_user",
                former._backend.pid,
                former._backend.started_at,
            )

    async def acquire_lease_by_lock(
        self,
        lease_name: str,
        holder_id: str,
        lock_key: int,
        lease_seconds: float,
        yield_seconds: float,
    ) -> Acquisition:

        def acquisition(
            *,
            acquired: bool,
            free_in_seconds: float | None,
            **columns: Any,  # noqa: ANN401
        ) -> Acquisition:
            lease = Lease(name=lease_name, **columns)
            left = float("inf") if free_in_seconds is None else free_in_seconds
            return Acquisition(is_ours=acquired, lease=lease, seconds_left=left)

        [answer] = await self._rows(
            rows_of(acquisition),
            "SELECT acquired, holder_id, lease_epoch AS epoch, expires_at, grace_expires_at,"
            "       free_in_seconds"
            "  FROM leasehold.acquire_lease_by_lock(%s, %s, %s, %s, %s)",
            lease_name,
            holder_id,
            lock_key,
            lease_seconds,
            yield_seconds,
        )
        return answer

    async def renew_lease(self, lease: Lease, lease_seconds: float) -> datetime:
        """Extend a lease in this session and return its expiry, or raise LeaseLost.

        A timeout does not end the session: the lock must not be free before its holder has
        finished. The caller has a deadline.
        """
        [ping] = await self._rows(
            rows_of(_Ping),
            "SELECT pg_backend_pid() AS pid, leasehold.renew_lease(%s, %s, %s, %s) AS expires_at",
            *fence(lease),
            lease_seconds,
            lease_name=lease.name,
            is_cut=False,
        )
        if self._backend is None or ping.pid != self._backend.pid:
            self._has_failed = True
            raise InvalidArgument(_NO_POOLER)
        return ping.expires_at

    async def release_lease(self, lease: Lease, lock_key: int) -> bool:
        """Release the lease and the lock; False if the lease was already lost.

        One statement does both, so whoever is notified of its commit finds both free.
        """
        [was_ours] = await self._rows(
            first_column,
            "SELECT leasehold.release_lease(%s, %s, %s), pg_advisory_unlock(%s)",
            *fence(lease),
            lock_key,
        )
        return was_ours

    async def read_cluster_lease_names(self) -> list[str]:
        """List the leases of clusters: those whose names do not start with 'stream/'."""
        return await self._rows(
            first_column,
            "SELECT lease_name FROM leasehold.leases"
            " WHERE lease_name < 'stream/' OR lease_name >= 'stream0' LIMIT %s",
            _NAMES_MAX,
        )

    async def close(self) -> None:
        self._has_failed = True
        if self._turn.locked():
            shut_down(self._connection)
        try:
            async with asyncio.timeout(_CLOSE_SECONDS), self._turn:
                await self._connection.close()
        except TimeoutError:
            self._connection.pgconn.finish()

    async def _rows(
        self,
        row: AsyncRowFactory[Row],
        statement: LiteralString,
        *arguments: object,
        lease_name: str | None = None,
        is_cut: bool = True,
    ) -> list[Row]:
        async with self._turn:
            watch = (
                asyncio.get_running_loop().call_later(
                    self.answer_seconds, shut_down, self._connection
                )
                if is_cut
                else None
            )
            try:
                with translated(lease_name, statement):
                    return await self._executed(row, statement, arguments)
            except GenerationChanged:
                self._on_generation_changed()
                raise
            finally:
                if watch is not None:
                    watch.cancel()

    async def _executed(
        self, row: AsyncRowFactory[Row], statement: LiteralString, arguments: tuple[object, ...]
    ) -> list[Row]:
        try:
            cursor = self._connection.cursor(row_factory=row)
            await cursor.execute(statement, arguments)
            return await cursor.fetchall()
        except psycopg.Error as error:
            # FATAL is the last message of a session.
            self._has_failed |= error.diag.severity_nonlocalized == "FATAL"
            raise


def _limits(lease_seconds: float) -> dict[str, str]:
    """Return the settings that make the server end the session after this long without us."""
    probe_seconds = max(1, round(lease_seconds / 4))
    return {
        "idle_session_timeout": f"{_milliseconds(lease_seconds)}ms",
        "tcp_user_timeout": f"{_milliseconds(lease_seconds)}ms",
        "tcp_keepalives_idle": f"{probe_seconds}s",
        "tcp_keepalives_interval": f"{probe_seconds}s",
        # Where tcp_user_timeout is not supported, four probes take at least as long.
        "tcp_keepalives_count": "4",
    }


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)

"""The session advisory lock as lease backend, on a connection of its own.

A dead leader is replaced at once, and a leader that is only slow keeps its lease.

The lock is a witness; the row is the lease. A leader needs both: the lock, which becomes free when
the session of the former leader ends, and the row, which holds the epoch of every write.

- The session ends when its process dies, and the lock is free at once. But an operator, a restart
  or failover of the database, or the network can also end the session while its holder lives and
  does not know. So a free lock does not prove that the holder has stopped.
- Therefore a leader begins no new call once its last answered ping was sent more than
  `start_seconds` ago, on its own trust clock. A successor that gets the lock takes the row only
  if the last renewal is as old on the database's clock, which counts from later.
- Calls that have begun may finish for `trust_seconds`, counted the same way. The server ends a
  session that is silent for that long, and not before (`store.postgres.lock_session`). So unless
  somebody ends the session, nobody else can get the lock until then.

A ping renews the row in the session that holds the lock. If it finds the session ended, the lease
is lost and everything stops. If it is late, no new call begins, running calls go on, and the next
answered ping lets new calls begin again.

The key of the lock is the first eight bytes of the SHA-256 of "leasehold/" and the lease name, as a
signed big-endian integer. Lease names with equal keys would exclude each other and are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from leasehold.coordination.elector import Renewed
from leasehold.domain.errors import DatabaseUnavailable, InvalidArgument, LeaseLost
from leasehold.service.deadline import within_deadline

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from leasehold.domain.lease import Lease
    from leasehold.domain.timing import Timings
    from leasehold.store.executor_protocol import LeaseStore
    from leasehold.store.lock_session import LockSession
    from leasehold.store.rows import Acquisition

    # Takes the time after which the server ends a silent session, and the session to replace.
    OpenSession = Callable[[float, LockSession | None], Awaitable[LockSession]]

# Followers ask at least this often: it is cheap, and a failover waits for it.
ACQUIRE_SECONDS = 1.0


def lock_key(lease_name: str) -> int:
    """Return the lock key of a lease. It must be the same in every release."""
    digest = hashlib.sha256(f"leasehold/{lease_name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def require_distinct_keys(lease_names: Iterable[str]) -> None:
    """Refuse lease names that share a lock key."""
    names: dict[int, str] = {}
    for name in sorted(set(lease_names)):
        other = names.setdefault(lock_key(name), name)
        if other != name:
            raise InvalidArgument(
                f"the leases {other!r} and {name!r} have the same advisory-lock key "
                f"({lock_key(name)}), so only one of them could be held: rename one, or elect by "
                "the lease row (LEASEHOLD_ELECTOR=row)"
            )


async def require_election_by_lock(
    open_session: OpenSession, lease_seconds: float, lease_names: Iterable[str]
) -> None:
    """Check at start what would fail later: a pooler, or lease names that share a key."""
    session = await open_session(lease_seconds, None)
    try:
        require_distinct_keys([*lease_names, *await session.read_cluster_lease_names()])
    finally:
        await session.close()


class AdvisoryLock:
    """The lease backend of one lease, held by an advisory lock and its row."""

    def __init__(
        self,
        store: LeaseStore,
        open_session: OpenSession,
        lease_name: str,
        holder_id: str,
        timings: Callable[[], Timings],
    ) -> None:
        self._store = store
        self._open_session = open_session
        self._lease_name = lease_name
        self._holder_id = holder_id
        self._key = lock_key(lease_name)
        self._timings = timings
        self._session_timings = timings()  # those that the server was given for this session
        self._session: LockSession | None = None
        self._former: LockSession | None = None
        self._has_lock = False
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def trust_seconds(self) -> float:
        """How long the server keeps a silent session."""
        return self._session_timings.cluster_lease_seconds

    @property
    def start_seconds(self) -> float:
        """A few pings. After that, a successor may begin calls."""
        return self._session_timings.cluster_yield_seconds

    @property
    def renewal_seconds(self) -> float:
        """The same as long as the session lasts."""
        return self.trust_seconds

    @property
    def renew_seconds(self) -> float:
        """How often the leader pings."""
        return self._session_timings.cluster_ping_seconds

    @property
    def acquire_seconds(self) -> float:
        """How often a follower asks; often enough that the server keeps its session."""
        timings = self._session_timings
        return min(
            ACQUIRE_SECONDS, timings.cluster_acquire_seconds, timings.cluster_lease_seconds / 2
        )

    async def acquire(self) -> Acquisition:
        """Get the lock and take the row, or neither."""
        session = await self._ready_session()
        self._has_lock = True  # until an answer says otherwise
        try:
            answer = await session.acquire_lease_by_lock(
                self._lease_name, self._holder_id, self._key, self.trust_seconds, self.start_seconds
            )
        except BaseException:
            self._drop_session()
            raise
        self._has_lock = answer.is_ours
        return answer

    async def renew(self, lease: Lease, trust_seconds: float) -> Renewed:
        """Ping, or raise LeaseLost."""
        session = self._session
        if session is None or not self._has_lock:
            raise LeaseLost("the advisory lock was released", lease_name=lease.name)
        start_seconds = self.start_seconds
        try:
            ping = session.renew_lease(lease, trust_seconds)
            expires_at = await within_deadline(session.answer_seconds, ping, "the ping")
        except DatabaseUnavailable as error:
            if not session.has_ended:
                raise
            raise LeaseLost(
                f"the session that held the lock has ended: {error}", lease_name=lease.name
            ) from error
        return Renewed(expires_at, trust_seconds, start_seconds)

    async def release(self, lease: Lease) -> None:
        """Expire the row, then unlock."""
        session = self._session
        if session is None or not session.is_ready:
            self._drop_session()
            await self._store.release_lease(lease)
            return
        try:
            await session.release_lease(lease, self._key)
        except BaseException:
            self._drop_session()
            raise
        self._has_lock = False

    async def close(self) -> None:
        """End the session."""
        self._drop_session()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _ready_session(self) -> LockSession:
        session = self._session
        if session is not None and (self._has_lock or not session.is_ready):
            # A term ended without a release, or the last statement has no answer yet.
            self._drop_session()
        if session is None or session is not self._session:
            self._session_timings = self._timings()
            session = await self._open_session(self.trust_seconds, self._former)
            self._session, self._former = session, None
            await self._refuse_collision(session)
        return session

    async def _refuse_collision(self, session: LockSession) -> None:
        try:
            require_distinct_keys([self._lease_name, *await session.read_cluster_lease_names()])
        except BaseException:
            self._drop_session()
            raise

    def _drop_session(self) -> None:
        """Close the session in the background: a dead one may take seconds."""
        session, self._session, self._has_lock = self._session, None, False
        if session is not None:
            self._former = session
            closing = asyncio.ensure_future(session.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

"""Election by a session advisory lock, on a connection of its own: a leader that dies is followed
at once, and one that is only slow is not robbed.

The lock is a witness, the row is the lease. To lead takes both: the lock, which is free when the
session of the former leader has ended, and the row, which gives the epoch under which everything is
written. What each of them can and cannot say:

- A session ends when its process dies, and the lock is free at once. But it may also be ended by
  others while its holder lives and cannot hear of it: by an operator, a restart or a failover of
  the database, a network in between. So a free lock does not say that its holder knows.
- Therefore a leader begins nothing new once the last ping that was answered was sent longer than
  `start_seconds` ago, on its own monotonic clock; and whoever gets the lock takes the row only when
  the leader's last renewal is as old on the database's clock, which counts from later.
- What the leader has begun it may finish for `trust_seconds`, counted the same way. The server ends
  a session that it has not heard of for that long (`store.postgres.lock_session`) and not before,
  so while nobody interferes with the session, the lock cannot be another's until then.

A ping renews the row in the very session that has the lock. When it says that the session has
ended, the lease is lost: everything stops. When it is late, nothing new begins, and what was begun
goes on; the next one that is answered lets it all go on.

The key of a lock is the first eight bytes of the SHA-256 of "leasehold/" and the lease's name, as a
signed big-endian number. Names with equal keys would exclude each other, so they are refused.
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
    from leasehold.store.lock_session import LockSession
    from leasehold.store.protocol import ExecutorStore
    from leasehold.store.rows import Acquisition

    # The times that the server is told, and the session that it replaces.
    OpenSession = Callable[[float, LockSession | None], Awaitable[LockSession]]

# Followers ask this often at least: it is cheap, and it is what a failover waits for.
ACQUIRE_SECONDS = 1.0


def lock_key(lease_name: str) -> int:
    """Give the key of a lease's lock; the same in every release."""
    digest = hashlib.sha256(f"leasehold/{lease_name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def require_distinct_keys(lease_names: Iterable[str]) -> None:
    """Refuse groups that would wait for each other's lock."""
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
    """Refuse at start what could not work later: a pooler, or names with equal keys."""
    session = await open_session(lease_seconds, None)
    try:
        require_distinct_keys([*lease_names, *await session.read_cluster_lease_names()])
    finally:
        await session.close()


class AdvisoryLock:
    """The elector of one lease."""

    def __init__(
        self,
        store: ExecutorStore,
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
        self._times = timings()  # as the server was told when the session began
        self._session: LockSession | None = None
        self._former: LockSession | None = None
        self._has_lock = False
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def trust_seconds(self) -> float:
        """As long as the server keeps a session that it does not hear of."""
        return self._times.cluster_lease_seconds

    @property
    def start_seconds(self) -> float:
        """A few pings; after it, another may begin."""
        return self._times.cluster_yield_seconds

    @property
    def renew_seconds(self) -> float:
        """How often a leader pings."""
        return self._times.cluster_ping_seconds

    @property
    def acquire_seconds(self) -> float:
        """How often a follower asks; often enough for its session not to be ended as idle."""
        times = self._times
        return min(ACQUIRE_SECONDS, times.cluster_acquire_seconds, times.cluster_lease_seconds / 2)

    async def acquire(self) -> Acquisition:
        """Get the lock and take the row, or neither."""
        session = await self._ready_session()
        self._has_lock = True  # unless an answer says that it has not
        try:
            answer = await session.acquire_lease_by_lock(
                self._lease_name, self._holder_id, self._key, self.trust_seconds, self.start_seconds
            )
        except BaseException:
            self._drop()
            raise
        self._has_lock = answer.is_ours
        return answer

    async def renew(self, lease: Lease) -> Renewed:
        """Ping, or raise LeaseLost."""
        session = self._session
        if session is None or not self._has_lock:
            raise LeaseLost("the lock was given back", lease_name=lease.name)
        times = self.trust_seconds, self.start_seconds
        try:
            ping = session.renew_lease(lease, self.trust_seconds)
            expires_at = await within_deadline(session.answer_seconds, ping, "the ping")
        except DatabaseUnavailable as error:
            if not session.has_ended:
                raise
            raise LeaseLost(
                f"the session that had the lock has ended: {error}", lease_name=lease.name
            ) from error
        return Renewed(expires_at, *times)

    async def release(self, lease: Lease) -> None:
        """Expire the row, then unlock."""
        session = self._session
        if session is None or not session.is_ready:
            self._drop()
            await self._store.release_lease(lease)
            return
        try:
            await session.release_lease(lease, self._key)
        except BaseException:
            self._drop()
            raise
        self._has_lock = False

    async def close(self) -> None:
        """End the session."""
        self._drop()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _ready_session(self) -> LockSession:
        session = self._session
        if session is not None and (self._has_lock or not session.is_ready):
            # A term has ended without a release, or nobody knows what became of the last question.
            self._drop()
        if session is None or session is not self._session:
            self._times = self._timings()
            session = await self._open_session(self.trust_seconds, self._former)
            self._session, self._former = session, None
            await self._refuse_collision(session)
        return session

    async def _refuse_collision(self, session: LockSession) -> None:
        try:
            require_distinct_keys([self._lease_name, *await session.read_cluster_lease_names()])
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        """Let the session end; nobody waits for it."""
        session, self._session, self._has_lock = self._session, None, False
        if session is not None:
            self._former = session
            closing = asyncio.ensure_future(session.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

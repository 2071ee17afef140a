"""The lease row as lease backend: it expires on the database's clock and needs only the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.coordination.elector import Renewed

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.domain.lease import Lease
    from leasehold.domain.timing import Timings
    from leasehold.store.executor_protocol import LeaseStore
    from leasehold.store.rows import Acquisition


class RowLease:
    """The lease backend of one lease row."""

    def __init__(
        self,
        store: LeaseStore,
        lease_name: str,
        holder_id: str,
        timings: Callable[[], Timings],
    ) -> None:
        self._store = store
        self._lease_name = lease_name
        self._holder_id = holder_id
        self._timings = timings
        self._acquired_seconds = timings().cluster_lease_seconds

    @property
    def trust_seconds(self) -> float:
        """The duration that the last acquisition asked for."""
        return self._acquired_seconds

    @property
    def start_seconds(self) -> float:
        """The same: nobody can take the row before it expires."""
        return self.trust_seconds

    @property
    def renewal_seconds(self) -> float:
        """The duration in the settings, which may have changed since the last request."""
        return self._timings().cluster_lease_seconds

    @property
    def renew_seconds(self) -> float:
        """How often the leader renews."""
        return self._timings().cluster_renew_seconds

    @property
    def acquire_seconds(self) -> float:
        """How often a follower asks."""
        return self._timings().cluster_acquire_seconds

    async def acquire(self) -> Acquisition:
        """Take the row if it is free or has expired."""
        self._acquired_seconds = self._timings().cluster_lease_seconds
        return await self._store.acquire_lease(
            self._lease_name, self._holder_id, self._acquired_seconds
        )

    async def renew(self, lease: Lease, trust_seconds: float) -> Renewed:
        """Let the row last this long from now on, or raise LeaseLost."""
        expires_at = await self._store.renew_lease(lease, trust_seconds)
        return Renewed(expires_at, trust_seconds, start_seconds=trust_seconds)

    async def release(self, lease: Lease) -> None:
        """Expire the row now."""
        await self._store.release_lease(lease)

    async def close(self) -> None:
        """Do nothing: only the row is held."""

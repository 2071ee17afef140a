"""Election by a row with an expiry, on the database's clock. Needs nothing but the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.coordination.elector import Renewed

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.domain.lease import Lease
    from leasehold.domain.timing import Timings
    from leasehold.store.protocol import ExecutorStore
    from leasehold.store.rows import Acquisition


class RowLease:
    """The elector of one lease."""

    def __init__(
        self,
        store: ExecutorStore,
        lease_name: str,
        holder_id: str,
        timings: Callable[[], Timings],
    ) -> None:
        self._store = store
        self._lease_name = lease_name
        self._holder_id = holder_id
        self._timings = timings
        self._asked_seconds = timings().cluster_lease_seconds

    @property
    def trust_seconds(self) -> float:
        """The lease's own time, as it was asked for."""
        return self._asked_seconds

    @property
    def start_seconds(self) -> float:
        """The same: nobody takes the row before it expires."""
        return self.trust_seconds

    @property
    def renew_seconds(self) -> float:
        """How often a leader renews."""
        return self._timings().cluster_renew_seconds

    @property
    def acquire_seconds(self) -> float:
        """How often a follower asks."""
        return self._timings().cluster_acquire_seconds

    async def acquire(self) -> Acquisition:
        """Take the row if it is free or has expired."""
        self._asked_seconds = self._timings().cluster_lease_seconds
        return await self._store.acquire_lease(
            self._lease_name, self._holder_id, self._asked_seconds
        )

    async def renew(self, lease: Lease) -> Renewed:
        """Extend the row, or raise LeaseLost."""
        # Read once: the settings may change while we wait, and what was granted is what we asked.
        seconds = self._timings().cluster_lease_seconds
        expires_at = await self._store.renew_lease(lease, seconds)
        return Renewed(expires_at, trust_seconds=seconds, start_seconds=seconds)

    async def release(self, lease: Lease) -> None:
        """Expire the row now."""
        await self._store.release_lease(lease)

    async def close(self) -> None:
        """Nothing is held beside the row."""

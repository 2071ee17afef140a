"""The protocol of a database session that holds an advisory lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import datetime

    from leasehold.domain.lease import Lease
    from leasehold.store.rows import Acquisition


class LockSession(Protocol):
    """A dedicated session with the rights of an executor.

    A session holds an advisory lock, and the lock ends with the session, so no pool may lend it.
    """

    @property
    def answer_seconds(self) -> float:
        """The longest time that a statement can take."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether the session is known to have ended, and its locks with it."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether it can run a statement now."""
        ...

    async def acquire_lease_by_lock(
        self,
        lease_name: str,
        holder_id: str,
        lock_key: int,
        lease_seconds: float,
        yield_seconds: float,
    ) -> Acquisition:
        """Take a lease by its advisory lock, or report who holds it.

        `seconds_left` is infinite while another session has the lock.
        """
        ...

    async def renew_lease(self, lease: Lease, lease_seconds: float) -> datetime:
        """Extend a lease in this session and return its expiry, or raise LeaseLost."""
        ...

    async def release_lease(self, lease: Lease, lock_key: int) -> bool:
        """Release the lease and the lock; False if the lease was already lost."""
        ...

    async def read_cluster_lease_names(self) -> list[str]:
        """List the leases of clusters."""
        ...

    async def close(self) -> None:
        """End the session, even if it does not answer."""
        ...

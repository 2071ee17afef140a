"""What an election by advisory lock needs of a database, beside ExecutorStore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import datetime

    from leasehold.domain.lease import Lease
    from leasehold.store.rows import Acquisition


class LockSession(Protocol):
    """One session of the database with the rights of an executor, which no pool lends to anybody:
    an advisory lock is held by a session, and ends with it.
    """

    @property
    def answer_seconds(self) -> float:
        """The longest that an answer can take."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether the session is known to be over, and its locks with it."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked something now."""
        ...

    async def acquire_lease_by_lock(
        self,
        lease_name: str,
        holder_id: str,
        lock_key: int,
        lease_seconds: float,
        yield_seconds: float,
    ) -> Acquisition:
        """Take a lease by its advisory lock, or learn who holds it; `seconds_left` is infinite
        while another session has the lock.
        """
        ...

    async def renew_lease(self, lease: Lease, lease_seconds: float) -> datetime:
        """Extend it in this very session and return its expiry, or raise LeaseLost."""
        ...

    async def release_lease(self, lease: Lease, lock_key: int) -> bool:
        """Let go of the lease and of the lock; False when the lease was not ours any more."""
        ...

    async def read_cluster_lease_names(self) -> list[str]:
        """Name the leases that are not of streams."""
        ...

    async def close(self) -> None:
        """End the session, also when it does not answer."""
        ...

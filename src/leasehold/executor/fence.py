"""The two fences: a claim of each item's own, or one lease for all items of a term.

Every write of runner and completer goes through a fence, and the database checks it there.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from leasehold.domain.errors import (
    DatabaseUnavailable,
    InvalidCompletionState,
    LeaseholdError,
    LeaseLost,
    RetryCeilingReached,
    TerminalGuardHit,
)
from leasehold.domain.verdict import ReleaseVerdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasehold.coordination.item import Fence, Item
    from leasehold.domain.contract import Contract
    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import Lease
    from leasehold.domain.outcome import Result
    from leasehold.domain.verdict import BeginVerdict
    from leasehold.store.protocol import ExecutorStore
    from leasehold.store.rows import Recorded


# P7003, P7004, and 23505 of the index that allows one terminal row per intent.
_ABOUT_ONE_RESULT = (InvalidCompletionState, RetryCeilingReached, TerminalGuardHit)


def by_fence(items: Iterable[Item]) -> dict[Fence, list[Item]]:
    """Group items by their fence: each group is one write."""
    groups: defaultdict[Fence, list[Item]] = defaultdict(list)
    for item in items:
        groups[item.fence].append(item)
    return groups


class ClaimFence:
    """The fence of a worker: each item has a claim (worker_id, lease_token) of its own."""

    def __init__(self, store: ExecutorStore, worker_id: str) -> None:
        self.holder_id = worker_id
        self._store = store

    def must_begin(self, contract: Contract) -> bool:
        """Say whether the contract requires it."""
        return contract.must_begin

    async def begin(self, items: Sequence[Item]) -> dict[IntentId, BeginVerdict]:
        """Make "about to call" durable."""
        begun = await self._store.begin_outbox_attempts(
            self.holder_id, [item.claimed.claim for item in items]
        )
        return {one.intent_id: one.verdict for one in begun}

    async def record(self, results: Sequence[Result]) -> list[Recorded]:
        """Complete claims."""
        return await self._store.complete_outbox_attempts(
            self.holder_id, results, tell_dispatched=False
        )

    def is_about_one_result(self, error: Exception) -> bool:
        """Say yes to everything that the database decided: each claim stands for itself."""
        return isinstance(error, LeaseholdError) and not isinstance(
            error, (DatabaseUnavailable, LeaseLost)
        )

    async def give_back(self, items: Sequence[Item], delay_seconds: float) -> int:
        """Release claims."""
        released = await self._store.release_outbox_claims(
            self.holder_id, [item.claimed.claim for item in items], delay_seconds
        )
        return sum(one.verdict is ReleaseVerdict.LEASE_LOST for one in released)


class LeaseFence:
    """The fence of a leader: one lease covers all items, with the epoch received at acquire."""

    def __init__(self, store: ExecutorStore, lease: Lease) -> None:
        self.holder_id = lease.holder_id
        self._store = store
        self._lease = lease

    def must_begin(self, contract: Contract) -> bool:
        """Say whether the contract requires it, or limits the time that the gateway knows a key.

        The database counts that time from the first attempt. Without a begin it would learn of the
        attempt only from its result.
        """
        return contract.must_begin or contract.key_window_seconds is not None

    async def begin(self, items: Sequence[Item]) -> dict[IntentId, BeginVerdict]:
        """Make "about to call" durable; raises LeaseLost."""
        begun = await self._store.begin_leased_attempts(
            self._lease, [item.claimed.intent_id for item in items]
        )
        return {one.intent_id: one.verdict for one in begun}

    async def record(self, results: Sequence[Result]) -> list[Recorded]:
        """Record results under the lease; raises LeaseLost."""
        return await self._store.record_attempts(self._lease, results, tell_dispatched=False)

    def is_about_one_result(self, error: Exception) -> bool:
        """Say yes only to errors that name a result.

        A leader that may not write at all must step down: its calls would leave no trace.
        """
        return isinstance(error, _ABOUT_ONE_RESULT)

    async def give_back(self, items: Sequence[Item], delay_seconds: float) -> int:
        """Do nothing: there is no claim to release, and the due queue keeps the delay."""
        del items, delay_seconds
        return 0

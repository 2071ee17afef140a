"""The fences: a claim of each item's own, one lease for all items of a term, or a lease per stream.

Every write of runner and completer goes through a fence, and the database checks it there. The
fence of streams is `streams/fence.py`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, Protocol

from leasehold.domain.errors import (
    DatabaseUnavailable,
    InvalidCompletionState,
    LeaseholdError,
    LeaseLost,
    RetryCeilingReached,
    TerminalGuardHit,
)
from leasehold.domain.outcome import Result
from leasehold.domain.verdict import RecordVerdict, ReleaseVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leasehold.domain.contract import Contract
    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import Lease
    from leasehold.domain.verdict import BeginVerdict
    from leasehold.executor.item import Item
    from leasehold.store.executor_protocol import ClaimWriteStore
    from leasehold.store.leader_protocol import LeasedWriteStore
    from leasehold.store.rows import Recorded


# In one write. The fence of streams takes fewer, because each stream may have 100 items.
GIVEN_BACK_MAX = 500
_LOCKED = RecordVerdict.LOCKED
# P7003, P7004, and 23505 of the index that allows one terminal row per intent.
_ABOUT_ONE_RESULT = (InvalidCompletionState, RetryCeilingReached, TerminalGuardHit)


def _start_nothing(_: Sequence[Item]) -> None:
    """Do nothing: only streams have next heads."""


class Written(NamedTuple):
    """What a write brought: what was recorded, without what became DISPATCHED; how many leases were
    lost; and the next heads of streams, which are to be started when the items of this write are
    let go.
    """

    recorded: Sequence[Recorded] = ()
    lost: int = 0
    next_heads: Sequence[Item] = ()
    start: Callable[[Sequence[Item]], None] = _start_nothing

    def locked(self, items: Iterable[Item]) -> list[Item]:
        """Return the items for which nothing was written, as somebody else has locked a row."""
        numbers = {one.intent_id.int for one in self.recorded if one.verdict is _LOCKED}
        return [item for item in items if item.intent_no in numbers] if numbers else []


class Fence(Protocol):
    """What the database checks on every write for an item: its claim, or a lease with its epoch."""

    @property
    def holder_id(self) -> str:
        """The worker id that claims and leases are held under."""
        ...

    @property
    def keeps_slot(self) -> bool:
        """Whether an item keeps its slot until its result is recorded: for what follows it."""
        ...

    @property
    def given_back_max(self) -> int:
        """How many items one write may give back."""
        ...

    def must_begin(self, contract: Contract) -> bool:
        """Say whether "about to call" must be durable before a call."""
        ...

    async def begin(self, items: Sequence[Item]) -> dict[IntentId, BeginVerdict]:
        """Make "about to call" durable."""
        ...

    async def record(self, items: Sequence[Item]) -> Written:
        """Write the outcomes of items to the ledger."""
        ...

    def is_about_one_result(self, error: Exception) -> bool:
        """Say whether `record` failed for one of its results, so that the others may be written."""
        ...

    async def give_back(self, items: Sequence[Item], delay_seconds: float) -> Written:
        """Return items without an attempt, due after the delay."""
        ...


def results_of(items: Iterable[Item]) -> list[Result]:
    """Return the outcomes of items as the store takes them."""
    return [
        Result(
            item.claimed.intent_id,
            item.outcome,
            item.claimed.lease_token,
            item.elapsed_seconds,
            item.attempt_no,
        )
        for item in items
        if item.outcome is not None
    ]


def by_fence(items: Iterable[Item]) -> dict[Fence, list[Item]]:
    """Group items by their fence: each group is one write."""
    groups: defaultdict[Fence, list[Item]] = defaultdict(list)
    for item in items:
        groups[item.fence].append(item)
    return groups


class ClaimFence:
    """The fence of a worker: each item has a claim (worker_id, lease_token) of its own."""

    keeps_slot = False
    given_back_max = GIVEN_BACK_MAX

    def __init__(self, store: ClaimWriteStore, worker_id: str) -> None:
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

    async def record(self, items: Sequence[Item]) -> Written:
        """Complete claims."""
        return Written(
            await self._store.complete_outbox_attempts(
                self.holder_id, results_of(items), tell_dispatched=False
            )
        )

    def is_about_one_result(self, error: Exception) -> bool:
        """Say yes to everything that the database decided: each claim stands for itself."""
        return isinstance(error, LeaseholdError) and not isinstance(
            error, (DatabaseUnavailable, LeaseLost)
        )

    async def give_back(self, items: Sequence[Item], delay_seconds: float) -> Written:
        """Release claims."""
        released = await self._store.release_outbox_claims(
            self.holder_id,
            [item.claimed.claim for item in items],
            delay_seconds,
            [item.claimed.intent_id for item in items if item.is_unsent],
        )
        return Written(lost=sum(one.verdict is ReleaseVerdict.LEASE_LOST for one in released))


class LeaseFence:
    """The fence of a leader: one lease covers all items, with the epoch received at acquire."""

    keeps_slot = False
    given_back_max = GIVEN_BACK_MAX

    def __init__(self, store: LeasedWriteStore, lease: Lease) -> None:
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

    async def record(self, items: Sequence[Item]) -> Written:
        """Record results under the lease; raises LeaseLost."""
        return Written(
            await self._store.record_attempts(self._lease, results_of(items), tell_dispatched=False)
        )

    def is_about_one_result(self, error: Exception) -> bool:
        """Say yes only to errors that name a result.

        A leader that may not write at all must step down: its calls would leave no trace.
        """
        return isinstance(error, _ABOUT_ONE_RESULT)

    async def give_back(self, items: Sequence[Item], delay_seconds: float) -> Written:
        """Take back what was begun. There is no claim, and the due queue keeps the delay."""
        del delay_seconds
        unsent = [item.claimed.intent_id for item in items if item.is_unsent]
        if unsent:
            await self._store.release_leased_attempts(self._lease, unsent)
        return Written()

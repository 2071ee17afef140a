"""The fences: a claim of each item's own, one lease for all items of a term, or a lease per stream.

Every write of runner and completer goes through a fence, and the database checks it there.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from leasehold.coordination.item import RECORDING
from leasehold.domain.errors import (
    DatabaseUnavailable,
    InvalidCompletionState,
    LeaseholdError,
    LeaseLost,
    RetryCeilingReached,
    TerminalGuardHit,
)
from leasehold.domain.outcome import Deferral
from leasehold.domain.verdict import ReleaseVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leasehold.coordination.item import Fence, Item
    from leasehold.coordination.slots import Clock
    from leasehold.coordination.streams import HeldStream, HeldStreams
    from leasehold.domain.contract import Contract
    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import Lease
    from leasehold.domain.outcome import Result
    from leasehold.domain.verdict import BeginVerdict
    from leasehold.store.executor_protocol import ClaimWriteStore, StreamWriteStore
    from leasehold.store.leader_protocol import LeasedWriteStore
    from leasehold.store.rows import Recorded, StreamWork


# P7003, P7004, and 23505 of the index that allows one terminal row per intent.
_ABOUT_ONE_RESULT = (InvalidCompletionState, RetryCeilingReached, TerminalGuardHit)

# How many streams are given back at once. Each may have 100 items.
_GIVEN_BACK_MAX = 20


def by_fence(items: Iterable[Item]) -> dict[Fence, list[Item]]:
    """Group items by their fence: each group is one write."""
    groups: defaultdict[Fence, list[Item]] = defaultdict(list)
    for item in items:
        groups[item.fence].append(item)
    return groups


def _deferral(item: Item, seconds: float) -> Deferral:
    return Deferral(item.claimed.intent_id, seconds, item.attempt_no)


class ClaimFence:
    """The fence of a worker: each item has a claim (worker_id, lease_token) of its own."""

    keeps_slot = False

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
            self.holder_id,
            [item.claimed.claim for item in items],
            delay_seconds,
            [item.claimed.intent_id for item in items if item.is_unsent],
        )
        return sum(one.verdict is ReleaseVerdict.LEASE_LOST for one in released)


class LeaseFence:
    """The fence of a leader: one lease covers all items, with the epoch received at acquire."""

    keeps_slot = False

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

    async def record(self, results: Sequence[Result]) -> list[Recorded]:
        """Record results under the lease; raises LeaseLost."""
        return await self._store.record_attempts(self._lease, results, tell_dispatched=False)

    def is_about_one_result(self, error: Exception) -> bool:
        """Say yes only to errors that name a result.

        A leader that may not write at all must step down: its calls would leave no trace.
        """
        return isinstance(error, _ABOUT_ONE_RESULT)

    async def give_back(self, items: Sequence[Item], delay_seconds: float) -> int:
        """Take back what was begun. There is no claim, and the due queue keeps the delay."""
        del delay_seconds
        unsent = [item.claimed.intent_id for item in items if item.is_unsent]
        if unsent:
            await self._store.release_leased_attempts(self._lease, unsent)
        return 0


class StreamFence:
    """The fence of streams: each has a lease with an epoch of its own. One write serves many.

    Recording the result of a stream's head returns its next head, which `go_on` starts, if `kept`
    returns the lease of the stream. Heads are begun by the claim or the record that returns them,
    except for those that come too late for it.
    """

    keeps_slot = True

    def __init__(
        self,
        store: StreamWriteStore,
        streams: HeldStreams,
        clock: Clock,
        kept: Callable[[Sequence[HeldStream]], list[Lease]],
        go_on: Callable[[Iterable[StreamWork], float], None],
        *,
        is_begun: bool,
    ) -> None:
        self.holder_id = streams.holder_id
        self._store = store
        self._streams = streams
        self._clock = clock
        self._kept = kept
        self._go_on = go_on
        self._is_begun = is_begun

    def must_begin(self, contract: Contract) -> bool:
        """Say yes, unless the claim has begun the call."""
        del contract
        return not self._is_begun

    async def begin(self, items: Sequence[Item]) -> dict[IntentId, BeginVerdict]:
        """Make "about to call" durable."""
        held = self._held(item.intent_no for item in items)
        begun = await self._store.begin_stream_attempts(
            self.holder_id,
            [one.lease for one in held],
            [item.claimed.intent_id for item in items],
        )
        return {one.intent_id: one.verdict for one in begun}

    async def record(self, results: Sequence[Result]) -> list[Recorded]:
        """Record results under the leases of their streams, and go on with these streams."""
        return await self._record(results, {})

    def is_about_one_result(self, error: Exception) -> bool:
        """Say yes to everything that the database decided: each stream stands for itself."""
        return isinstance(error, LeaseholdError) and not isinstance(
            error, (DatabaseUnavailable, LeaseLost)
        )

    async def give_back(self, items: Sequence[Item], delay_seconds: float) -> int:
        """Put heads off, or release their streams if there is no delay."""
        lost = 0
        for start in range(0, len(items), _GIVEN_BACK_MAX):
            lost += await self._give_back(items[start : start + _GIVEN_BACK_MAX], delay_seconds)
        return lost

    async def _give_back(self, items: Sequence[Item], delay_seconds: float) -> int:
        # Without those that were written together with the results of their streams.
        items = [item for item in items if self._streams.has(item)]
        if not items:
            return 0
        if delay_seconds > 0:
            # With the others of their batches, if nothing was called for these.
            deferred = {
                one.claimed.intent_id: _deferral(one, delay_seconds)
                for item in items
                for one in (item, *item.followers)
                if one is item or one.state < RECORDING
            }
            await self._record([], deferred)
            return 0
        held = self._held(item.intent_no for item in items)
        if not held:
            return 0
        released = await self._store.release_streams(
            self.holder_id,
            [one.lease for one in held],
            [one.claimed.intent_id for stream in held for one in stream.items if one.is_unsent],
        )
        for one in held:
            self._streams.forget(one)
            self._streams.freed_targets.add(one.target)
        return sum(one.verdict is ReleaseVerdict.LEASE_LOST for one in released)

    async def _record(
        self, results: Sequence[Result], deferred: dict[IntentId, Deferral]
    ) -> list[Recorded]:
        ids = [*(result.intent_id for result in results), *deferred]
        held = self._held(one.int for one in ids)
        asked_at = self._clock()
        # The other items of these streams go with them, because the streams go on after this write.
        put_back = [one for stream in held for one in stream.items if one.is_put_back]
        deferred = {
            one.claimed.intent_id: _deferral(one, one.delay_left(asked_at)) for one in put_back
        } | deferred
        recorded = await self._store.record_stream_attempts(
            self.holder_id,
            [one.lease for one in held],
            results,
            deferred=list(deferred.values()),
            kept=self._kept(held),
            begin=True,
            tell_dispatched=False,
        )
        self._go_on(recorded.streams, asked_at)
        return recorded.results

    def _held(self, intent_numbers: Iterable[int]) -> list[HeldStream]:
        """Return the streams of items, each once."""
        found = (self._streams.of(number) for number in intent_numbers)
        return list(dict.fromkeys(one for one in found if one is not None))

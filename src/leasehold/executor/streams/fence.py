"""The fence of streams: each has a lease with an epoch of its own. One write serves many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.domain.errors import DatabaseUnavailable, LeaseholdError, LeaseLost
from leasehold.domain.outcome import Deferral
from leasehold.domain.verdict import ReleaseVerdict
from leasehold.executor.item import RECORDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leasehold.domain.contract import Contract
    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import Clock, Lease
    from leasehold.domain.outcome import Result
    from leasehold.domain.verdict import BeginVerdict
    from leasehold.executor.item import Item
    from leasehold.executor.streams.held import HeldStream, HeldStreams
    from leasehold.store.executor_protocol import StreamWriteStore
    from leasehold.store.rows import Recorded, StreamWork

# How many streams are given back at once. Each may have 100 items.
_GIVEN_BACK_MAX = 20


def _deferral(item: Item, seconds: float) -> Deferral:
    return Deferral(item.claimed.intent_id, seconds, item.attempt_no)


class StreamFence:
    """Records the results of heads, and goes on with their streams.

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
        sent_at = self._clock()
        # The other items of these streams go with them, because the streams go on after this write.
        put_back = [one for stream in held for one in stream.items if one.is_put_back]
        deferred = {
            one.claimed.intent_id: _deferral(one, one.delay_left(sent_at)) for one in put_back
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
        self._go_on(recorded.streams, sent_at)
        return recorded.results

    def _held(self, intent_numbers: Iterable[int]) -> list[HeldStream]:
        """Return the streams of items, each once."""
        found = (self._streams.of(number) for number in intent_numbers)
        return list(dict.fromkeys(one for one in found if one is not None))

"""The fence of streams: each has a lease with an epoch of its own. One write serves many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.domain.errors import DatabaseUnavailable, LeaseholdError, LeaseLost
from leasehold.domain.outcome import Deferral
from leasehold.domain.verdict import ReleaseVerdict
from leasehold.executor.fences import Written, results_of
from leasehold.executor.item import RECORDING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasehold.domain.contract import Contract
    from leasehold.domain.intent import IntentId
    from leasehold.domain.verdict import BeginVerdict
    from leasehold.executor.item import Item
    from leasehold.executor.streams.held import HeldStream, HeldStreams
    from leasehold.executor.streams.holder import StreamHolder
    from leasehold.store.executor_protocol import StreamWriteStore


class StreamFence:
    """Records the results of heads, and learns the next heads of their streams.

    The database returns the next head of each stream that the holder continues. Heads are begun by
    the claim or the record that returns them, except for those that come too late for it.
    """

    keeps_slot = True
    given_back_max = 20  # each stream may have 100 items

    def __init__(
        self,
        store: StreamWriteStore,
        streams: HeldStreams,
        holder: StreamHolder,
        *,
        is_begun: bool,
    ) -> None:
        self.holder_id = streams.holder_id
        self._store = store
        self._streams = streams
        self._holder = holder
        self._is_begun = is_begun

    def must_begin(self, contract: Contract) -> bool:
        """Say yes, unless the claim has begun the call."""
        del contract
        return not self._is_begun

    async def begin(self, items: Sequence[Item]) -> dict[IntentId, BeginVerdict]:
        """Make "about to call" durable."""
        begun = await self._store.begin_stream_attempts(
            self.holder_id,
            [one.lease for one in _streams_of(items)],
            [item.claimed.intent_id for item in items],
        )
        return {one.intent_id: one.verdict for one in begun}

    async def record(self, items: Sequence[Item]) -> Written:
        """Record results under the leases of their streams."""
        return await self._record(items, [], 0.0)

    def is_about_one_result(self, error: Exception) -> bool:
        """Say yes to everything that the database decided: each stream stands for itself."""
        return isinstance(error, LeaseholdError) and not isinstance(
            error, (DatabaseUnavailable, LeaseLost)
        )

    async def give_back(self, items: Sequence[Item], delay_seconds: float) -> Written:
        """Put heads off, or release their streams if there is no delay."""
        held = _streams_of(items)  # without those that were written together with results
        if not held:
            return Written()
        if delay_seconds > 0:
            return await self._record([], items, delay_seconds)
        released = await self._store.release_streams(
            self.holder_id,
            [one.lease for one in held],
            [one.claimed.intent_id for stream in held for one in stream.items if one.is_unsent],
        )
        for one in held:
            self._streams.forget(one)
            self._streams.freed_targets.add(one.target)
        return Written(lost=sum(one.verdict is ReleaseVerdict.LEASE_LOST for one in released))

    async def _record(
        self, finished: Sequence[Item], put_off: Sequence[Item], delay_seconds: float
    ) -> Written:
        held = _streams_of([*finished, *put_off])
        sent_at = self._holder.clock()
        # The other items of these streams go with them: this write brings the next heads.
        deferred = {
            one.claimed.intent_id: _deferral(one, one.delay_left(sent_at))
            for stream in held
            for one in stream.items
            if one.is_put_back
        } | {
            # With the others of their batches, if nothing was called for these.
            one.claimed.intent_id: _deferral(one, delay_seconds)
            for item in put_off
            if _is_worked_on(item)
            for one in (item, *item.followers)
            if one is item or one.state < RECORDING
        }
        recorded = await self._store.record_stream_attempts(
            self.holder_id,
            [one.lease for one in held],
            results_of(finished),
            deferred=list(deferred.values()),
            kept=self._holder.leases_to_continue(held),
            begin=True,
            tell_dispatched=False,
        )
        next_heads = self._holder.learn(recorded.streams, sent_at)
        return Written(recorded.results, 0, next_heads, self._holder.start)


def _deferral(item: Item, seconds: float) -> Deferral:
    return Deferral(item.claimed.intent_id, seconds, item.attempt_no)


def _is_worked_on(item: Item) -> bool:
    """Say whether its stream still has it. Else the stream was lost, or went on."""
    return item.stream is not None and item in item.stream.items


def _streams_of(items: Iterable[Item]) -> list[HeldStream]:
    """Return the streams that items are worked on in, each once."""
    found = (item.stream for item in items if _is_worked_on(item))
    return list(dict.fromkeys(one for one in found if one is not None))

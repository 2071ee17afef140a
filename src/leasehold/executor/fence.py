"""Under what an attempt acts: a claim of its own, or the lease of a leader. Everything that an
attempt writes goes through one of these two, and the database checks it there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

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
    from collections.abc import Callable, Sequence

    from leasehold.coordination.claims import Held
    from leasehold.domain.contract import Contract
    from leasehold.domain.intent import Claimed, IntentId
    from leasehold.domain.lease import Lease
    from leasehold.domain.outcome import Result
    from leasehold.domain.verdict import BeginVerdict
    from leasehold.store.protocol import ExecutorStore
    from leasehold.store.rows import Recorded


# P7003, P7004, and 23505 of the index that allows one terminal row.
_OF_ONE_RESULT = (InvalidCompletionState, RetryCeilingReached, TerminalGuardHit)


class Fence(Protocol):
    """What attempts and completion need of it."""

    def must_begin(self, contract: Contract) -> bool:
        """Say whether "about to call" must be durable before a call."""
        ...

    def token(self, claimed: Claimed) -> int:
        """Return the fencing token for the gateway: a number that only rises for an intent."""
        ...

    async def begin(self, batch: Sequence[Held]) -> dict[IntentId, BeginVerdict]:
        """Make "about to call" durable."""
        ...

    async def record(self, results: Sequence[Result]) -> list[Recorded]:
        """Write what became of calls; what was dispatched is left out of the answer."""
        ...

    def is_of_one_result(self, refusal: Exception) -> bool:
        """Say whether `record` was refused for one of its results, so that the others may stand."""
        ...

    async def give_back(self, batch: Sequence[Held], delay_seconds: float) -> int:
        """Return work without a try, to be done after a while; say how much of it was lost."""
        ...


class ClaimFence:
    """Each item has a claim of its own."""

    def __init__(self, store: ExecutorStore, worker_id: str) -> None:
        self._store = store
        self._worker_id = worker_id

    def must_begin(self, contract: Contract) -> bool:
        """Say whether the contract asks for it."""
        return contract.must_begin

    def token(self, claimed: Claimed) -> int:
        """Return the attempt's number. Never the claim's token, which is a secret."""
        return claimed.attempt_no

    async def begin(self, batch: Sequence[Held]) -> dict[IntentId, BeginVerdict]:
        """Make "about to call" durable."""
        answers = await self._store.begin_outbox_attempts(
            self._worker_id, [held.claimed.claim for held in batch]
        )
        return {one.intent_id: one.verdict for one in answers}

    async def record(self, results: Sequence[Result]) -> list[Recorded]:
        """Complete claims."""
        return await self._store.complete_outbox_attempts(
            self._worker_id, results, tell_dispatched=False
        )

    def is_of_one_result(self, refusal: Exception) -> bool:
        """Say so of all that the database decided: each claim stands for itself."""
        return isinstance(refusal, LeaseholdError) and not isinstance(
            refusal, (DatabaseUnavailable, LeaseLost)
        )

    async def give_back(self, batch: Sequence[Held], delay_seconds: float) -> int:
        """Release claims."""
        answers = await self._store.release_outbox_claims(
            self._worker_id, [held.claimed.claim for held in batch], delay_seconds
        )
        return sum(one.verdict is ReleaseVerdict.LEASE_LOST for one in answers)


class LeaseFence:
    """All items stand under one lease, with the epoch that was received when it was acquired."""

    def __init__(
        self,
        store: ExecutorStore,
        lease: Lease,
        put_off: Callable[[IntentId, float], None],
    ) -> None:
        self._store = store
        self._lease = lease
        self._put_off = put_off

    def must_begin(self, contract: Contract) -> bool:
        """Say whether the contract asks for it, or the key's window has to be counted: where
        nothing is begun, the database learns of a first try only from its result.
        """
        return contract.must_begin or contract.key_window_seconds is not None

    def token(self, claimed: Claimed) -> int:
        """Return the epoch of the lease."""
        del claimed
        return self._lease.epoch

    async def begin(self, batch: Sequence[Held]) -> dict[IntentId, BeginVerdict]:
        """Make "about to call" durable; raises LeaseLost."""
        answers = await self._store.begin_leased_attempts(
            self._lease, [held.claimed.intent_id for held in batch]
        )
        return {one.intent_id: one.verdict for one in answers}

    async def record(self, results: Sequence[Result]) -> list[Recorded]:
        """Write under the lease; raises LeaseLost."""
        return await self._store.record_attempts(self._lease, results, tell_dispatched=False)

    def is_of_one_result(self, refusal: Exception) -> bool:
        """Say so only of what names a result. Whoever may not write at all must not lead: it would
        make calls of which nothing is ever written down.
        """
        return isinstance(refusal, _OF_ONE_RESULT)

    async def give_back(self, batch: Sequence[Held], delay_seconds: float) -> int:
        """Nothing to release: it is done later, by us or by a successor. Waits for nothing, so that
        what is given back has a free slot before anybody looks.
        """
        for held in batch:
            self._put_off(held.claimed.intent_id, delay_seconds)
        return 0

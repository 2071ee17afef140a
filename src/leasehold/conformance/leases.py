"""Cases of leases and of the fences that they are: who is granted one, and who may still write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.conformance.scene import LEASE_SECONDS, Scene, require, require_lost
from leasehold.domain.errors import LeaseLost
from leasehold.domain.outcome import Accepted, Result
from leasehold.domain.verdict import RecordVerdict

if TYPE_CHECKING:
    from leasehold.conformance.scene import Case
    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import Lease

_APPLIED = RecordVerdict.APPLIED

_CANDIDATES = 8
_ROUNDS = 10


async def one_of_many_that_ask_at_once_gets_the_lease(scene: Scene) -> None:
    """Any number of processes ask for a free lease: one gets it, the others learn who."""
    stores = (scene.one, scene.other)
    answers = await asyncio.gather(
        *(
            stores[number % 2].acquire_lease(scene.lease_name, f"holder-{number}", LEASE_SECONDS)
            for number in range(_CANDIDATES)
        )
    )
    granted = [one.lease for one in answers if one.is_ours]
    require(len(granted) == 1, f"{len(granted)} of {_CANDIDATES} were granted the same lease")
    seen = await scene.other.acquire_lease(scene.lease_name, "late", LEASE_SECONDS)
    require(not seen.is_ours, "a lease was granted while another holder had it")
    require(
        (seen.lease.holder_id, seen.lease.epoch) == (granted[0].holder_id, granted[0].epoch),
        f"the holder is {granted[0]}, but {seen.lease} was reported",
    )
    require(0 < seen.seconds_left <= LEASE_SECONDS, f"it expires in {seen.seconds_left} seconds")


async def epoch_rises_with_every_grant_and_never_with_a_renewal(scene: Scene) -> None:
    """An epoch is a fencing token: it never comes back, and stays while the holder does."""
    epochs: list[int] = []
    for number in range(4):
        store = scene.one if number % 2 else scene.other
        lease = await scene.acquire(store, f"holder-{number}")
        await store.renew_lease(lease, LEASE_SECONDS)
        await store.renew_lease(lease, LEASE_SECONDS)
        require(await store.release_lease(lease), "renewals took the lease from its holder")
        epochs.append(lease.epoch)
    require(epochs == sorted(set(epochs)), f"epochs of successive grants: {epochs}")


async def former_holder_neither_renews_nor_releases(scene: Scene) -> None:
    """A process that was away wakes with its old lease. Its successor is not disturbed."""
    former, current = await scene.replaced()
    await require_lost("a renewal", scene.one.renew_lease(former, LEASE_SECONDS))
    require(not await scene.one.release_lease(former), "a former holder released the lease")
    await scene.other.renew_lease(current, LEASE_SECONDS)


async def former_holder_reads_marks_and_records_nothing(scene: Scene) -> None:
    """Every call under a lease is refused to a former holder, and nothing of it is written."""
    await scene.publish()
    [intent_id] = await scene.enqueue()
    former, current = await scene.replaced()
    due = await scene.other.refresh_due_rows("other", [current], [scene.target], 10)
    require([row.intent_id for row in due] == [intent_id], f"the holder reads {due}")
    one = scene.one
    await require_lost("a read", one.refresh_due_rows("one", [former], [scene.target], 10))
    await require_lost("a mark", one.mark_calls(former, due, 1))
    await require_lost("a begun attempt", one.begin_leased_attempts(former, [intent_id]))
    await require_lost("a result", one.record_attempts(former, [_accepted(intent_id)]))
    await require_lost("the removal of marks", one.unmark_calls(former, []))
    await require_lost("a report", one.record_leader_heartbeat(former, {}))
    ledger = await scene.one.read_ledger([intent_id])
    require(not ledger, f"a former holder wrote {ledger}")


async def result_and_takeover_at_once_leave_one_truth(scene: Scene) -> None:
    """A result is written before the takeover or not at all, and the successor sees which."""
    await scene.publish()
    for intent_id in await scene.enqueue(_ROUNDS):
        former = await scene.acquire(scene.one, "one")
        is_written, current = await asyncio.gather(
            _is_recorded(scene, former, intent_id), _taken_over(scene, former)
        )
        ledger = await scene.other.read_ledger([intent_id])
        require(
            [one.lease_epoch for one in ledger] == ([former.epoch] if is_written else []),
            f"the former holder was told {is_written}, but the ledger has {ledger}",
        )
        [again] = await scene.other.record_attempts(current, [_accepted(intent_id)])
        require(
            (again.verdict is _APPLIED) != is_written, f"the successor was told {again.verdict}"
        )
        ledger = await scene.other.read_ledger([intent_id])
        require(len(ledger) == 1, f"an intent has {len(ledger)} final rows")
        await scene.other.release_lease(current)


async def _is_recorded(scene: Scene, lease: Lease, intent_id: IntentId) -> bool:
    try:
        [told] = await scene.one.record_attempts(lease, [_accepted(intent_id)])
    except LeaseLost:
        return False
    return told.verdict is _APPLIED


async def _taken_over(scene: Scene, former: Lease) -> Lease:
    """Take the lease of the former holder over, in another process."""
    await scene.other.release_lease(former)
    return await scene.acquire(scene.other, "other")


def _accepted(intent_id: IntentId) -> Result:
    return Result(intent_id=intent_id, outcome=Accepted(), elapsed_seconds=0.0)


CASES: tuple[Case, ...] = (
    one_of_many_that_ask_at_once_gets_the_lease,
    epoch_rises_with_every_grant_and_never_with_a_renewal,
    former_holder_neither_renews_nor_releases,
    former_holder_reads_marks_and_records_nothing,
    result_and_takeover_at_once_leave_one_truth,
)

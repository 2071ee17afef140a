"""Cases of leases: who is granted one, for how long, and under which epoch."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from leasehold.conformance.scene import (
    LEASE_SECONDS,
    SHORT_SECONDS,
    Scene,
    cases,
    require,
    require_equal,
    require_lost,
    until,
)
from leasehold.domain.errors import LeaseLost
from leasehold.domain.outcome import Rejected, Result

if TYPE_CHECKING:
    from datetime import datetime

    from leasehold.domain.lease import Lease
    from leasehold.store.rows import Acquisition

_CANDIDATES = 8


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
        # Also for the same holder twice in a row: its old calls must not count as its new ones.
        lease = await scene.acquire(store, f"holder-{number // 2}")
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


async def held_lease_is_refused_to_its_own_holder_too(scene: Scene) -> None:
    """The old calls of a holder must not count as its new ones."""
    lease = await scene.acquire(scene.one, "one")
    before = await scene.other.read_leases(scene.lease_name, None, 1)
    for holder_id in ("one", "other"):
        again = await scene.one.acquire_lease(scene.lease_name, holder_id, LEASE_SECONDS)
        require(not again.is_ours, f"a held lease was granted again to {holder_id}")
        found = (again.lease.holder_id, again.lease.epoch)
        require_equal("the holder that it reports", found, ("one", lease.epoch))
    require_equal("the lease", await scene.other.read_leases(scene.lease_name, None, 1), before)


async def released_lease_is_free_at_once_and_lost_to_its_holder(scene: Scene) -> None:
    """Nobody waits for the expiry of a lease that was given back."""
    former, current = await scene.replaced()
    require(current.epoch > former.epoch, f"epoch {current.epoch} after {former.epoch}")
    require(not await scene.one.release_lease(former), "a lease was released twice")


async def lease_is_refused_until_it_expires_and_granted_after(scene: Scene) -> None:
    """The boundary is the expiry by the database's clock, and nothing else."""
    former = await scene.acquire(scene.one, "one", SHORT_SECONDS)
    current = await _taken_after_expiry(scene)
    require(current.epoch > former.epoch, f"epoch {current.epoch} after {former.epoch}")
    await require_lost("a renewal", scene.one.renew_lease(former, LEASE_SECONDS))


async def expired_lease_that_nobody_took_is_lost(scene: Scene) -> None:
    """A holder that woke too late does not go on, although it has no successor."""
    await scene.publish()
    lease = await scene.acquire(scene.one, "one", SHORT_SECONDS)
    await _first_expiry(scene)
    await require_lost("a renewal", scene.one.renew_lease(lease, LEASE_SECONDS))
    await require_lost("a report", scene.one.record_leader_heartbeat(lease, {}))
    require(await _is_untouched(scene, lease), "a lease that expired was written under")


async def renewal_moves_the_expiry_and_not_the_epoch(scene: Scene) -> None:
    """A renewed lease lasts as long as the renewal says."""
    lease = await scene.acquire(scene.one, "one", SHORT_SECONDS)
    [before] = await scene.other.read_leases(scene.lease_name, None, 1)
    expires_at = await scene.one.renew_lease(lease, LEASE_SECONDS)
    require(expires_at > lease.expires_at, f"renewed from {lease.expires_at} to {expires_at}")
    [after] = await scene.other.read_leases(scene.lease_name, None, 1)
    require_equal("since when it is held", after.acquired_at, before.acquired_at)
    require_equal("until when", after.expires_at, expires_at)
    seen = await scene.other.acquire_lease(scene.lease_name, "other", LEASE_SECONDS)
    require(not seen.is_ours, "a renewed lease was granted to another holder")
    require(seen.seconds_left > SHORT_SECONDS, f"{seen.seconds_left} seconds are left")
    require_equal("the epoch", seen.lease.epoch, lease.epoch)


async def renewal_and_acquisition_at_the_expiry_do_not_both_succeed(scene: Scene) -> None:
    """At its last moment a lease is kept or taken, never both."""
    lease = await scene.acquire(scene.one, "one", SHORT_SECONDS)

    async def nearly_over() -> Acquisition | None:
        seen = await scene.other.acquire_lease(scene.lease_name, "early", LEASE_SECONDS)
        return seen if seen.is_ours or seen.seconds_left < SHORT_SECONDS / 5 else None

    if (await until("a lease does not come to its end", nearly_over)).is_ours:
        await require_lost("a renewal", scene.one.renew_lease(lease, LEASE_SECONDS))
        return
    renewed_until, taken = await asyncio.gather(
        _renewed(scene, lease),
        scene.other.acquire_lease(scene.lease_name, "other", LEASE_SECONDS),
    )
    require(
        renewed_until is None or not taken.is_ours,
        f"a lease was renewed until {renewed_until} and granted as {taken.lease}",
    )


async def call_in_flight_keeps_the_lease_until_its_second_expiry(scene: Scene) -> None:
    """A slow holder is not robbed: it may still record, but begin nothing new."""
    await scene.publish(guarantee="lookup")
    in_flight, waiting = await scene.enqueue(2)
    found = await scene.one.acquire_lease(scene.lease_name, "one", SHORT_SECONDS, LEASE_SECONDS)
    lease = found.lease
    grace_seconds = (lease.grace_expires_at - lease.expires_at).total_seconds()
    require_equal("the grace", round(grace_seconds), LEASE_SECONDS)
    await scene.one.begin_leased_attempts(lease, [in_flight])
    await _first_expiry(scene)
    seen = await scene.other.acquire_lease(scene.lease_name, "other", LEASE_SECONDS)
    require(not seen.is_ours, "a lease with a call in flight was taken after its first expiry")
    await require_lost("a begun attempt", scene.one.begin_leased_attempts(lease, [waiting]))
    await scene.one.renew_lease(lease, LEASE_SECONDS, LEASE_SECONDS)
    [begun] = await scene.one.begin_leased_attempts(lease, [waiting])
    require_equal("after a renewal in its grace", begun.verdict, "begun")


async def lease_without_a_call_is_free_after_its_first_expiry(scene: Scene) -> None:
    """Nobody waits for a second expiry that protects nothing."""
    await scene.one.acquire_lease(scene.lease_name, "one", SHORT_SECONDS, LEASE_SECONDS)
    await _taken_after_expiry(scene)


async def wrong_holder_epoch_or_name_is_refused(scene: Scene) -> None:
    """All three are the fence."""
    await scene.publish()
    await scene.one.release_lease(await scene.acquire(scene.one, "one"))
    lease = await scene.acquire(scene.one, "one")
    for wrong in (
        replace(lease, holder_id="somebody"),
        replace(lease, epoch=lease.epoch + 1),
        replace(lease, epoch=lease.epoch - 1),
        replace(lease, name=f"{lease.name}-not"),
    ):
        await require_lost("a renewal", scene.one.renew_lease(wrong, LEASE_SECONDS))
        require(not await scene.one.release_lease(wrong), f"{wrong} released {lease}")
        require(await _is_untouched(scene, wrong), f"{wrong} wrote under {lease}")
    await scene.one.renew_lease(lease, LEASE_SECONDS)


async def lease_that_nobody_ever_held_is_lost(scene: Scene) -> None:
    """A holder cannot write a lease into being."""
    lease = replace(await scene.acquire(scene.one, "one"), name=f"{scene.lease_name}-never")
    await require_lost("a renewal", scene.one.renew_lease(lease, LEASE_SECONDS))
    require(not await scene.one.release_lease(lease), "a lease that never was has been released")


async def leases_of_two_names_are_independent(scene: Scene) -> None:
    """One process may hold both, and losing one says nothing about the other."""
    first = await scene.acquire(scene.one, "one")
    second = await scene.one.acquire_lease(f"{scene.lease_name}-b", "one", LEASE_SECONDS)
    require(second.is_ours, "the lease of another name was refused")
    await scene.one.release_lease(first)
    await scene.one.renew_lease(second.lease, LEASE_SECONDS)


async def _is_untouched(scene: Scene, lost: Lease) -> bool:
    """Say whether neither a begin nor a result under this lease is accepted, nor written."""
    [intent_id] = await scene.enqueue()
    result = Result(intent_id, Rejected(reason="late"))
    await require_lost("a begin", scene.one.begin_leased_attempts(lost, [intent_id]))
    await require_lost("a result", scene.one.record_attempts(lost, [result]))
    return not await scene.ledger(intent_id)


async def _renewed(scene: Scene, lease: Lease) -> datetime | None:
    try:
        return await scene.one.renew_lease(lease, LEASE_SECONDS)
    except LeaseLost:
        return None


async def _first_expiry(scene: Scene) -> None:
    async def expired() -> bool | None:
        [seen] = await scene.other.read_leases(scene.lease_name, None, 1)
        return None if seen.is_live else True

    await until("a lease of one second is still live", expired)


async def _taken_after_expiry(scene: Scene) -> Lease:
    """Take the lease in the other process as soon as it is granted."""

    async def taken() -> Lease | None:
        seen = await scene.other.acquire_lease(scene.lease_name, "other", LEASE_SECONDS)
        require(
            seen.is_ours or seen.seconds_left > 0,
            f"an expired lease was refused ({seen.seconds_left} seconds are left)",
        )
        return seen.lease if seen.is_ours else None

    return await until("a lease of one second was never free", taken)


CASES = cases(
    ("cluster",),
    one_of_many_that_ask_at_once_gets_the_lease,
    epoch_rises_with_every_grant_and_never_with_a_renewal,
    held_lease_is_refused_to_its_own_holder_too,
    released_lease_is_free_at_once_and_lost_to_its_holder,
    lease_is_refused_until_it_expires_and_granted_after,
    expired_lease_that_nobody_took_is_lost,
    renewal_moves_the_expiry_and_not_the_epoch,
    renewal_and_acquisition_at_the_expiry_do_not_both_succeed,
    call_in_flight_keeps_the_lease_until_its_second_expiry,
    lease_without_a_call_is_free_after_its_first_expiry,
    wrong_holder_epoch_or_name_is_refused,
    lease_that_nobody_ever_held_is_lost,
    leases_of_two_names_are_independent,
    former_holder_neither_renews_nor_releases,
)

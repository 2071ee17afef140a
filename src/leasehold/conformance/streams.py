"""Cases of scope stream: order, the two phases of expiry, and the hand-over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.conformance.scene import (
    LEASE_SECONDS,
    SHORT_SECONDS,
    NotConforming,
    Scene,
    cases,
    require,
    require_equal,
    until,
)
from leasehold.conformance.workers import StreamWorker
from leasehold.domain.lease import StreamState
from leasehold.domain.outcome import Accepted, Rejected, Result, Retryable

if TYPE_CHECKING:
    from leasehold.conformance.workers import Work
    from leasehold.domain.lease import Lease
    from leasehold.store.protocol import Store
    from leasehold.store.rows import StreamWork

_WORKERS = 6


async def stream_is_worked_off_in_order(scene: Scene) -> None:
    """The order is that of acceptance, and each result brings the next head."""
    await scene.publish()
    ids = await scene.enqueue(4, stream="s")
    [claimed] = await _claimed(scene, scene.one, "one")
    lease, done, seen = claimed.lease.lease, list[object](), claimed
    while seen.heads:
        [head] = seen.heads
        done.append(head.intent_id)
        [begun] = await scene.one.begin_stream_attempts("one", [lease], [head.intent_id])
        require_equal("a begin", begun.verdict, "begun")
        told = await scene.one.record_stream_attempts(
            "one", [lease], [Result(head.intent_id, Accepted())]
        )
        [seen] = told.streams
    require_equal("the order", done, ids)
    require_equal("in the end", (seen.state, seen.is_held), ("drained", False))


async def only_the_head_of_a_stream_can_begin(scene: Scene) -> None:
    """Whoever wants to begin another one is told so."""
    await scene.publish()
    head, following = await scene.enqueue(2, stream="s")
    [claimed] = await _claimed(scene, scene.one, "one")
    lease = claimed.lease.lease
    told = await scene.one.begin_stream_attempts("one", [lease], [following])
    require_equal("out of order", [one.verdict for one in told], ["out_of_order"])
    told = await scene.one.begin_stream_attempts("one", [lease], [head])
    require_equal("the head", [one.verdict for one in told], ["begun"])


async def retry_delay_stops_its_own_stream_only(scene: Scene) -> None:
    """The rows behind it wait, and other streams go on."""
    await scene.publish()
    worker = await scene.worker()
    await scene.enqueue(2, stream="slow")
    await scene.attempt(worker, Retryable(retry_after_seconds=3600.0))
    require_equal("what is due", await worker.take(), [])
    [other] = await scene.enqueue(1, stream="fast")
    require_equal("another stream", [one.intent_id for one in await worker.take()], [other])


async def stream_is_held_by_one_of_many(scene: Scene) -> None:
    """Any number of instances claim at once."""
    await scene.publish()
    await scene.one.enqueue_intents([scene.new(stream=f"s{number}") for number in range(20)])
    claimed = await asyncio.gather(
        *(
            _claimed(scene, scene.one if number % 2 else scene.other, f"holder-{number}", 8)
            for number in range(_WORKERS)
        )
    )
    claimed += [await _claimed(scene, scene.one, "late")]
    names = [one.lease.stream for group in claimed for one in group]
    require_equal("streams", len(set(names)), 20)
    require_equal("each once", len(names), 20)


async def claim_of_streams_keeps_to_its_number_and_limits(scene: Scene) -> None:
    """An instance gets no more streams than it has slots for."""
    await scene.publish()
    await scene.one.enqueue_intents([scene.new(stream=f"s{number}") for number in range(9)])
    numbers = [len(await _claimed(scene, scene.one, "one", 4)) for _ in range(4)]
    require_equal("streams per claim", numbers, [4, 4, 1, 0])


async def stream_without_a_call_is_free_after_its_first_expiry(scene: Scene) -> None:
    """Under the next epoch, and the former holder is told that it lost it."""
    await scene.publish()
    await scene.enqueue(1, stream="s")
    former = StreamWorker(scene.one, "one", scene.target, SHORT_SECONDS)
    work = await scene.taken(former)
    taken = await _taken_over(scene)
    lease = _lease_of(work)
    require(taken.lease.lease.epoch > lease.epoch, "a takeover kept the epoch")
    require(taken.is_taken_over, "a takeover does not say that it is one")
    told = await scene.one.renew_streams("one", [lease], 60, 60)
    require_equal("a renewal", [one.verdict for one in told], ["lease_lost"])
    begun = await former.begin(work)
    require_equal("a begin", begun, "lease_lost")
    result = await former.record(work, Rejected(reason="late"))
    require_equal("a result", result.verdict, "lease_lost")


async def call_in_flight_keeps_its_stream_until_the_second_expiry(scene: Scene) -> None:
    """A slow holder may record in its grace, but begin nothing new."""
    await scene.publish()
    head, following = await scene.enqueue(2, stream="s")
    worker = StreamWorker(scene.one, "one", scene.target, SHORT_SECONDS)
    work = await scene.taken(worker)
    await worker.begin(work)
    await _first_expiry(scene, work)
    rest = await _claimed(scene, scene.other, "other")
    require_equal("streams with a call in flight that were claimed", rest, [])
    lease = _lease_of(work)
    told = await scene.one.record_stream_attempts("one", [lease], [Result(head, Accepted())])
    require_equal("a result in the grace", [one.verdict for one in told.results], ["applied"])
    begun = await scene.one.begin_stream_attempts("one", [lease], [following])
    require_equal("a begin in the grace", [one.verdict for one in begun], ["lease_lost"])
    await scene.one.renew_streams("one", [lease], LEASE_SECONDS, LEASE_SECONDS)
    begun = await scene.one.begin_stream_attempts("one", [lease], [following])
    require_equal("a begin after a renewal", [one.verdict for one in begun], ["begun"])


async def call_in_flight_is_in_doubt_after_the_second_expiry(scene: Scene) -> None:
    """The successor asks or waits, as the contract says; it does not call blindly."""
    await scene.publish(guarantee="blind")
    head, _ = await scene.enqueue(2, stream="s")
    worker = StreamWorker(scene.one, "one", scene.target, SHORT_SECONDS, 0.0)
    work = await scene.taken(worker)
    await worker.begin(work)
    taken = await _taken_over(scene)
    require(taken.state is not StreamState.READY, f"the stream is {taken.state}")
    rows = [(row.state, row.holder) for row in await scene.ledger(head)]
    require_equal("the ledger", rows, [("IN_DOUBT", "one")])
    require_equal("the head", (await scene.status(head)).status, "held")


async def released_stream_is_free_at_once(scene: Scene) -> None:
    """And lost to its former holder; its call that was not sent is in no doubt."""
    await scene.publish(guarantee="blind")
    [head] = await scene.enqueue(1, stream="s")
    worker = await scene.worker()
    work = await scene.taken(worker)
    await worker.begin(work)
    await worker.give_back(work, is_begun=True)
    again = await scene.taken(await scene.worker("other"))
    require_equal("the head", (again.intent_id, again.last_state), (head, None))
    lease = _lease_of(work)
    told = await scene.one.release_streams("one", [lease])
    require_equal("a second release", [one.verdict for one in told], ["lease_lost"])
    seen = await scene.one.refresh_streams("one", [lease])
    require_equal("a look", [one.state for one in seen], [StreamState.LEASE_LOST])


async def enqueuer_of_a_held_stream_is_found_by_its_holder(scene: Scene) -> None:
    """A row that comes while the last one is worked off is not lost."""
    await scene.publish()
    expected = set[object]()
    seen = set[object]()
    worker = await scene.worker()

    async def enqueue() -> None:
        for _ in range(20):
            expected.update(await scene.enqueue(1, stream="s"))

    async def all_done() -> bool | None:
        for work in await worker.take():
            await worker.begin(work)
            await worker.record(work, Accepted())
            seen.add(work.intent_id)
        return True if enqueuing.done() and seen == expected else None

    enqueuing = asyncio.ensure_future(enqueue())
    await until("an intent of a busy stream was never handed out", all_done)
    await enqueuing


async def surplus_is_told_to_whoever_has_more_than_its_share(scene: Scene) -> None:
    """An instance that comes gets streams of those that have many."""
    await scene.publish()
    await scene.one.enqueue_intents([scene.new(stream=f"s{number}") for number in range(4)])
    require_equal("streams", len(await _claimed(scene, scene.one, "one")), 4)
    names = [f"{scene.target}-a", f"{scene.target}-b"]
    targets = [scene.target]
    await scene.one.renew_instance(names[0], "worker", targets, {}, LEASE_SECONDS, [4], [0])
    require_equal("alone", await scene.one.surplus_streams(names[0]), [])
    await scene.other.renew_instance(names[1], "worker", targets, {}, LEASE_SECONDS, [0], [4])
    told = await scene.one.surplus_streams(names[0])
    require_equal("two of them", [(one.target, one.kept) for one in told], [(scene.target, 2)])
    for name in names:
        await scene.one.release_instance(name)


async def waiting_streams_are_counted(scene: Scene) -> None:
    """A holder without room ends turns only if somebody waits for one."""
    await scene.publish()
    await scene.one.enqueue_intents([scene.new(stream=f"s{number}") for number in range(3)])
    told = await scene.other.waiting_streams([scene.target], 2)
    require_equal("up to two", [(one.target, one.waiting) for one in told], [(scene.target, 2)])


async def streams_with_odd_names_are_separate(scene: Scene) -> None:
    """A name is a text of the user's, not a part of ours."""
    await scene.publish()
    names = ["a/b", "a", f"{scene.target}/a", "%", "ä ö", "'", "x" * 255]
    await scene.one.enqueue_intents([scene.new(stream=name) for name in names])
    claimed = await _claimed(scene, scene.one, "one")
    require_equal("streams", {one.lease.stream for one in claimed}, set(names))
    require_equal("leases", len({one.lease.lease.name for one in claimed}), len(names))


async def _claimed(
    scene: Scene, store: Store, holder_id: str, streams_max: int = 100
) -> list[StreamWork]:
    return await store.claim_streams(
        streams_max, holder_id, LEASE_SECONDS, LEASE_SECONDS, [scene.target]
    )


async def _taken_over(scene: Scene) -> StreamWork:
    async def taken() -> StreamWork | None:
        found = await _claimed(scene, scene.other, "other")
        return found[0] if found else None

    return await until("a stream of a dead holder was never claimable", taken)


async def _first_expiry(scene: Scene, work: Work) -> None:
    async def expired() -> bool | None:
        [seen] = await scene.other.read_leases(_lease_of(work).name, None, 1)
        return None if seen.is_live else True

    await until("a lease of one second is still live", expired)


def _lease_of(work: Work) -> Lease:
    if work.lease is None:
        raise NotConforming("a head of a stream without a lease")
    return work.lease


CASES = cases(
    ("stream",),
    stream_is_worked_off_in_order,
    only_the_head_of_a_stream_can_begin,
    retry_delay_stops_its_own_stream_only,
    stream_is_held_by_one_of_many,
    claim_of_streams_keeps_to_its_number_and_limits,
    stream_without_a_call_is_free_after_its_first_expiry,
    call_in_flight_keeps_its_stream_until_the_second_expiry,
    call_in_flight_is_in_doubt_after_the_second_expiry,
    released_stream_is_free_at_once,
    enqueuer_of_a_held_stream_is_found_by_its_holder,
    surplus_is_told_to_whoever_has_more_than_its_share,
    waiting_streams_are_counted,
    streams_with_odd_names_are_separate,
)

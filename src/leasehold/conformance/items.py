"""Cases of scope item: claims under tokens, and the repair of what dead workers left."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from leasehold.conformance.scene import (
    LEASE_SECONDS,
    SHORT_SECONDS,
    Scene,
    cases,
    require,
    require_equal,
    require_refused,
    until,
)
from leasehold.conformance.workers import ItemWorker
from leasehold.domain.errors import LeaseLost
from leasehold.domain.intent import IntentId
from leasehold.domain.outcome import Accepted, Rejected, Result
from leasehold.domain.verdict import RecordVerdict

if TYPE_CHECKING:
    from leasehold.conformance.workers import Work
    from leasehold.store.executor_protocol import ItemStore

_WORKERS = 8


async def item_is_claimed_by_one_of_many(scene: Scene) -> None:
    """Any number of workers claim at once, and no item is handed out twice."""
    await scene.publish()
    told = await scene.one.enqueue_intents([scene.new() for _ in range(50)])
    claimed = await asyncio.gather(
        *(
            (scene.one if number % 2 else scene.other).claim_outbox_batch(
                20, f"worker-{number}", LEASE_SECONDS, [scene.target]
            )
            for number in range(_WORKERS)
        )
    )
    ids = [one.intent_id for batch in claimed for one in batch]
    require_equal("items that were handed out", len(set(ids)), len(ids))
    rest = await scene.one.claim_outbox_batch(100, "late", LEASE_SECONDS, [scene.target])
    ids += [one.intent_id for one in rest]
    require_equal("items in the end", set(ids), {one.intent_id for one in told})


async def claim_keeps_to_its_size_and_the_limits_of_targets(scene: Scene) -> None:
    """A worker gets no more than it has slots for."""
    second = scene.second()
    for one in (scene, second):
        await one.publish()
        await one.enqueue(3)
    targets = [scene.target, second.target]
    claimed = await scene.one.claim_outbox_batch(10, "one", LEASE_SECONDS, targets, [1, 2])
    found = sorted(one.target for one in claimed)
    require_equal("by target", found, sorted([scene.target, second.target, second.target]))
    rest = await scene.one.claim_outbox_batch(2, "one", LEASE_SECONDS, targets)
    require_equal("of the size", len(rest), 2)


async def urgent_items_come_first_and_future_ones_not_at_all(scene: Scene) -> None:
    """The order is that of priority, then of due times."""
    await scene.publish()
    await scene.enqueue(1, delay_seconds=3600.0, priority=0)
    later = await scene.enqueue(1, priority=2)
    urgent = await scene.enqueue(1, priority=0)
    claimed = [
        (await scene.one.claim_outbox_batch(1, "one", LEASE_SECONDS, [scene.target]))
        for _ in range(3)
    ]
    found = [one.intent_id for batch in claimed for one in batch]
    require_equal("the order", found, [*urgent, *later])


async def claim_has_everything_that_a_call_needs(scene: Scene) -> None:
    """No second query is needed to make it."""
    await scene.publish()
    intent_id = await scene.one.enqueue_intent(
        scene.new(
            body=b"\x00signed",
            content_type="application/octet-stream",
            metadata={"source": "suite"},
            trace_context="00-trace",
            deadline_seconds=3600.0,
        )
    )
    [one] = await scene.one.claim_outbox_batch(1, "one", LEASE_SECONDS, [scene.target])
    require_equal("its ids", (one.intent_id, one.submission_key), (intent_id, intent_id))
    require_equal("its content", (one.body, one.payload), (b"\x00signed", None))
    require_equal("its type", one.content_type, "application/octet-stream")
    metadata = one.metadata.value() if one.metadata else None
    require_equal("its metadata", metadata, {"source": "suite"})
    require_equal("its trace", one.trace_context, "00-trace")
    require(one.deadline_at is not None and one.deadline_at > one.created_at, "its deadline")
    require_equal("its attempt", (one.attempt_no, one.last_state), (1, None))


async def claim_is_renewed_or_said_to_be_lost(scene: Scene) -> None:
    """A heartbeat is for many claims, and tells of each."""
    await scene.publish()
    await scene.enqueue(2)
    kept, given_back = await scene.one.claim_outbox_batch(2, "one", LEASE_SECONDS, [scene.target])
    [released] = await scene.one.release_outbox_claims("one", [given_back.claim], 0)
    require_equal("a release", released.verdict, "released")
    told = await scene.one.renew_outbox_leases("one", [kept.claim, given_back.claim], 900)
    found = {one.intent_id: one.verdict for one in told}
    require_equal(
        "renewals", found, {kept.intent_id: "renewed", given_back.intent_id: "lease_lost"}
    )
    until_when = {one.intent_id: one.lease_expires_at for one in told}
    ends_at = until_when[kept.intent_id]
    is_longer = ends_at is not None and ends_at > kept.claimed_at + timedelta(seconds=899)
    require(is_longer, f"a renewal of 900 seconds lasts until {ends_at}")
    require_equal("of a lost one", until_when[given_back.intent_id], None)
    stolen = await scene.other.renew_outbox_leases("thief", [kept.claim], 900)
    require_equal("a thief's renewal", [one.verdict for one in stolen], ["lease_lost"])


async def released_item_is_due_after_its_delay_without_an_attempt(scene: Scene) -> None:
    """A worker that gives back has tried nothing."""
    await scene.publish()
    [intent_id] = await scene.enqueue()
    for delay_seconds in (0.0, 3600.0):
        [one] = await scene.one.claim_outbox_batch(1, "one", LEASE_SECONDS, [scene.target])
        await scene.one.release_outbox_claims("one", [one.claim], delay_seconds)
    rest = await scene.one.claim_outbox_batch(1, "one", LEASE_SECONDS, [scene.target])
    require_equal("what is due before its delay", rest, [])
    require_equal("the ledger", await scene.ledger(intent_id), [])


async def released_claim_that_was_begun_waits_for_its_result(scene: Scene) -> None:
    """Only a result, or the word that nothing was sent, ends a begun call."""
    await scene.publish()
    await scene.enqueue()
    worker, work = await _begun(scene)
    claim = work.claim
    require(claim is not None, "an item without a claim")
    if claim is not None:
        [told] = await scene.one.release_outbox_claims(worker.name, [claim], 0)
        require_equal("a release", told.verdict, "begun")
    await worker.give_back(work, is_begun=True)
    require_equal("due again", len(await worker.take()), 1)


async def stale_finished_and_unknown_results_are_told_apart(scene: Scene) -> None:
    """Only what was applied wrote something, and each verdict has another cause."""
    await scene.publish()
    await scene.enqueue(3)
    stale, finished, ours = await scene.one.claim_outbox_batch(
        3, "one", LEASE_SECONDS, [scene.target]
    )
    await scene.one.complete_outbox_attempt("one", finished.claim, Accepted())
    await scene.one.release_outbox_claims("one", [stale.claim], 3600.0)
    unknown = IntentId(uuid4())
    told = await scene.one.complete_outbox_attempts(
        "one",
        [
            *(
                Result(one.intent_id, Accepted(), one.lease_token)
                for one in (stale, finished, ours)
            ),
            Result(unknown, Accepted(), stale.lease_token),
        ],
    )
    found = {one.intent_id: one.verdict for one in told}
    wanted = {
        stale.intent_id: "lease_lost",
        finished.intent_id: "already_terminal",
        ours.intent_id: "applied",
        unknown: "not_found",
    }
    require_equal("verdicts", found, wanted)
    for one, verdict in ((stale, "lease_lost"), (finished, "already_terminal")):
        error = await require_refused(
            "a single late result",
            LeaseLost,
            scene.one.complete_outbox_attempt("one", one.claim, Accepted()),
        )
        require_equal("its verdict", getattr(error, "verdict", None), verdict)
    require_equal("the ledger of the stale one", await scene.ledger(stale.intent_id), [])


async def one_of_many_results_of_a_claim_is_applied(scene: Scene) -> None:
    """However often a result is reported at once, there is one row."""
    await scene.publish()
    [intent_id] = await scene.enqueue()
    [one] = await scene.one.claim_outbox_batch(1, "one", LEASE_SECONDS, [scene.target])
    result = Result(one.intent_id, Accepted(), one.lease_token)

    async def report(store: ItemStore) -> RecordVerdict:
        while True:
            [answer] = await store.complete_outbox_attempts("one", [result])
            if answer.verdict is not RecordVerdict.LOCKED:
                return answer.verdict
            await asyncio.sleep(0.01)

    verdicts = sorted(
        await asyncio.gather(
            *(report(scene.one if number % 2 else scene.other) for number in range(_WORKERS))
        )
    )
    wanted = sorted(["applied", *["already_terminal"] * (_WORKERS - 1)])
    require_equal("verdicts", [str(one) for one in verdicts], wanted)
    require_equal("rows", len(await scene.ledger(intent_id)), 1)


async def expired_claim_is_taken_over_and_its_worker_writes_nothing(scene: Scene) -> None:
    """The dead worker's attempt is on the ledger, in its name; the late one is told."""
    await scene.publish()
    [intent_id] = await scene.enqueue()
    former = ItemWorker(scene.one, "one", scene.target, SHORT_SECONDS)
    work = await scene.taken(former)
    fresh = await _taken_over(scene)
    require_equal("the attempt", (fresh.attempt_no, fresh.last_state), (2, "ZOMBIE_REQUEUE"))
    late = await former.record(work, Rejected(reason="late"))
    require_equal("a late result", late.verdict, "lease_lost")
    rows = [(row.state, row.holder) for row in await scene.ledger(intent_id)]
    require_equal("the ledger", rows, [("ZOMBIE_REQUEUE", "one")])


async def begun_call_of_a_dead_worker_is_put_in_doubt(scene: Scene) -> None:
    """Nobody knows whether it was made."""
    await scene.publish(guarantee="blind")
    [intent_id] = await scene.enqueue()
    await _begun(scene, SHORT_SECONDS)

    async def repaired() -> bool | None:
        await scene.other.repair_expired_leases(1000, "repair")
        return True if (await scene.status(intent_id)).status == "held" else None

    await until("the call of a dead worker was not repaired", repaired)
    rows = [(row.state, row.holder) for row in await scene.ledger(intent_id)]
    require_equal("the ledger", rows, [("IN_DOUBT", "one")])


async def live_claim_is_not_repaired(scene: Scene) -> None:
    """A slow worker is not robbed."""
    await scene.publish()
    await scene.enqueue()
    worker = ItemWorker(scene.one, "one", scene.target)
    work = await scene.taken(worker)
    repaired = await scene.other.repair_expired_leases(1000, "repair", is_full=True)
    require(work.intent_id not in {one.intent_id for one in repaired}, "a live claim was ended")
    require_equal("its result", (await worker.record(work, Accepted())).verdict, "applied")


async def empty_batch_is_no_error(scene: Scene) -> None:
    """A worker that has nothing to say may say so."""
    require_equal("a renewal", await scene.one.renew_outbox_leases("one", [], 60), [])
    require_equal("a begin", await scene.one.begin_outbox_attempts("one", []), [])
    require_equal("results", await scene.one.complete_outbox_attempts("one", []), [])
    require_equal("a release", await scene.one.release_outbox_claims("one", [], 0), [])


async def _begun(scene: Scene, seconds: float = LEASE_SECONDS) -> tuple[ItemWorker, Work]:
    worker = ItemWorker(scene.one, "one", scene.target, seconds)
    work = await scene.taken(worker)
    require_equal("a begin", await worker.begin(work), "begun")
    return worker, work


async def _taken_over(scene: Scene) -> Work:
    successor = ItemWorker(scene.other, "other", scene.target)

    async def taken() -> Work | None:
        await scene.other.repair_expired_leases(1000, "repair")
        found = await successor.take()
        return found[0] if found else None

    return await until("the item of a dead worker was never due again", taken)


CASES = cases(
    ("item",),
    item_is_claimed_by_one_of_many,
    claim_keeps_to_its_size_and_the_limits_of_targets,
    urgent_items_come_first_and_future_ones_not_at_all,
    claim_has_everything_that_a_call_needs,
    claim_is_renewed_or_said_to_be_lost,
    released_item_is_due_after_its_delay_without_an_attempt,
    released_claim_that_was_begun_waits_for_its_result,
    stale_finished_and_unknown_results_are_told_apart,
    one_of_many_results_of_a_claim_is_applied,
    expired_claim_is_taken_over_and_its_worker_writes_nothing,
    begun_call_of_a_dead_worker_is_put_in_doubt,
    live_claim_is_not_repaired,
    empty_batch_is_no_error,
)

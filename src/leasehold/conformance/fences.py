"""Cases of the fence of a lease: what a former holder writes, and what its successor finds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.conformance.scene import (
    NOTE,
    OPERATOR,
    SHORT_SECONDS,
    Scene,
    cases,
    require,
    require_equal,
    require_lost,
    until,
)
from leasehold.domain.errors import LeaseLost
from leasehold.domain.outcome import Accepted, Result, Retryable
from leasehold.domain.verdict import RecordVerdict

if TYPE_CHECKING:
    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import Lease
    from leasehold.store.rows import DueRow

_APPLIED = RecordVerdict.APPLIED
_ROUNDS = 10


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
    await require_lost("an empty result", one.record_attempts(former, []))
    await require_lost("an empty mark", one.mark_calls(former, [], 1))
    changes = one.changes(former)
    await changes.look()
    await require_lost("a look at changes", changes.read(lambda _: None))
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


async def holder_that_was_replaced_by_itself_is_fenced_too(scene: Scene) -> None:
    """The epoch counts, not the name of the holder."""
    await scene.publish()
    [intent_id] = await scene.enqueue()
    former = await scene.acquire(scene.one, "one")
    await scene.one.release_lease(former)
    current = await scene.acquire(scene.one, "one")
    await require_lost("a result", scene.one.record_attempts(former, [_accepted(intent_id)]))
    [told] = await scene.one.record_attempts(current, [_accepted(intent_id)])
    require_equal("under the new epoch", told.verdict, _APPLIED)


async def expired_holder_that_nobody_replaced_writes_nothing(scene: Scene) -> None:
    """The expiry ends its rights, not its successor."""
    await scene.publish()
    [intent_id] = await scene.enqueue()
    lease = await scene.acquire(scene.one, "one", SHORT_SECONDS)

    async def lost() -> bool | None:
        try:
            await scene.one.record_leader_heartbeat(lease, {})
        except LeaseLost:
            return True
        return None

    await until("a lease of one second still counts", lost)
    await require_lost("a result", scene.one.record_attempts(lease, [_accepted(intent_id)]))
    require_equal("the ledger", await scene.ledger(intent_id), [])


async def result_for_an_intent_outside_of_the_lease_is_not_found(scene: Scene) -> None:
    """A lease covers its targets and nothing else."""
    await scene.publish()
    [intent_id] = await scene.enqueue()
    foreign = await scene.one.acquire_lease(f"{scene.lease_name}-b", "one", 600)
    [told] = await scene.one.record_attempts(foreign.lease, [_accepted(intent_id)])
    require_equal("a result under another lease", told.verdict, "not_found")
    require_equal("the ledger", await scene.ledger(intent_id), [])


async def takeover_puts_begun_calls_in_doubt(scene: Scene) -> None:
    """The successor cannot know what a call of its predecessor led to."""
    await scene.publish(guarantee="lookup")
    [intent_id] = await scene.enqueue()
    former = await scene.acquire(scene.one, "one")
    await scene.one.begin_leased_attempts(former, [intent_id])
    await _taken_over(scene, former)
    await _require_doubt(scene, intent_id, former)


async def takeover_puts_marked_calls_in_doubt(scene: Scene) -> None:
    """A mark of a batch is as good as a mark of one call."""
    await scene.publish()
    [intent_id] = await scene.enqueue()
    former = await scene.acquire(scene.one, "one")
    marked = await scene.one.mark_calls(former, await _due(scene, former), 1)
    require_equal("the calls", [one.intent_id for one in marked.calls], [intent_id])
    await _taken_over(scene, former)
    await _require_doubt(scene, intent_id, former)


async def takeover_leaves_calls_alone_that_were_given_back(scene: Scene) -> None:
    """What was certainly not sent is in no doubt, however it was marked."""
    await scene.publish(guarantee="lookup")
    await scene.enqueue(2)
    former = await scene.acquire(scene.one, "one")
    begun, marked = await _due(scene, former)
    await scene.one.begin_leased_attempts(former, [begun.intent_id])
    given_back = await scene.one.release_leased_attempts(former, [begun.intent_id])
    require_equal("calls given back", given_back, 1)
    await scene.one.mark_calls(former, [marked], 1)
    await scene.one.unmark_calls(former, [])
    current = await _taken_over(scene, former)
    due = await scene.other.refresh_due_rows("other", [current], [scene.target], 10)
    require_equal("due intents", {row.last_state for row in due}, {None})
    require_equal("how many", len(due), 2)


async def row_that_changed_since_it_was_read_is_not_marked(scene: Scene) -> None:
    """A leader acts on what it read, so the database checks it again."""
    await scene.publish()
    changed, same = await scene.enqueue(2)
    lease = await scene.acquire(scene.one, "one")
    due = await _due(scene, lease)
    verdict = await scene.other.cancel_intent(changed, OPERATOR, NOTE)
    require_equal("a call that is not marked", verdict, "cancelled")
    marked = await scene.one.mark_calls(lease, due, 1)
    require_equal("left out", marked.left_out, [changed])
    require_equal("marked", [one.intent_id for one in marked.calls], [same])


async def mark_and_cancellation_at_once_leave_one_truth(scene: Scene) -> None:
    """A call is made or cancelled, never both."""
    await scene.publish()
    lease = await scene.acquire(scene.one, "one")
    for _ in range(_ROUNDS):
        [intent_id] = await scene.enqueue()
        due = await _due(scene, lease)
        marked, verdict = await asyncio.gather(
            scene.one.mark_calls(lease, due, 1),
            scene.other.cancel_intent(intent_id, OPERATOR, NOTE),
        )
        require(
            bool(marked.calls) == (verdict == "in_flight"),
            f"{len(marked.calls)} calls were marked, and the operator was told {verdict}",
        )
        for call in marked.calls:
            await scene.one.record_attempts(lease, [_accepted(call.intent_id)])


async def result_of_a_former_attempt_is_superseded(scene: Scene) -> None:
    """An answer counts for the attempt that it is about, and for no later one."""
    await scene.publish()
    [intent_id] = await scene.enqueue()
    lease = await scene.acquire(scene.one, "one")
    again = Result(intent_id, Retryable(retry_after_seconds=0), None, 0.0, 1)
    [first] = await scene.one.record_attempts(lease, [again])
    [second] = await scene.one.record_attempts(lease, [again])
    require_equal("verdicts", (first.verdict, second.verdict), ("applied", "superseded"))
    require_equal("rows on the ledger", len(await scene.ledger(intent_id)), 1)


async def _due(scene: Scene, lease: Lease) -> list[DueRow]:
    return await scene.one.refresh_due_rows("one", [lease], [scene.target], 100, 1000)


async def _require_doubt(scene: Scene, intent_id: IntentId, former: Lease) -> None:
    ledger = [(one.state, one.holder, one.lease_epoch) for one in await scene.ledger(intent_id)]
    require_equal("the ledger", ledger, [("IN_DOUBT", former.holder_id, former.epoch)])


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


CASES = cases(
    ("cluster",),
    former_holder_reads_marks_and_records_nothing,
    result_and_takeover_at_once_leave_one_truth,
    holder_that_was_replaced_by_itself_is_fenced_too,
    expired_holder_that_nobody_replaced_writes_nothing,
    result_for_an_intent_outside_of_the_lease_is_not_found,
    takeover_puts_begun_calls_in_doubt,
    takeover_puts_marked_calls_in_doubt,
    takeover_leaves_calls_alone_that_were_given_back,
    row_that_changed_since_it_was_read_is_not_marked,
    mark_and_cancellation_at_once_leave_one_truth,
    result_of_a_former_attempt_is_superseded,
)

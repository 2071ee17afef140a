"""Cases of streams that stand still: after a failure, in doubt, or because a person says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.conformance.scene import NOTE, OPERATOR, Scene, cases, require_equal
from leasehold.domain.intent import AttemptState
from leasehold.domain.outcome import Rejected, Unknown

if TYPE_CHECKING:
    from leasehold.domain.intent import IntentId


async def failed_head_stops_its_stream_until_a_person_resumes_it(scene: Scene) -> None:
    """A later intent must not run after an earlier one failed, unless the contract says so."""
    await scene.publish()
    worker = await scene.worker()
    failed, following = await scene.enqueue(2, stream="s")
    await scene.attempt(worker, Rejected(reason="no"))
    require_equal("what is due", await worker.take(), [])
    seen = await scene.other.read_stream(scene.target, "s")
    found = None if seen is None else (seen.state, seen.head, seen.paused_for)
    require_equal("the stream", found, ("paused", following, failed))
    told = await scene.other.resume_stream(scene.target, "s", OPERATOR, NOTE, paused_for=failed)
    require_equal("the verdict", told, "resumed")
    require_equal("what is due", [one.intent_id for one in await worker.take()], [following])


async def stream_goes_on_after_a_failure_if_its_contract_says_so(scene: Scene) -> None:
    """Then the order is all that matters."""
    await scene.publish(on_failure="continue")
    worker = await scene.worker()
    _, following = await scene.enqueue(2, stream="s")
    await scene.attempt(worker, Rejected(reason="no"))
    require_equal("what is due", [one.intent_id for one in await worker.take()], [following])


async def paused_stream_stands_still_and_others_go_on(scene: Scene) -> None:
    """Each person has a pause of their own, and ends it by themselves."""
    await scene.publish()
    worker = await scene.worker()
    await scene.enqueue(1, stream="s")
    for operator in ("ann", "ben"):
        told = await scene.other.pause_stream(scene.target, "s", operator, NOTE)
        require_equal("a pause", told, "paused")
    require_equal("what is due", await worker.take(), [])
    [other] = await scene.enqueue(1, stream="t")
    require_equal("another one", [one.intent_id for one in await worker.take()], [other])
    told = [
        str(await scene.other.resume_stream(scene.target, "s", operator, NOTE))
        for operator in ("ann", "ann", "ben")
    ]
    require_equal("verdicts", (told[0], told[2]), ("still_paused", "resumed"))
    require_equal("resumed", len(await worker.take()), 1)
    unknown = await scene.other.pause_stream(scene.target, "nobody", OPERATOR, NOTE)
    require_equal("an unknown stream", unknown, "not_found")


async def head_is_skipped_only_if_it_is_the_one_that_was_seen(scene: Scene) -> None:
    """The next one becomes the head."""
    await scene.publish()
    head, following = await scene.enqueue(2, stream="s")
    require_equal("behind it", await _skip(scene, following), "not_head")
    require_equal("the head", await _skip(scene, head), "skipped")
    require_equal("again", await _skip(scene, head), "already_terminal")
    require_equal("the status", (await scene.status(head)).status, "cancelled")
    worker = await scene.worker()
    work = await scene.taken(worker)
    require_equal("what is due", work.intent_id, following)
    await worker.begin(work)
    require_equal("in flight", await _skip(scene, following), "in_flight")


async def cancelled_head_gives_way_to_the_next(scene: Scene) -> None:
    """What a person ends continues the stream as what an executor ends."""
    await scene.publish()
    head, following = await scene.enqueue(2, stream="s")
    told = await scene.other.cancel_intent(head, OPERATOR, NOTE)
    require_equal("the verdict", told, "cancelled")
    work = await scene.taken(await scene.worker())
    require_equal("what is due", work.intent_id, following)


async def doubtful_head_holds_its_stream_until_it_is_resolved(scene: Scene) -> None:
    """Order says that nothing may pass it."""
    await scene.publish(guarantee="blind")
    worker = await scene.worker()
    head, following = await scene.enqueue(2, stream="s")
    await scene.attempt(worker, Unknown(retry_after_seconds=0))
    require_equal("what is due", await worker.take(), [])
    blocked = await scene.other.read_blocked_streams([scene.target], None, 10)
    require_equal("blocked", [(one.head, one.state) for one in blocked], [(head, "held")])
    await scene.other.resolve_intent(head, AttemptState.DISPATCHED, OPERATOR, NOTE)
    require_equal("what is due", [one.intent_id for one in await worker.take()], [following])


async def _skip(scene: Scene, intent_id: IntentId) -> str:
    told = await scene.other.skip_stream_head(scene.target, "s", intent_id, OPERATOR, NOTE)
    return str(told)


CASES = cases(
    ("stream",),
    failed_head_stops_its_stream_until_a_person_resumes_it,
    stream_goes_on_after_a_failure_if_its_contract_says_so,
    paused_stream_stands_still_and_others_go_on,
    head_is_skipped_only_if_it_is_the_one_that_was_seen,
    cancelled_head_gives_way_to_the_next,
    doubtful_head_holds_its_stream_until_it_is_resolved,
)

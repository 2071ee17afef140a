"""Cases of interventions, in every scope: what an operator may do, and what is refused."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import TYPE_CHECKING
from uuid import uuid4

from leasehold.conformance.scene import (
    NOTE,
    OPERATOR,
    Scene,
    cases,
    require,
    require_equal,
    require_refused,
)
from leasehold.domain.errors import InvalidArgument, RetryCeilingReached
from leasehold.domain.intent import AttemptState, IntentId
from leasehold.domain.outcome import Accepted, Rejected, Retryable, Submitted, Unknown

if TYPE_CHECKING:
    from leasehold.domain.outcome import Outcome

_DOUBT = Unknown(retry_after_seconds=3600.0)
_LATER = Retryable(retry_after_seconds=3600.0)


async def waiting_intent_is_cancelled_in_the_operators_name(scene: Scene) -> None:
    """The ledger says who, and why."""
    await scene.publish()
    [intent_id] = await scene.enqueue()
    require_equal("the verdict", await _cancel(scene, intent_id), "cancelled")
    [row] = await scene.ledger(intent_id)
    found = (row.state, row.reason, row.holder, row.detail)
    require_equal("the row", found, ("CANCELLED", "cancelled_by_operator", OPERATOR, NOTE))
    require_equal("the status", (await scene.status(intent_id)).status, "cancelled")
    worker = await scene.worker()
    require_equal("what is due", await worker.take(), [])
    require_equal("a second one", await _cancel(scene, intent_id), "already_terminal")
    require_equal("an unknown one", await _cancel(scene, IntentId(uuid4())), "not_found")


async def call_in_flight_is_not_cancelled(scene: Scene) -> None:
    """It may have its effect at this moment."""
    await scene.publish()
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    work = await scene.taken(worker)
    await worker.begin(work)
    require_equal("the verdict", await _cancel(scene, intent_id), "in_flight")
    require_equal("its result", (await worker.record(work, _LATER)).verdict, "applied")
    require_equal("after it", await _cancel(scene, intent_id), "cancelled")


async def intent_that_may_have_had_its_effect_is_not_cancelled(scene: Scene) -> None:
    """That would say that it had none."""
    await scene.publish()
    worker = await scene.worker()
    outcomes: tuple[tuple[Outcome, str], ...] = (
        (_DOUBT, "in_doubt"),
        (Submitted(reference="r", ask_after_seconds=3600.0), "confirming"),
        (Accepted(), "already_terminal"),
    )
    for outcome, verdict in outcomes:
        [intent_id] = await scene.enqueue()
        await scene.attempt(worker, outcome)
        require_equal(f"after {outcome}", await _cancel(scene, intent_id), verdict)


async def doubt_is_resolved_each_way(scene: Scene) -> None:
    """A person knows what the gateway did."""
    await scene.publish()
    worker = await scene.worker()
    ends = {"DISPATCHED": "accepted", "FAILED": "rejected", "RETRYABLE": "pending"}
    doubts = _DOUBT, Submitted(reference="r", ask_after_seconds=3600.0)
    for (state, status), doubt in product(ends.items(), doubts):
        [intent_id] = await scene.enqueue()
        await scene.attempt(worker, doubt)
        told = await _resolve(scene, intent_id, AttemptState(state))
        require_equal("the verdict", told, "resolved")
        row = (await scene.ledger(intent_id))[-1]
        found = (row.attempt_no, row.state, row.reason, row.holder, row.reference)
        wanted = (2, state, "resolved_by_operator", OPERATOR, "theirs")
        require_equal("the row", found, wanted)
        require_equal("the status", (await scene.status(intent_id)).status, status)
        if status == "pending":
            work = await scene.taken(worker)
            require_equal("due again", (work.intent_id, work.attempt_no), (intent_id, 3))
            await worker.begin(work)
            await worker.record(work, Accepted())
        told = await _resolve(scene, intent_id, AttemptState.FAILED)
        require_equal("a second verdict", told, "already_terminal")


async def intent_without_doubt_is_not_resolved(scene: Scene) -> None:
    """There is nothing to decide."""
    await scene.publish()
    worker = await scene.worker()
    [finished] = await scene.enqueue()
    await scene.attempt(worker, Accepted())
    [in_flight] = await scene.enqueue()
    await worker.begin(await scene.taken(worker))
    [waiting] = await scene.enqueue(delay_seconds=3600.0)
    for intent_id, verdict in (
        (waiting, "not_in_doubt"),
        (in_flight, "in_flight"),
        (finished, "already_terminal"),
        (IntentId(uuid4()), "not_found"),
    ):
        told = await _resolve(scene, intent_id, AttemptState.DISPATCHED)
        require_equal("the verdict", told, verdict)


async def retry_without_an_attempt_left_is_refused(scene: Scene) -> None:
    """And nothing is written: it can still be resolved as failed, and redriven."""
    await scene.publish(guarantee="blind", retry_policy="one_shot")
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    await scene.attempt(worker, _DOUBT)
    await require_refused(
        "a retry without an attempt left",
        RetryCeilingReached,
        _resolve(scene, intent_id, AttemptState.RETRYABLE),
    )
    require_equal("the status", (await scene.status(intent_id)).status, "held")
    told = await _resolve(scene, intent_id, AttemptState.FAILED)
    require_equal("as failed", told, "resolved")


async def rejected_intent_is_redriven_with_a_new_key(scene: Scene) -> None:
    """It certainly had no effect, so the gateway must not take it for the old one."""
    new_id, old_id = await _redriven(scene, Rejected(reason="bad_number"))
    found = await _key_of(scene, new_id)
    require(found not in {None, old_id}, f"a rejected intent was redriven with the key {found}")


async def exhausted_intent_is_redriven_with_its_old_key(scene: Scene) -> None:
    """The gateway may have seen it."""
    new_id, old_id = await _redriven(scene, _LATER, retry_policy="one_shot")
    require_equal("the key", await _key_of(scene, new_id), old_id)


async def intent_is_redriven_once(scene: Scene) -> None:
    """However many operators do so at once."""
    await scene.publish()
    [old_id] = await scene.enqueue()
    await _cancel(scene, old_id)
    told = await asyncio.gather(
        *(
            (scene.one if number % 2 else scene.other).redrive_intents([old_id], OPERATOR, NOTE)
            for number in range(6)
        )
    )
    verdicts = sorted(str(one.verdict) for [one] in told)
    require_equal("verdicts", verdicts, ["already_redriven"] * 5 + ["redriven"])
    require_equal("new intents", len({one.new_intent_id for [one] in told}), 1)


async def only_what_ended_without_success_is_redriven(scene: Scene) -> None:
    """Everything else would be done twice."""
    await scene.publish()
    worker = await scene.worker()
    [accepted] = await scene.enqueue()
    await scene.attempt(worker, Accepted())
    [waiting] = await scene.enqueue()
    unknown = IntentId(uuid4())
    told = await scene.other.redrive_intents([accepted, waiting, unknown], OPERATOR, NOTE)
    found = {one.intent_id: str(one.verdict) for one in told}
    wanted = {accepted: "already_accepted", waiting: "not_terminal", unknown: "not_found"}
    require_equal("verdicts", found, wanted)


async def waiting_retry_is_made_due_now(scene: Scene) -> None:
    """Without an attempt, and only where a backoff is what it waits for."""
    await scene.publish()
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    await scene.attempt(worker, _LATER)
    require_equal("the verdict", await _retry_now(scene, intent_id), "due_now")
    require_equal("again", await _retry_now(scene, intent_id), "already_due")
    require_equal("rows", len(await scene.ledger(intent_id)), 1)
    await scene.attempt(worker, _DOUBT)
    require_equal("in doubt", await _retry_now(scene, intent_id), "in_doubt")
    [scheduled] = await scene.enqueue(delay_seconds=3600.0)
    require_equal("not tried yet", await _retry_now(scene, scheduled), "scheduled")
    unknown = await _retry_now(scene, IntentId(uuid4()))
    require_equal("an unknown one", unknown, "not_found")


async def intervention_without_a_name_or_a_note_is_refused(scene: Scene) -> None:
    """Somebody will ask who did it, and why."""
    await scene.publish()
    [intent_id] = await scene.enqueue()
    for operator, note in (("", NOTE), ("x" * 129, NOTE), (OPERATOR, ""), (OPERATOR, "x" * 2001)):
        await require_refused(
            "a cancellation", InvalidArgument, scene.one.cancel_intent(intent_id, operator, note)
        )
        await require_refused(
            "a redrive", InvalidArgument, scene.one.redrive_intents([intent_id], operator, note)
        )
    require_equal("the ledger", await scene.ledger(intent_id), [])


async def terms_get_a_version_and_keep_it_while_unchanged(scene: Scene) -> None:
    """Publishing again what is published changes nothing."""
    versions = [await scene.publish(), await scene.publish(), await scene.publish(attempts_max=3)]
    require_equal("versions", versions, [1, 1, 2])
    found = await scene.other.read_published_contract(scene.target)
    require_equal("the current one", found.version if found else None, 2)
    old = await scene.other.read_published_contract(scene.target, 1)
    require("attempts_max" in (old.terms.value() if old else {}), "an old version has no terms")


async def terms_that_cannot_work_are_refused(scene: Scene) -> None:
    """When they are published, not when the first intent fails."""
    await require_refused("21 attempts", RetryCeilingReached, scene.publish(attempts_max=21))
    for terms in ({"guarantee": "maybe"}, {"priority": 9}, {"retry_policy": "deadline"}):
        await require_refused(f"{terms}", InvalidArgument, scene.publish(**terms))
    found = await scene.other.read_published_contract(scene.target)
    require_equal("what was published", found, None)


async def _cancel(scene: Scene, intent_id: IntentId) -> str:
    return str(await scene.other.cancel_intent(intent_id, OPERATOR, NOTE))


async def _resolve(scene: Scene, intent_id: IntentId, state: AttemptState) -> str:
    return str(await scene.other.resolve_intent(intent_id, state, OPERATOR, NOTE, "theirs"))


async def _retry_now(scene: Scene, intent_id: IntentId) -> str:
    return str(await scene.other.retry_intent_now(intent_id, OPERATOR, NOTE))


async def _redriven(scene: Scene, outcome: Outcome, **terms: object) -> tuple[IntentId, IntentId]:
    """Redrive an intent that ended with this outcome; return the new one and the old one."""
    goes_on = {"on_failure": "continue"} if scene.scope == "stream" else {}
    await scene.publish(**goes_on, **terms)
    worker = await scene.worker()
    [old_id] = await scene.enqueue()
    await scene.attempt(worker, outcome)
    await worker.leave()
    [told] = await scene.other.redrive_intents([old_id], OPERATOR, NOTE)
    require_equal("the verdict", told.verdict, "redriven")
    new_id = told.new_intent_id
    require(new_id is not None, "a redriven intent has no id")
    seen = await scene.status(new_id or old_id)
    require_equal("redrive_of", seen.redrive_of, old_id)
    [first] = await scene.ledger(new_id or old_id)
    require_equal("its first row", (first.state, first.holder), ("RETRYABLE", OPERATOR))
    return new_id or old_id, old_id


async def _key_of(scene: Scene, intent_id: IntentId) -> object:
    worker = await scene.worker("other")
    work = await scene.taken(worker)
    await worker.begin(work)
    require_equal("what is due", work.intent_id, intent_id)
    return work.submission_key


CASES = cases(
    ("item", "cluster", "stream"),
    waiting_intent_is_cancelled_in_the_operators_name,
    call_in_flight_is_not_cancelled,
    intent_that_may_have_had_its_effect_is_not_cancelled,
    doubt_is_resolved_each_way,
    intent_without_doubt_is_not_resolved,
    retry_without_an_attempt_left_is_refused,
    rejected_intent_is_redriven_with_a_new_key,
    exhausted_intent_is_redriven_with_its_old_key,
    intent_is_redriven_once,
    only_what_ended_without_success_is_redriven,
    waiting_retry_is_made_due_now,
) + cases(
    ("cluster",),
    intervention_without_a_name_or_a_note_is_refused,
    terms_get_a_version_and_keep_it_while_unchanged,
    terms_that_cannot_work_are_refused,
)

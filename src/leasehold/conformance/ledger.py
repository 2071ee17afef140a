"""Cases of the ledger, in every scope: what an outcome writes, and what it leads to."""

from __future__ import annotations

from leasehold.conformance.scene import (
    Scene,
    cases,
    require,
    require_equal,
    require_refused,
    until,
)
from leasehold.domain.contract import ATTEMPTS_CEILING
from leasehold.domain.errors import InvalidCompletionState
from leasehold.domain.outcome import (
    Accepted,
    Deferred,
    Outcome,
    Rejected,
    Retryable,
    Submitted,
    Unknown,
)

_RETRY = Retryable(retry_after_seconds=0)
_DOUBT = Unknown(retry_after_seconds=0)
_LATER = 3600.0


async def each_outcome_has_its_state_and_status(scene: Scene) -> None:
    """One row on the ledger says what a call led to, with all that the gateway told."""
    await scene.publish()
    worker = await scene.worker()
    outcomes: tuple[tuple[Outcome, str, str], ...] = (
        (Accepted(reference="r", code="200", detail="d"), "DISPATCHED", "accepted"),
        (Rejected(reason="no", code="422", detail="d"), "FAILED", "rejected"),
        (Retryable(retry_after_seconds=_LATER, code="503"), "RETRYABLE", "pending"),
        (Unknown(retry_after_seconds=_LATER, detail="lost"), "IN_DOUBT", "in_doubt"),
        (Submitted(reference="s", ask_after_seconds=_LATER), "SUBMITTED", "confirming"),
    )
    for outcome, state, status in outcomes:
        [intent_id] = await scene.enqueue()
        told = await scene.attempt(worker, outcome)
        require_equal("the answer", (told.verdict, told.state), ("applied", state))
        [row] = await scene.ledger(intent_id)
        require_equal("the row", (row.attempt_no, row.state, row.holder), (1, state, worker.name))
        for name in ("reason", "reference", "code", "detail"):
            if hasattr(outcome, name):
                require_equal(name, getattr(row, name), getattr(outcome, name))
        seen = await scene.status(intent_id)
        require_equal("the status", (seen.status, seen.attempts), (status, 1))
        is_final = state in {"DISPATCHED", "FAILED"}
        require_equal("without a due time", told.due_at is None, is_final)
        require_equal("finished", seen.finished_at is not None, is_final)


async def attempts_are_numbered_without_gaps(scene: Scene) -> None:
    """The ledger is the truth about how often an intent was tried."""
    await scene.publish()
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    for number in range(1, 5):
        told = await scene.attempt(worker, _RETRY)
        require_equal("the number of the attempt", told.attempt_no, number)
    await scene.attempt(worker, Accepted())
    rows = [(row.attempt_no, row.state) for row in await scene.ledger(intent_id)]
    wanted = [(number, "RETRYABLE") for number in range(1, 5)] + [(5, "DISPATCHED")]
    require_equal("the ledger", rows, wanted)


async def row_of_the_ledger_never_changes(scene: Scene) -> None:
    """What was written stays, whatever follows."""
    await scene.publish()
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    await scene.attempt(worker, _RETRY)
    first = await scene.ledger(intent_id)
    await scene.attempt(worker, Rejected(reason="no"))
    require_equal("the first row", (await scene.ledger(intent_id))[:1], first)


async def intent_ends_once(scene: Scene) -> None:
    """Whoever reports again is told that it has ended, and writes nothing."""
    await scene.publish()
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    work = await scene.taken(worker)
    await worker.begin(work)
    await worker.record(work, Accepted())
    again = await worker.record(work, Rejected(reason="no"))
    wanted = "lease_lost" if scene.scope == "stream" else "already_terminal"
    require(again.verdict in {wanted, "already_terminal"}, f"a second result was {again.verdict}")
    states = [row.state for row in await scene.ledger(intent_id)]
    require_equal("the ledger", states, ["DISPATCHED"])
    require_equal("what is due", await worker.take(), [])


async def retry_is_due_after_its_delay(scene: Scene) -> None:
    """Not before: the gateway has said so, or the contract."""
    await scene.publish()
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    told = await scene.attempt(worker, Retryable(retry_after_seconds=_LATER))
    require_equal("what is due", await worker.take(), [])
    [row] = await scene.ledger(intent_id)
    delay = None if told.due_at is None else (told.due_at - row.finished_at).total_seconds()
    require_equal("the delay", delay, _LATER)


async def last_attempt_of_the_contract_ends_the_intent(scene: Scene) -> None:
    """The database counts, so no worker can try more often than the contract allows."""
    await scene.publish(attempts_max=2)
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    await scene.attempt(worker, _RETRY)
    told = await scene.attempt(worker, _RETRY)
    require_equal("the answer", (told.state, told.reason), ("FAILED", "max_attempts"))
    require_equal("the status", (await scene.status(intent_id)).status, "exhausted")


async def one_shot_is_tried_once(scene: Scene) -> None:
    """A call that had no effect is not made again."""
    await scene.publish(retry_policy="one_shot")
    worker = await scene.worker()
    await scene.enqueue()
    told = await scene.attempt(worker, _RETRY)
    require_equal("the answer", (told.state, told.reason), ("FAILED", "one_shot"))


async def retry_after_the_deadline_ends_the_intent(scene: Scene) -> None:
    """A retry that could only come too late is not waited for."""
    await scene.publish(deadline_seconds=_LATER)
    worker = await scene.worker()
    await scene.enqueue()
    told = await scene.attempt(worker, Retryable(retry_after_seconds=2 * _LATER))
    require_equal("the answer", (told.state, told.reason), ("FAILED", "deadline_exceeded"))


async def intent_that_always_fails_ends_at_the_ceiling(scene: Scene) -> None:
    """Poison does not stay for ever, whatever the contract says."""
    await scene.publish()
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    for _ in range(ATTEMPTS_CEILING - 1):
        await scene.attempt(worker, _RETRY)
    told = await scene.attempt(worker, _RETRY)
    require_equal("the last answer", (told.state, told.reason), ("FAILED", "max_attempts"))
    require_equal("rows", len(await scene.ledger(intent_id)), ATTEMPTS_CEILING)
    require_equal("what is due", await worker.take(), [])


async def doubt_at_the_ceiling_is_held_for_a_person(scene: Scene) -> None:
    """What may have had its effect is never called failed."""
    await scene.publish()
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    for _ in range(ATTEMPTS_CEILING - 1):
        await scene.attempt(worker, _DOUBT)
    told = await scene.attempt(worker, _DOUBT)
    require_equal("the last answer", (told.state, told.is_held), ("IN_DOUBT", True))
    require_equal("the status", (await scene.status(intent_id)).status, "held")
    require_equal("what is due", await worker.take(), [])


async def deferred_call_spends_no_attempt(scene: Scene) -> None:
    """It says nothing about the intent, so nothing is written about it."""
    await scene.publish(attempts_max=2)
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    for _ in range(3):
        await scene.attempt(worker, Deferred(reason="credentials", retry_after_seconds=0))
    require_equal("the ledger", await scene.ledger(intent_id), [])
    seen = await scene.status(intent_id)
    require_equal("the status", (seen.status, seen.reason), ("pending", "credentials"))
    require(seen.deferred_since is not None, "nobody learns since when it is deferred")
    await scene.attempt(worker, Accepted())
    [row] = await scene.ledger(intent_id)
    require_equal("the row", (row.attempt_no, row.state), (1, "DISPATCHED"))


async def keyed_doubt_is_tried_again_with_the_same_key(scene: Scene) -> None:
    """The gateway ignores a repeated key, and a higher token replaces a lower one."""
    await scene.publish()
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    tokens: list[int] = []
    for _ in range(3):
        work = await scene.taken(worker)
        await worker.begin(work)
        require_equal("the key", work.submission_key, intent_id)
        tokens += [] if work.fencing_token is None else [work.fencing_token]
        await worker.record(work, _DOUBT)
    require(len(tokens) == 3 and tokens == sorted(set(tokens)), f"fencing tokens: {tokens}")


async def doubt_is_looked_up_after_its_quarantine(scene: Scene) -> None:
    """Not sooner: the call may still be on its way."""
    await scene.publish(guarantee="lookup", can_look_up=True, quarantine_seconds=_LATER)
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    told = await scene.attempt(worker, _DOUBT)
    require_equal("held", told.is_held, False)
    [row] = await scene.ledger(intent_id)
    wait = None if told.due_at is None else (told.due_at - row.finished_at).total_seconds()
    require_equal("the quarantine", wait, _LATER)
    require_equal("what is due", await worker.take(), [])


async def doubt_without_a_lookup_is_held_for_a_person(scene: Scene) -> None:
    """Nobody guesses."""
    await scene.publish(guarantee="blind")
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    told = await scene.attempt(worker, _DOUBT)
    require_equal("the answer", (told.is_held, told.due_at), (True, None))
    seen = await scene.status(intent_id)
    require_equal("the status", (seen.status, seen.due_at), ("held", None))


async def result_of_a_call_that_was_never_begun_is_refused(scene: Scene) -> None:
    """Without the mark, a crash in the call would have been taken for no call."""
    await scene.publish(guarantee="lookup")
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    work = await scene.taken(worker)
    for outcome in (Accepted(), _DOUBT, Submitted(reference="s", ask_after_seconds=1)):
        await require_refused(
            "a result without a mark", InvalidCompletionState, worker.record(work, outcome)
        )
    require_equal("the ledger", await scene.ledger(intent_id), [])


async def mark_that_is_taken_back_leaves_no_doubt(scene: Scene) -> None:
    """What was certainly not sent is called by the next one."""
    await scene.publish(guarantee="blind")
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    work = await scene.taken(worker)
    await worker.begin(work)
    await worker.give_back(work, is_begun=True)
    again = await scene.taken(worker)
    require_equal("the state", (again.attempt_no, again.last_state), (1, None))
    require_equal("the ledger", await scene.ledger(intent_id), [])


async def confirmation_needs_no_mark_and_has_the_reference(scene: Scene) -> None:
    """Asking is not trying."""
    await scene.publish(guarantee="lookup", can_look_up=True)
    worker = await scene.worker()
    [intent_id] = await scene.enqueue()
    await scene.attempt(worker, Submitted(reference="their-1", ask_after_seconds=0))
    work = await scene.taken(worker)
    require_equal("to ask about", (work.last_state, work.reference), ("SUBMITTED", "their-1"))
    no_news = Submitted(reference="their-1", ask_after_seconds=0)
    await worker.record(work, no_news, attempt_no=work.attempt_no)
    require_equal("rows after a question", len(await scene.ledger(intent_id)), 1)
    work = await scene.taken(worker)
    await worker.record(work, Accepted(), attempt_no=work.attempt_no)
    rows = [(row.state, row.reference) for row in await scene.ledger(intent_id)]
    require_equal("the ledger", rows, [("SUBMITTED", "their-1"), ("DISPATCHED", "their-1")])


async def missed_deadline_is_ended_by_repair(scene: Scene) -> None:
    """Also if nobody serves the target any more."""
    await scene.publish()
    [intent_id] = await scene.enqueue(deadline_seconds=0.2)

    async def ended() -> int | None:
        missed = await scene.other.repair_missed_deadlines(1000, "repair")
        found = {one.intent_id: one.attempt_no for one in missed}
        return found.get(intent_id)

    number = await until("an intent outlived its deadline", ended)
    require_equal("the attempt", number, 1)
    [row] = await scene.ledger(intent_id)
    require_equal("the row", (row.state, row.reason), ("FAILED", "deadline_exceeded"))
    require_equal("the status", (await scene.status(intent_id)).status, "exhausted")


CASES = cases(
    ("item", "cluster", "stream"),
    each_outcome_has_its_state_and_status,
    attempts_are_numbered_without_gaps,
    row_of_the_ledger_never_changes,
    intent_ends_once,
    retry_is_due_after_its_delay,
    last_attempt_of_the_contract_ends_the_intent,
    one_shot_is_tried_once,
    retry_after_the_deadline_ends_the_intent,
    intent_that_always_fails_ends_at_the_ceiling,
    doubt_at_the_ceiling_is_held_for_a_person,
    deferred_call_spends_no_attempt,
    keyed_doubt_is_tried_again_with_the_same_key,
    doubt_is_looked_up_after_its_quarantine,
    doubt_without_a_lookup_is_held_for_a_person,
    result_of_a_call_that_was_never_begun_is_refused,
    mark_that_is_taken_back_leaves_no_doubt,
    confirmation_needs_no_mark_and_has_the_reference,
    missed_deadline_is_ended_by_repair,
)

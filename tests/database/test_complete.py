"""Completions: only the current holder of a claim writes its outcome, once, in an allowed state."""

from __future__ import annotations

import time
from datetime import timedelta
from uuid import UUID

import pytest

from tests.support.database import FOREVER
from tests.support.outbox import result_of
from tests.support.race import race
from tests.support.sqlstates import refused, sqlstate_of

pytestmark = pytest.mark.one_server


def complete_one(outbox, claim, state, worker="worker-1", **fields):
    """Complete one claim with the function that raises instead of returning a verdict."""
    fields = {"p_retry_after_seconds": None} | {f"p_{name}": fields[name] for name in fields}
    names = ", ".join(f"{name} => %({name})s" for name in fields)
    [row] = outbox.as_role("executor").execute(
        "SELECT leasehold.complete_outbox_attempt("
        f"%(worker)s, %(intent_id)s, %(lease_token)s, %(state)s, {names}) AS attempt_no",
        {
            "worker": worker,
            "intent_id": claim["intent_id"],
            "lease_token": claim["lease_token"],
            "state": state,
        }
        | fields,
    )
    return row["attempt_no"]


def claimed(outbox, count=1, target="sms", **terms):
    """Return new claims of worker-1 under a contract with these terms."""
    outbox.publish(target, **terms)
    outbox.enqueue(count, target=target)
    return outbox.claim(batch_size=count, targets=[target])


def verdicts_of(rows):
    return [row["verdict"] for row in rows]


# Who may complete


def test_worker_that_was_replaced_cannot_complete(outbox):
    [stale] = claimed(outbox)
    outbox.expire_claims()
    [fresh] = outbox.take_over("worker-2")
    with refused("P7002") as caught:
        complete_one(outbox, stale, "DISPATCHED")
    assert caught.value.diag.message_detail == "lease_lost"
    assert verdicts_of(outbox.complete([stale])) == ["lease_lost"]
    assert outbox.states(stale["intent_id"]) == ["ZOMBIE_REQUEUE"]
    assert complete_one(outbox, fresh, "DISPATCHED", worker="worker-2") == 2


def test_worker_that_replaced_itself_cannot_complete_under_its_old_token(outbox):
    [stale] = claimed(outbox)
    outbox.expire_claims()
    [fresh] = outbox.take_over("worker-1")
    assert sqlstate_of(lambda: complete_one(outbox, stale, "DISPATCHED")) == "P7002"
    assert verdicts_of(outbox.complete([stale])) == ["lease_lost"]
    assert complete_one(outbox, fresh, "DISPATCHED") == 2


def test_expired_claim_cannot_be_completed_even_if_nobody_took_it(outbox):
    [claim] = claimed(outbox)
    outbox.expire_claims(seconds_ago=0)
    assert sqlstate_of(lambda: complete_one(outbox, claim, "DISPATCHED")) == "P7002"
    assert verdicts_of(outbox.complete([claim])) == ["lease_lost"]
    assert outbox.ledger(claim["intent_id"]) == []
    assert outbox.pending(claim["intent_id"])["lease_token"] == claim["lease_token"]


def test_other_worker_cannot_complete_with_a_stolen_token(outbox):
    [claim] = claimed(outbox)
    assert verdicts_of(outbox.complete([claim], worker="thief")) == ["lease_lost"]
    assert sqlstate_of(lambda: complete_one(outbox, claim, "FAILED", worker="thief")) == "P7002"
    assert outbox.ledger(claim["intent_id"]) == []


def test_result_without_the_right_token_is_refused(outbox):
    [claim] = claimed(outbox)
    for token in (None, UUID(int=0)):
        forged = claim | {"lease_token": token}
        assert sqlstate_of(lambda forged=forged: complete_one(outbox, forged, "FAILED")) == "P7002"
    assert outbox.ledger(claim["intent_id"]) == []


def test_result_for_an_unclaimed_intent_is_refused_without_a_token_too(outbox):
    outbox.publish()
    [intent] = outbox.enqueue()
    results = [{"intent_id": str(intent), "lease_token": None, "state": "DISPATCHED"}]
    [row] = outbox.call("executor", "complete_outbox_attempts", "worker-1", results)
    assert row["verdict"] == "lease_lost"
    assert outbox.ledger(intent) == []


@pytest.mark.every_server
@pytest.mark.parametrize(
    ("state", "loser_is_told"), [("DISPATCHED", "already_terminal"), ("RETRYABLE", "lease_lost")]
)
def test_fifteen_of_sixteen_racing_completions_of_one_claim_lose(outbox, state, loser_is_told):
    [claim] = claimed(outbox)

    def complete(caller, _):
        while (verdict := caller.complete([claim], state)[0]["verdict"]) == "locked":
            time.sleep(0.01)
        return verdict

    verdicts = race(outbox.database, 16, complete)
    assert sorted(verdicts) == sorted(["applied", *[loser_is_told] * 15])
    assert outbox.states(claim["intent_id"]) == [state]


@pytest.mark.every_server
def test_fifteen_of_sixteen_racing_single_completions_raise_an_error(outbox):
    [claim] = claimed(outbox)
    states = race(
        outbox.database,
        16,
        lambda caller, _: sqlstate_of(lambda: complete_one(caller, claim, "DISPATCHED")),
    )
    assert sorted(states, key=str) == sorted([None, *["P7002"] * 15], key=str)
    assert outbox.states(claim["intent_id"]) == ["DISPATCHED"]


# What may be reported


def test_state_that_no_executor_may_report_is_refused(outbox):
    [claim] = claimed(outbox)
    for state in ("ZOMBIE_REQUEUE", "CANCELLED", "DISPATCHING", "dispatched", "", None):
        with refused("P7003"):
            complete_one(outbox, claim, state)
        with refused("P7003"):
            outbox.complete([claim], state)
    assert outbox.ledger(claim["intent_id"]) == []


def test_one_invalid_state_refuses_the_whole_batch(outbox):
    good, bad = claimed(outbox, 2)
    results = [result_of(good, "DISPATCHED"), result_of(bad, "ZOMBIE_REQUEUE")]
    with refused("P7003"):
        outbox.call("executor", "complete_outbox_attempts", "worker-1", results)
    assert outbox.ledger(good["intent_id"]) == []


@pytest.mark.parametrize("guarantee", ["lookup", "blind"])
def test_result_of_a_call_that_had_to_be_begun_first_is_refused(outbox, guarantee):
    states = ["DISPATCHED", "IN_DOUBT", "SUBMITTED"]
    for claim, state in zip(claimed(outbox, 3, guarantee=guarantee), states, strict=True):
        with refused("P7003"):
            outbox.complete([claim], state)
        assert outbox.ledger(claim["intent_id"]) == []
        outbox.begin([claim])
        assert verdicts_of(outbox.complete([claim], state)) == ["applied"]


@pytest.mark.parametrize("guarantee", ["lookup", "blind"])
def test_attempt_that_made_no_call_need_not_have_begun(outbox, guarantee):
    first, second = claimed(outbox, 2, guarantee=guarantee)
    assert verdicts_of(outbox.complete([first], "FAILED")) == ["applied"]
    assert verdicts_of(outbox.complete([second], "RETRYABLE")) == ["applied"]


def test_lookup_and_confirmation_need_not_have_begun(outbox):
    claims = claimed(outbox, 2, guarantee="lookup")
    outbox.begin(claims)
    outbox.complete(claims[:1], "IN_DOUBT")
    outbox.complete(claims[1:], "SUBMITTED")
    outbox.make_due()
    asked = outbox.claim()
    assert {claim["last_state"] for claim in asked} == {"IN_DOUBT", "SUBMITTED"}
    assert verdicts_of(outbox.complete(asked)) == ["applied", "applied"]


IMPOSSIBLE_RESULTS = [
    {"state": "RETRYABLE", "retry_after_seconds": None},
    {"state": "RETRYABLE", "retry_after_seconds": -1},
    {"state": "RETRYABLE", "retry_after_seconds": "NaN"},
    {"state": "RETRYABLE", "retry_after_seconds": 1e300},
    {"state": "IN_DOUBT", "retry_after_seconds": None},
    {"state": "SUBMITTED", "reference": None},
    {"state": "DISPATCHED", "reference": "r" * 256},
    {"state": "FAILED", "reason": "r" * 65},
    {"state": "FAILED", "code": "c" * 65},
    {"state": "FAILED", "elapsed_seconds": -1},
    {"state": "FAILED", "elapsed_seconds": "Infinity"},
    {"state": "FAILED", "reason": "max_attempts"},
    {"state": "FAILED", "reason": "one_shot"},
]


def test_impossible_result_is_refused_with_its_whole_batch(outbox):
    good, bad = claimed(outbox, 2)
    for fields in IMPOSSIBLE_RESULTS:
        results = [result_of(good, "DISPATCHED"), result_of(bad, **fields)]
        with refused("22023"):
            outbox.call("executor", "complete_outbox_attempts", "worker-1", results)
        assert outbox.ledger(good["intent_id"]) == []


def test_intent_named_twice_in_a_batch_is_refused(outbox):
    [claim] = claimed(outbox)
    with refused("22023"):
        outbox.complete([claim, claim])
    assert outbox.ledger(claim["intent_id"]) == []


# What it does


def test_final_outcome_leaves_one_ledger_row_and_no_pending_row(outbox):
    for claim, state in zip(claimed(outbox, 2), ["DISPATCHED", "FAILED"], strict=True):
        number = complete_one(outbox, claim, state, reference="abc", code="200", detail="d" * 5000)
        [row] = outbox.ledger(claim["intent_id"])
        assert number == row["attempt_no"] == 1
        assert (row["state"], row["holder"]) == (state, "worker-1")
        assert row["lease_token"] == claim["lease_token"]
        assert (row["reference"], row["code"], len(row["detail"])) == ("abc", "200", 2000)
        assert outbox.pending(claim["intent_id"]) is None


def test_retry_ends_the_claim_and_is_due_after_exactly_its_delay(outbox):
    [claim] = claimed(outbox)
    complete_one(outbox, claim, "RETRYABLE", retry_after_seconds=12.5)
    [row] = outbox.ledger(claim["intent_id"])
    pending = outbox.pending(claim["intent_id"])
    assert pending["due_at"] - row["finished_at"] == timedelta(seconds=12.5)
    assert pending["claimed_by"] is None
    assert pending["lease_token"] is None
    assert pending["lease_expires_at"] is None
    assert pending["attempt_count"] == 1
    assert pending["last_state"] == "RETRYABLE"
    assert outbox.claim() == []


@pytest.mark.parametrize("state", ["IN_DOUBT", "SUBMITTED"])
def test_retry_above_the_ceiling_is_refused_and_the_intent_can_still_end(outbox, state):
    [claim] = claimed(outbox, guarantee="lookup")
    outbox.begin([claim])
    for _ in range(19):
        outbox.complete([claim], state)
        outbox.make_due()
        [claim] = outbox.claim()
        outbox.begin([claim])  # a call each time, no question
    outbox.complete([claim], state)
    assert outbox.pending(claim["intent_id"])["due_at"] == FOREVER, "held, instead of retried again"
    outbox.database.owner_execute("UPDATE leasehold.outbox_pending SET due_at = now()")
    [claim] = outbox.claim()
    assert claim["attempt_no"] == 21
    assert outbox.begin([claim])[0]["verdict"] == "ceiling_reached"
    [row] = outbox.complete([claim], "RETRYABLE")
    assert (row["verdict"], row["attempt_no"]) == ("ceiling_reached", None)
    with refused("P7004"):
        complete_one(outbox, claim, "RETRYABLE", retry_after_seconds=1)
    assert len(outbox.ledger(claim["intent_id"])) == 20
    assert outbox.pending(claim["intent_id"])["lease_token"] == claim["lease_token"]
    outbox.complete([claim], "FAILED")
    assert outbox.states(claim["intent_id"])[-1] == "FAILED"


def test_contract_with_more_attempts_than_the_ceiling_is_refused(outbox):
    for attempts in (21, 1000, 2**31 - 1):
        with refused("P7004"):
            outbox.publish(attempts_max=attempts)
    assert outbox.database.execute("SELECT FROM leasehold.contracts") == []

"""A claim between claiming and completing: begun, renewed, released or lost."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from tests.support.race import race
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server


@pytest.fixture
def claims(outbox):
    outbox.publish()
    outbox.enqueue(3)
    return outbox.claim()


def ids_of(claims):
    return [claim["intent_id"] for claim in claims]


def tokens_of(claims):
    return [claim["lease_token"] for claim in claims]


def renew(outbox, claims, worker="worker-1", lease_seconds=60):
    rows = outbox.call(
        "executor", "renew_outbox_leases", worker, ids_of(claims), tokens_of(claims), lease_seconds
    )
    return {row["intent_id"]: row for row in rows}


def release(outbox, claims, worker="worker-1", delay_seconds=0):
    held = ids_of(claims), tokens_of(claims)
    rows = outbox.call("executor", "release_outbox_claims", worker, *held, delay_seconds)
    verdicts = {row["intent_id"]: row["verdict"] for row in rows}
    return [verdicts[claim["intent_id"]] for claim in claims]


def begun_verdicts(outbox, claims, worker="worker-1"):
    verdicts = {row["intent_id"]: row["verdict"] for row in outbox.begin(claims, worker)}
    return [verdicts[claim["intent_id"]] for claim in claims]


# Begin


def test_begin_marks_the_row_and_keeps_the_first_mark_when_asked_again(outbox, claims):
    [first] = outbox.begin(claims[:1])
    [again] = outbox.begin(claims[:1])
    assert first["verdict"] == again["verdict"] == "begun"
    assert first["begun_at"] == again["begun_at"]
    assert outbox.pending(claims[0]["intent_id"])["begun_at"] == first["begun_at"]
    assert outbox.ledger(claims[0]["intent_id"]) == []
    outbox.complete(claims[:1])
    [row] = outbox.ledger(claims[0]["intent_id"])
    assert row["started_at"] == first["begun_at"]


def test_begin_refuses_whoever_does_not_hold_the_claim(outbox, claims):
    lost, finished, ours = claims
    unknown = {"intent_id": uuid4(), "lease_token": uuid4()}
    outbox.complete([finished])
    forged = lost | {"lease_token": uuid4()}
    assert begun_verdicts(outbox, [forged, finished, ours, unknown]) == [
        "lease_lost",
        "already_terminal",
        "begun",
        "not_found",
    ]
    assert begun_verdicts(outbox, [lost], worker="thief") == ["lease_lost"]
    assert outbox.pending(lost["intent_id"])["begun_at"] is None


def test_call_cannot_begin_after_its_claim_has_expired(outbox, claims):
    outbox.expire_claims(seconds_ago=0)
    assert begun_verdicts(outbox, claims) == ["lease_lost"] * 3
    assert outbox.pending(claims[0]["intent_id"])["begun_at"] is None


def test_begin_needs_a_token_for_each_intent(outbox, claims):
    ids = [claim["intent_id"] for claim in claims]
    with refused("22023"):
        outbox.call("executor", "begin_outbox_attempts", "worker-1", ids, tokens_of(claims[:2]))


@pytest.mark.every_server
def test_late_worker_and_its_successor_never_both_begin_a_call(outbox, claims):
    """Either the late worker begins and keeps the claim, or the successor has it."""
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending"
        "   SET lease_expires_at = clock_timestamp() + interval '20 ms'"
    )

    def act(caller, number):
        acting = set()
        for _ in range(30):
            if number == 0:
                rows = caller.begin(claims)
                acting |= {row["intent_id"] for row in rows if row["verdict"] == "begun"}
            else:
                acting |= {claim["intent_id"] for claim in caller.claim(f"successor-{number}")}
        return acting

    by_first, *by_others = race(outbox.database, 4, act)
    acting = [by_first, *by_others]
    assert sum(len(some) for some in acting) == len(set().union(*acting))


# Renew


def test_renewal_extends_held_claims_and_names_lost_ones(outbox, claims):
    ours, lost, finished = claims
    outbox.complete([finished])
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET lease_expires_at = clock_timestamp()"
        " WHERE intent_id = %s",
        [lost["intent_id"]],
    )
    unknown = {"intent_id": uuid4(), "lease_token": uuid4()}
    renewed = renew(outbox, [ours, lost, finished, unknown])
    assert [renewed[one]["verdict"] for one in ids_of([ours, lost, finished, unknown])] == [
        "renewed",
        "lease_lost",
        "lease_lost",
        "lease_lost",
    ]
    row = outbox.pending(ours["intent_id"])
    assert row["lease_expires_at"] == renewed[ours["intent_id"]]["lease_expires_at"]
    assert row["lease_expires_at"] - row["seen_at"] > timedelta(seconds=50)
    assert row["lease_token"] == ours["lease_token"]
    assert renewed[lost["intent_id"]]["lease_expires_at"] is None


def test_expired_claim_cannot_be_renewed_even_if_nobody_took_it(outbox, claims):
    outbox.expire_claims(seconds_ago=0)
    assert {row["verdict"] for row in renew(outbox, claims).values()} == {"lease_lost"}
    assert len(outbox.take_over("worker-2")) == 3


def test_replaced_worker_cannot_renew_its_successors_claim(outbox, claims):
    outbox.expire_claims()
    taken = outbox.take_over("worker-2")
    assert {row["verdict"] for row in renew(outbox, claims).values()} == {"lease_lost"}
    assert {row["verdict"] for row in renew(outbox, taken).values()} == {"lease_lost"}
    assert {row["verdict"] for row in renew(outbox, taken, "worker-2").values()} == {"renewed"}


def test_renewed_claim_is_not_taken_over(outbox, claims):
    renew(outbox, claims)
    assert outbox.claim("worker-2") == []
    assert outbox.call("executor", "repair_expired_leases", 10, "reaper") == []
    assert {row["verdict"] for row in outbox.complete(claims)} == {"applied"}


def test_renewal_keeps_the_mark_of_a_begun_call(outbox, claims):
    [begun] = outbox.begin(claims[:1])
    renew(outbox, claims[:1])
    assert outbox.pending(claims[0]["intent_id"])["begun_at"] == begun["begun_at"]


# Release


def test_released_claim_leaves_no_ledger_row_and_uses_no_attempt(outbox, claims):
    assert release(outbox, claims) == ["released"] * 3
    row = outbox.pending(claims[0]["intent_id"])
    assert (row["claimed_by"], row["lease_token"], row["lease_expires_at"]) == (None, None, None)
    assert (row["attempt_count"], row["last_state"]) == (0, None)
    assert outbox.database.execute("SELECT FROM leasehold.outbox_attempts") == []
    again = outbox.claim("worker-2")
    assert {claim["attempt_no"] for claim in again} == {1}
    assert {row["verdict"] for row in outbox.complete(claims)} == {"lease_lost"}


def test_released_claim_is_due_from_its_release_on(outbox, claims):
    """Workers do not look at due times that they have passed."""
    [before] = outbox.database.execute("SELECT clock_timestamp() AS now")
    release(outbox, claims)
    row = outbox.pending(claims[0]["intent_id"])
    assert before["now"] < row["due_at"] <= row["seen_at"]


def test_released_claim_is_due_after_the_requested_delay(outbox, claims):
    release(outbox, claims, delay_seconds=30)
    row = outbox.pending(claims[0]["intent_id"])
    assert timedelta(seconds=20) < row["due_at"] - row["seen_at"] <= timedelta(seconds=30)
    assert outbox.claim() == []


def test_claim_whose_call_has_begun_cannot_be_released(outbox, claims):
    outbox.begin(claims[:1])
    assert release(outbox, claims) == ["begun", "released", "released"]
    assert outbox.pending(claims[0]["intent_id"])["lease_token"] == claims[0]["lease_token"]
    assert {row["verdict"] for row in outbox.complete(claims[:1])} == {"applied"}


def test_lost_claim_is_not_released(outbox, claims):
    assert release(outbox, claims, worker="thief") == ["lease_lost"] * 3
    outbox.expire_claims(seconds_ago=0)
    assert release(outbox, claims) == ["lease_lost"] * 3
    taken = outbox.take_over("worker-2")
    assert release(outbox, claims) == ["lease_lost"] * 3
    assert outbox.pending(taken[0]["intent_id"])["claimed_by"] == "worker-2"


def test_released_intent_that_is_in_doubt_stays_in_doubt(outbox):
    outbox.publish(guarantee="lookup")
    [intent] = outbox.enqueue()
    calls = outbox.claim()
    outbox.begin(calls)
    outbox.complete(calls, "IN_DOUBT")
    outbox.make_due()
    assert release(outbox, outbox.claim()) == ["released"]
    assert outbox.status(intent) == "in_doubt"
    assert [claim["last_state"] for claim in outbox.claim()] == ["IN_DOUBT"]

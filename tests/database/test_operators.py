"""Interventions by operators: refused, or recorded with a name and a note."""

from __future__ import annotations

import pytest

from tests.support.lease_holder import claim_streams, take
from tests.support.outbox import ZERO_ID
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

NOTE = "the customer called"


@pytest.fixture
def blind(outbox):
    outbox.publish(guarantee="blind")
    return outbox


def cancel(outbox, intent_id, operator="ada", note=NOTE):
    return outbox.call("operator", "cancel_intent", intent_id, operator, note)[0]["cancel_intent"]


def resolve(outbox, intent_id, state, reference=None):
    arguments = (intent_id, state, "ada", NOTE, reference)
    return outbox.call("operator", "resolve_intent", *arguments)[0]["resolve_intent"]


def redrive(outbox, *intent_ids, note=NOTE):
    rows = outbox.call("operator", "redrive_intents", list(intent_ids), "ada", note)
    return {row["intent_id"]: (row["verdict"], row["new_intent_id"]) for row in rows}


def finish(outbox, intent_id, state, **fields):
    """Claim this intent, begin it and report its result."""
    claims = [row for row in outbox.claim() if row["intent_id"] == intent_id]
    outbox.begin(claims)
    assert outbox.complete(claims, state, **fields)[0]["verdict"] == "applied"
    return intent_id


def new_finished(outbox, state, **fields):
    [intent_id] = outbox.enqueue()
    return finish(outbox, intent_id, state, **fields)


def submission_key(database, intent_id):
    [row] = database.execute(
        "SELECT submission_key FROM leasehold.intents WHERE intent_id = %s", [intent_id]
    )
    return row["submission_key"]


def test_intent_that_may_have_had_an_effect_cannot_be_cancelled(blind):
    blind.publish("chain", scope="cluster")
    [claimed] = blind.enqueue()
    blind.claim()
    [begun] = blind.enqueue(target="chain")
    take(blind).begin([begun])
    expected = {
        claimed: "in_flight",
        begun: "in_flight",
        new_finished(blind, "IN_DOUBT"): "in_doubt",
        new_finished(blind, "SUBMITTED"): "confirming",
        new_finished(blind, "DISPATCHED"): "already_terminal",
        ZERO_ID: "not_found",
    }
    ledgers = {intent_id: blind.ledger(intent_id) for intent_id in expected}
    assert {intent_id: cancel(blind, intent_id) for intent_id in expected} == expected
    # Also if the claim has expired: the ledger row of repair must come first.
    blind.expire_claims()
    assert cancel(blind, claimed) == "in_flight"
    assert {intent_id: blind.ledger(intent_id) for intent_id in expected} == ledgers


def test_intent_in_doubt_cannot_be_resolved_while_an_executor_looks_it_up(outbox):
    outbox.publish(guarantee="lookup")
    intent_id = new_finished(outbox, "IN_DOUBT")
    outbox.make_due()
    [claim] = outbox.claim()
    assert resolve(outbox, intent_id, "DISPATCHED") == "in_flight"
    outbox.complete([claim], "FAILED")
    assert resolve(outbox, intent_id, "DISPATCHED") == "already_terminal"


def test_state_that_resolves_nothing_is_refused(blind):
    intent_id = new_finished(blind, "IN_DOUBT")
    for state in ("CANCELLED", "IN_DOUBT", "SUBMITTED", "ZOMBIE_REQUEUE", "", None):
        with refused("P7003"):
            resolve(blind, intent_id, state)


def test_retry_after_the_deadline_is_refused_too(outbox, database):
    outbox.publish(guarantee="blind")
    [intent_id] = outbox.enqueue(deadline_seconds=60)
    finish(outbox, intent_id, "IN_DOUBT")
    database.owner_execute("UPDATE leasehold.outbox_pending SET deadline_at = now()")
    with refused("P7004"):
        resolve(outbox, intent_id, "RETRYABLE")
    assert resolve(outbox, intent_id, "DISPATCHED") == "resolved"


def test_redrive_of_an_exhausted_intent_keeps_the_key_that_the_gateway_saw(outbox, database):
    outbox.publish(retry_policy="one_shot", deadline_seconds=3600)
    [old] = outbox.enqueue(metadata={"of": "customer 7"}, stream="a", trace_context="00-1")
    finish(outbox, old, "RETRYABLE")
    assert outbox.status(old) == "exhausted"
    outbox.publish(attempts_max=3)
    verdict, new = redrive(outbox, old)[old]
    assert (verdict, outbox.status(new)) == ("redriven", "pending")
    assert submission_key(database, new) == submission_key(database, old) == old
    same = "payload, payload_hash, metadata, stream, trace_context, target"
    copies = database.execute(f"SELECT DISTINCT {same} FROM leasehold.intents")
    assert len(copies) == 1
    [row] = database.execute("SELECT * FROM leasehold.intents WHERE intent_id = %s", [new])
    assert (row["redrive_of"], row["contract_version"], row["deadline_at"]) == (old, 2, None)
    [first] = outbox.ledger(new)
    assert (first["state"], first["reason"]) == ("RETRYABLE", "redriven_by_operator")
    assert (first["holder"], first["detail"]) == ("ada", f"redrive of {old}: {NOTE}")
    [claim] = outbox.claim()
    assert (claim["intent_id"], claim["attempt_no"], claim["submission_key"]) == (new, 2, old)


def test_redrive_of_a_rejected_intent_takes_a_new_key(outbox, database):
    outbox.publish()
    old = new_finished(outbox, "FAILED", reason="bad_number")
    _, new = redrive(outbox, old)[old]
    assert submission_key(database, new) == new
    # A redrive of the redrive keeps the key too, while the outcome is in doubt.
    finish(outbox, new, "FAILED", reason="deadline_exceeded")
    _, newest = redrive(outbox, new)[new]
    assert submission_key(database, newest) == new


@pytest.mark.parametrize("own", [None, 0], ids=["of the contract", "of its own"])
def test_redriven_intent_gets_the_priority_of_the_current_contract(outbox, own):
    outbox.publish(priority=0)
    [old] = outbox.enqueue(priority=own)
    finish(outbox, old, "FAILED")
    outbox.publish(priority=3)
    _, new = redrive(outbox, old)[old]
    assert outbox.pending(new)["priority"] == 3


def test_redrive_of_a_cancelled_intent_keeps_its_key(outbox, database):
    outbox.publish()
    [old] = outbox.enqueue()
    cancel(outbox, old)
    _, new = redrive(outbox, old)[old]
    assert submission_key(database, new) == old


def test_only_a_finished_unsuccessful_intent_is_redriven(outbox, database):
    outbox.publish()
    accepted, rejected = new_finished(outbox, "DISPATCHED"), new_finished(outbox, "FAILED")
    [unfinished] = outbox.enqueue()
    outbox.publish("moved")
    [homeless] = outbox.enqueue(target="moved")
    cancel(outbox, homeless)
    # Its target has streams now, and it has none.
    outbox.publish("moved", scope="stream")
    answers = redrive(outbox, unfinished, accepted, ZERO_ID, rejected, homeless)
    new = answers[rejected][1]
    assert answers == {
        unfinished: ("not_terminal", None),
        accepted: ("already_accepted", None),
        ZERO_ID: ("not_found", None),
        rejected: ("redriven", new),
        homeless: ("unknown_target", None),
    }
    assert redrive(outbox, rejected) == {rejected: ("already_redriven", new)}
    [row] = database.execute("SELECT count(*) AS rows FROM leasehold.intents")
    assert row["rows"] == 5


@pytest.mark.parametrize("scope", ["stream", "cluster"])
def test_redriven_intent_comes_after_the_pending_work_of_its_lease(outbox, scope):
    outbox.publish(scope=scope)
    [old] = outbox.enqueue(stream="a")
    cancel(outbox, old)
    [other] = outbox.enqueue(stream="a")
    _, new = redrive(outbox, old)[old]
    if scope == "cluster":
        window = take(outbox).window()
        assert [row["intent_id"] for row in window] == [other, new]
        return
    [holder] = claim_streams(outbox, targets=["sms"])
    assert [row["intent_id"] for row in holder.heads] == [other]
    assert holder.begin([other]) == ["begun"]
    [following] = holder.record_next([other], "DISPATCHED")
    assert following["intent_id"] == new


def test_intervention_without_an_operator_is_refused(outbox):
    outbox.publish()
    [intent_id] = outbox.enqueue()
    for operator in (None, "", "x" * 129, "a\nb"):
        for call in (
            ("cancel_intent", intent_id, operator, NOTE),
            ("resolve_intent", intent_id, "FAILED", operator, NOTE),
            ("redrive_intents", [intent_id], operator, NOTE),
        ):
            with refused("22023"):
                outbox.call("operator", *call)
    assert outbox.ledger(intent_id) == []


def test_intervention_without_a_reason_or_an_intent_is_refused(outbox):
    outbox.publish()
    [intent_id] = outbox.enqueue()
    for note in (None, "", "x" * 2001):
        for call in (
            ("cancel_intent", intent_id, "ada", note),
            ("resolve_intent", intent_id, "FAILED", "ada", note),
            ("redrive_intents", [intent_id], "ada", note),
        ):
            with refused("22023"):
                outbox.call("operator", *call)
    for call in (
        ("cancel_intent", None, "ada", NOTE),
        ("resolve_intent", None, "FAILED", "ada", NOTE),
        ("resolve_intent", intent_id, "FAILED", "ada", NOTE, "x" * 256),
        ("redrive_intents", None, "ada", NOTE),
        ("redrive_intents", [intent_id, intent_id], "ada", NOTE),
    ):
        with refused("22023"):
            outbox.call("operator", *call)
    assert outbox.ledger(intent_id) == []


def test_redriven_intent_keeps_the_key_window_of_the_first_try(outbox):
    outbox.publish(attempts_max=1, key_window_seconds=3600)
    [old] = outbox.enqueue()
    outbox.complete(outbox.claim(), "RETRYABLE")
    [first] = outbox.ledger(old)
    [redriven] = outbox.call("operator", "redrive_intents", [old], "ada", "again")
    pending = outbox.pending(redriven["new_intent_id"])
    assert pending["first_tried_at"] == first["started_at"]

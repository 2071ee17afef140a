"""An operator makes a waiting intent due now: no attempt, no ledger row, a note of who did it."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.support.lease_holder import ChangeReader, claim_streams, take
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

WAITING = {
    "RETRYABLE": {"reason": "busy", "retry_after_seconds": 3600},
    "DEFERRED": {"reason": "credentials_refused", "retry_after_seconds": 3600},
}
waits = pytest.mark.parametrize("state", list(WAITING))


def retry_now(outbox, intent_id, operator="ann"):
    [row] = outbox.call("operator", "retry_intent_now", intent_id, operator, "credentials renewed")
    return row["retry_intent_now"]


def noted(outbox):
    return outbox.database.execute(
        "SELECT intent_id, action, operator, note FROM leasehold.intent_interventions"
        " ORDER BY intervention_id"
    )


def is_noted_once(outbox, intent_id):
    note = {"action": "retry_now", "operator": "ann", "note": "credentials renewed"}
    return noted(outbox) == [{"intent_id": intent_id, **note}]


@waits
def test_waiting_item_is_claimed_at_once_and_spends_no_attempt(outbox, state):
    outbox.publish()
    [intent_id] = outbox.enqueue(1)
    outbox.complete(outbox.claim(), state, **WAITING[state])
    before = outbox.states(intent_id)
    assert outbox.claim() == []
    assert retry_now(outbox, intent_id) == "due_now"
    assert is_noted_once(outbox, intent_id)
    assert outbox.states(intent_id) == before
    [claimed] = outbox.claim()
    assert (claimed["intent_id"], claimed["attempt_no"]) == (intent_id, len(before) + 1)


@waits
def test_leader_learns_that_an_intent_has_become_due(outbox, state):
    outbox.publish(scope="cluster")
    leader = take(outbox)
    [intent_id] = outbox.enqueue(1)
    leader.record([intent_id], state, **WAITING[state])
    changes = ChangeReader([leader])
    changes.refresh()
    assert retry_now(outbox, intent_id) == "due_now"
    assert is_noted_once(outbox, intent_id)
    assert changes.refresh() == [intent_id]
    [first, *_] = leader.call(
        "mark_calls", *leader.fence, [intent_id], [1 + (state == "RETRYABLE")], 1, [True]
    )
    assert first["left_out"] == []


@waits
def test_waiting_head_of_a_free_stream_can_be_claimed_at_once(outbox, state):
    outbox.publish("pay", scope="stream")
    first, second = outbox.enqueue(2, "pay", stream="s")
    [holder] = claim_streams(outbox)
    holder.begin([first])
    holder.record_next([first], state, **WAITING[state])
    assert claim_streams(outbox) == []
    assert retry_now(outbox, second) == "behind_head"
    assert retry_now(outbox, first) == "due_now"
    assert is_noted_once(outbox, first)
    [holder] = claim_streams(outbox)
    assert [row["intent_id"] for row in holder.heads] == [first]


def test_head_of_a_paused_stream_waits_for_the_stream_to_be_resumed(outbox):
    outbox.publish("pay", scope="stream")
    [first] = outbox.enqueue(1, "pay", stream="s")
    [holder] = claim_streams(outbox)
    holder.begin([first])
    holder.record_next([first], "DEFERRED", **WAITING["DEFERRED"])
    outbox.call("operator", "pause_stream", "pay", "s", "ann", "an audit")
    assert retry_now(outbox, first) == "paused"
    assert noted(outbox) == []


def test_item_that_somebody_works_on_is_in_flight(outbox):
    outbox.publish()
    [intent_id] = outbox.enqueue(1)
    outbox.claim()
    assert retry_now(outbox, intent_id) == "in_flight"


def test_marked_call_of_a_leader_is_in_flight(outbox):
    outbox.publish(scope="cluster")
    leader = take(outbox)
    [intent_id] = outbox.enqueue(1)
    leader.call("mark_calls", *leader.fence, [intent_id], [1], 1, [True])
    assert retry_now(outbox, intent_id) == "in_flight"


def test_begun_head_of_a_stream_is_in_flight(outbox):
    outbox.publish("pay", scope="stream")
    [intent_id] = outbox.enqueue(1, "pay", stream="s")
    [holder] = claim_streams(outbox)
    holder.begin([intent_id])
    assert retry_now(outbox, intent_id) == "in_flight"


@pytest.mark.parametrize(
    ("guarantee", "state", "verdict"),
    [
        ("blind", "IN_DOUBT", "held"),
        ("lookup", "IN_DOUBT", "in_doubt"),
        ("keyed", "IN_DOUBT", "in_doubt"),
        ("keyed", "SUBMITTED", "confirming"),
        ("keyed", "DISPATCHED", "already_terminal"),
        ("keyed", "FAILED", "already_terminal"),
    ],
)
def test_intent_that_a_call_may_have_changed_is_not_hastened(outbox, guarantee, state, verdict):
    outbox.publish(guarantee=guarantee)
    [intent_id] = outbox.enqueue(1)
    claims = outbox.claim()
    outbox.begin(claims)
    outbox.complete(claims, state)
    assert retry_now(outbox, intent_id) == verdict
    assert noted(outbox) == []


def test_doubt_stays_as_long_as_it_is_although_its_last_call_was_deferred(outbox):
    outbox.publish(guarantee="fenced")
    [intent_id] = outbox.enqueue(1)
    outbox.complete(outbox.claim(), "IN_DOUBT", retry_after_seconds=0)
    outbox.complete(outbox.claim(), "DEFERRED", **WAITING["DEFERRED"])
    assert retry_now(outbox, intent_id) == "in_doubt"


def test_intent_that_was_never_tried_keeps_the_time_it_was_enqueued_for(outbox):
    outbox.publish()
    [later] = outbox.enqueue(1, delay_seconds=3600)
    [due] = outbox.enqueue(1)
    assert retry_now(outbox, later) == "scheduled"
    assert retry_now(outbox, due) == "already_due"
    assert retry_now(outbox, uuid4()) == "not_found"
    assert noted(outbox) == []


def test_intervention_without_a_name_or_a_note_is_refused(outbox):
    outbox.publish()
    [intent_id] = outbox.enqueue(1)
    for arguments in ((None, "ann", "x"), (intent_id, "", "x"), (intent_id, "ann", "")):
        with refused("22023"):
            outbox.call("operator", "retry_intent_now", *arguments)


def test_note_of_an_intervention_cannot_be_changed(outbox, database):
    outbox.publish()
    [intent_id] = outbox.enqueue(1)
    outbox.complete(outbox.claim(), "RETRYABLE", **WAITING["RETRYABLE"])
    retry_now(outbox, intent_id)
    for change in ("UPDATE {} SET note = 'x'", "DELETE FROM {}", "TRUNCATE {}"):
        with refused("P0001"):
            database.owner_execute(change.format("leasehold.intent_interventions"))

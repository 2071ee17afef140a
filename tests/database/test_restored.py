"""After a restore, nothing that may have been sent is sent again unseen."""

from __future__ import annotations

import pytest

from tests.support.lease_holder import claim_streams, take
from tests.support.outbox import CLUSTER_LEASE
from tests.support.race import race
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

NOTE = "backup of last night"
ASKS = {"can_look_up": True}
# Target, terms, and what becomes of its unfinished intents.
CLASSES = {
    "lookup": ({"guarantee": "lookup"}, "asked"),
    "blind": ({"guarantee": "blind"}, "held"),
    "window": ({"guarantee": "keyed", "key_window_seconds": 86400}, "held"),
    "window-asked": ({"guarantee": "keyed", "key_window_seconds": 86400} | ASKS, "asked"),
    "keyed": ({"guarantee": "keyed"}, "left"),
    "fenced": ({"guarantee": "fenced"}, "left"),
}
SCOPES = {
    "item": {"scope": "item"},
    "stream": {"scope": "stream"},
    "cluster": {"scope": "cluster", "lease_name": CLUSTER_LEASE},
}


def begin(outbox, operator="ann", note=NOTE):
    [row] = outbox.call("operator", "begin_restored_generation", operator, note)
    return row


def step(outbox, batch_size=1000):
    [row] = outbox.call("operator", "repair_restored_intents", batch_size)
    return row


def restore(outbox, batch_size=1000):
    """Run a restore to its end; return the steps."""
    begin(outbox)
    steps = []
    while not steps or not steps[-1]["is_done"]:
        steps.append(step(outbox, batch_size))
    return steps


def fate(outbox, intent_id):
    row = outbox.pending(intent_id)
    if row["last_state"] != "IN_DOUBT":
        return "left"
    return "held" if row["due_at"].year == 9999 else "asked"


@pytest.mark.parametrize("scope", SCOPES)
def test_what_may_have_been_sent_is_in_doubt_in_every_scope(outbox, scope):
    ids = {}
    for target, (terms, _) in CLASSES.items():
        outbox.publish(target, **terms, **SCOPES[scope])
        ids[target] = outbox.enqueue(3, target=target, stream="s")
    restore(outbox)
    fates = {target: {fate(outbox, one) for one in found} for target, found in ids.items()}
    assert fates == {target: {expected} for target, (_, expected) in CLASSES.items()}
    quarantined = outbox.pending(ids["lookup"][0])
    assert quarantined["due_at"] > quarantined["seen_at"]


def test_ledger_says_who_restored_what(outbox, database):
    outbox.publish(guarantee="lookup")
    [intent_id] = outbox.enqueue(1)
    restore(outbox)
    [row] = outbox.ledger(intent_id)
    assert (row["state"], row["reason"]) == ("IN_DOUBT", "database_restored")
    assert (row["holder"], row["detail"]) == ("ann", NOTE)
    [_, second] = database.execute("SELECT * FROM leasehold.generations ORDER BY generation_no")
    assert (second["cause"], second["began_by"], second["note"]) == ("restored", "ann", NOTE)
    assert second["intents_in_doubt"] == 1
    assert second["ready_at"] is not None


def test_nothing_is_granted_before_the_last_step(outbox):
    outbox.publish(guarantee="lookup")
    outbox.publish("keyed")
    outbox.enqueue(3)
    outbox.enqueue(1, target="keyed")
    begin(outbox)
    with refused("P7006"):
        outbox.claim(targets=["keyed"])
    [seen] = outbox.call("executor", "begin_generation", "instance-1")
    assert (seen["is_new"], seen["is_ready"]) == (False, False)
    steps = []
    while not steps or not steps[-1]["is_done"]:
        with refused("P7006"):
            outbox.claim(targets=["keyed"])
        steps.append(step(outbox, batch_size=2))
    assert [(one["looked_at"], one["put_in_doubt"]) for one in steps] == [(2, 2), (2, 1), (0, 0)]
    assert steps[-1]["in_doubt_so_far"] == 3
    assert len(outbox.claim(targets=["keyed", "sms"])) == 1


def test_interrupted_restore_goes_on_where_it_stopped(outbox):
    outbox.publish(guarantee="blind")
    ids = outbox.enqueue(4)
    assert begin(outbox)["is_new"]
    step(outbox, batch_size=2)
    again = begin(outbox, operator="bob", note="once more")
    assert not again["is_new"]
    while not step(outbox, batch_size=2)["is_done"]:
        pass
    assert [len(outbox.ledger(one)) for one in ids] == [1, 1, 1, 1]
    assert {row["holder"] for one in ids for row in outbox.ledger(one)} == {"ann"}
    assert step(outbox) == {
        "looked_at": 0,
        "put_in_doubt": 0,
        "in_doubt_so_far": 4,
        "is_done": True,
    }


@pytest.mark.every_server
def test_operators_who_run_it_at_once_share_one_restore(outbox, database):
    outbox.publish(guarantee="blind")
    ids = outbox.enqueue(60)

    def run(caller, number):
        began = begin(caller, operator=f"operator-{number}")
        while not step(caller, batch_size=7)["is_done"]:
            pass
        return began

    began = race(database, 4, run, role="operator")
    assert {len(outbox.ledger(one)) for one in ids} == {sum(one["is_new"] for one in began)}


def test_intents_of_after_the_restore_are_left_alone(outbox):
    outbox.publish(guarantee="blind")
    [before] = outbox.enqueue(1)
    begin(outbox)
    [after] = outbox.enqueue(1)
    while not step(outbox)["is_done"]:
        pass
    assert (fate(outbox, before), fate(outbox, after)) == ("held", "left")


def test_intents_that_cannot_have_been_sent_keep_their_time(outbox):
    outbox.publish(guarantee="lookup")
    [later] = outbox.enqueue(1, delay_seconds=3600)
    restore(outbox)
    assert outbox.pending(later)["last_state"] is None
    assert outbox.states(later) == []


def test_submitted_and_held_intents_stay_as_they_are(outbox):
    outbox.publish(guarantee="lookup", confirm_within_seconds=3600)
    outbox.publish("blind", guarantee="blind")
    [submitted] = outbox.enqueue(1)
    claims = outbox.claim()
    outbox.begin(claims)
    outbox.complete(claims, "SUBMITTED")
    [held] = outbox.enqueue(1, target="blind")
    claims = outbox.claim(targets=["blind"])
    outbox.begin(claims)
    outbox.complete(claims, "IN_DOUBT")
    restore(outbox)
    assert outbox.states(submitted) == ["SUBMITTED"]
    assert outbox.states(held) == ["IN_DOUBT"]


def test_intent_that_was_in_doubt_is_asked_about_after_a_new_quarantine(outbox):
    outbox.publish(guarantee="lookup")
    [intent_id] = outbox.enqueue(1)
    claims = outbox.claim()
    outbox.begin(claims)
    outbox.complete(claims, "IN_DOUBT")
    outbox.make_due()
    restore(outbox)
    row = outbox.pending(intent_id)
    assert row["due_at"] > row["seen_at"]


def test_retry_that_was_due_later_is_in_doubt(outbox):
    """An operator may have hastened it in the database that is lost."""
    outbox.publish(guarantee="blind")
    [intent_id] = outbox.enqueue(1)
    claims = outbox.claim()
    outbox.begin(claims)
    outbox.complete(claims, "RETRYABLE", retry_after_seconds=3600)
    restore(outbox)
    assert fate(outbox, intent_id) == "held"


def test_deferred_intent_that_was_due_later_is_in_doubt(outbox):
    """An operator may have made it due in the database that is lost."""
    outbox.publish(guarantee="blind")
    [intent_id] = outbox.enqueue(1)
    claims = outbox.claim()
    outbox.begin(claims)
    outbox.complete(claims, "DEFERRED", reason="access_refused", retry_after_seconds=3600)
    assert outbox.pending(intent_id)["first_tried_at"] is None
    restore(outbox)
    assert fate(outbox, intent_id) == "held"


def test_head_that_waits_for_the_end_of_a_pause_is_in_doubt(outbox):
    """An operator may have resumed the stream in the database that is lost."""
    outbox.publish(guarantee="blind", **SCOPES["stream"])
    [head] = outbox.enqueue(1, stream="s")
    [later] = outbox.enqueue(1, stream="t", delay_seconds=3600)
    for stream in ("s", "t"):
        outbox.call("operator", "pause_stream", "sms", stream, "ann", "wait", 600)
    waiting = outbox.pending(head)
    assert waiting["due_at"] > waiting["seen_at"]
    restore(outbox)
    assert (fate(outbox, head), fate(outbox, later)) == ("held", "left")


def test_deadline_ends_nothing_before_the_restore_has_put_it_in_doubt(outbox):
    outbox.publish(guarantee="lookup")
    [intent_id] = outbox.enqueue(1, deadline_seconds=3600)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp()"
    )
    begin(outbox)
    assert outbox.call("executor", "repair_missed_deadlines", 10, "worker-1") == []
    step(outbox)
    assert outbox.call("executor", "repair_missed_deadlines", 10, "worker-1") == []
    assert outbox.states(intent_id) == ["IN_DOUBT"]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("guarantee", ["keyed", "fenced"])
def test_deadline_that_passes_after_the_restore_ends_nothing_that_may_have_been_sent(
    outbox, guarantee, scope
):
    outbox.publish("pay", guarantee=guarantee, **SCOPES[scope])
    [intent_id] = outbox.enqueue(1, target="pay", stream="s", deadline_seconds=3600)
    restore(outbox)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp()"
    )
    outbox.make_due()
    assert outbox.call("executor", "repair_missed_deadlines", 10, "worker-1") == []
    assert outbox.states(intent_id) == ["IN_DOUBT"]
    row = outbox.pending(intent_id)
    assert row["due_at"] <= row["seen_at"], "it is sent again, with the same key"


def test_nobody_ends_an_intent_before_the_restore_has_put_it_in_doubt(outbox):
    outbox.publish(guarantee="blind")
    outbox.publish("pay", guarantee="blind", scope="stream")
    [item] = outbox.enqueue(1)
    [head] = outbox.enqueue(1, target="pay", stream="s")
    begin(outbox)
    with refused("P7006"):
        outbox.call("operator", "cancel_intent", item, "ann", NOTE)
    with refused("P7006"):
        outbox.call("operator", "skip_stream_head", "pay", "s", head, "ann", NOTE)
    step(outbox)
    [row] = outbox.call("operator", "cancel_intent", item, "ann", NOTE)
    assert row["cancel_intent"] == "in_doubt"
    [row] = outbox.call("operator", "skip_stream_head", "pay", "s", head, "ann", NOTE)
    assert row["skip_stream_head"] == "in_doubt"


def test_claim_of_the_backup_ends_nothing_before_the_restore_has(outbox):
    """Its only attempt may have been made in the database that is lost."""
    outbox.publish(guarantee="lookup", retry_policy="one_shot")
    [intent_id] = outbox.enqueue(1)
    outbox.claim()
    outbox.expire_claims()
    begin(outbox)
    assert outbox.call("executor", "repair_expired_leases", 10, "worker-1") == []
    step(outbox)
    assert outbox.states(intent_id) == ["IN_DOUBT"]


def test_worker_that_still_has_a_claim_loses_it_to_the_restore(outbox):
    outbox.publish(guarantee="blind")
    [intent_id] = outbox.enqueue(1)
    claims = outbox.claim()
    restore(outbox)
    assert [row["verdict"] for row in outbox.begin(claims)] == ["lease_lost"]
    assert [row["verdict"] for row in outbox.complete(claims)] == ["lease_lost"]
    assert outbox.states(intent_id) == ["IN_DOUBT"]


def test_leader_that_still_has_the_lease_makes_no_call_for_what_is_in_doubt(outbox):
    outbox.publish(guarantee="blind", **SCOPES["cluster"])
    [intent_id] = outbox.enqueue(1)
    holder = take(outbox)
    restore(outbox)
    assert holder.begin([intent_id]) == ["not_due"]


def test_stream_goes_on_when_a_person_has_decided(outbox):
    outbox.publish("pay", guarantee="blind", scope="stream")
    first, second = outbox.enqueue(2, target="pay", stream="s")
    restore(outbox)
    assert claim_streams(outbox) == []
    for intent_id in (first, second):
        [row] = outbox.call(
            "operator", "resolve_intent", intent_id, "RETRYABLE", "ann", "was not sent"
        )
        assert row["resolve_intent"] == "resolved"
    [holder] = claim_streams(outbox)
    assert [head["intent_id"] for head in holder.heads] == [first]
    assert holder.begin([first]) == ["begun"]


def test_database_without_unfinished_intents_is_ready_after_one_step(outbox):
    assert [one["looked_at"] for one in restore(outbox)] == [0]
    outbox.publish()
    outbox.enqueue(1)
    assert len(outbox.claim()) == 1


def test_restore_in_the_middle_of_a_restore_begins_anew(outbox, database):
    outbox.publish(guarantee="blind")
    outbox.enqueue(3)
    begin(outbox)
    step(outbox, batch_size=2)
    database.owner_execute(
        "UPDATE leasehold.generations SET database_identity = 'system 1' WHERE generation_no = 2"
    )
    with refused("22023"):
        step(outbox)
    [seen] = outbox.call("executor", "begin_generation", "instance-1")
    assert not seen["is_ready"]  # an instance cannot end the operator's restore
    assert begin(outbox)["is_new"]
    assert step(outbox)["is_done"]
    assert len(outbox.claim()) == 0


@pytest.mark.parametrize("role", ["ingest", "executor", "readonly", "auditor"])
def test_only_operators_restore(outbox, role):
    with refused("42501"):
        outbox.call(role, "begin_restored_generation", "ann", NOTE)
    with refused("42501"):
        outbox.call(role, "repair_restored_intents", 10)


@pytest.mark.parametrize(
    ("operator", "note"), [(None, NOTE), ("", NOTE), ("ann", None), ("ann", "")]
)
def test_restore_without_a_name_or_note_is_refused(outbox, operator, note):
    with refused("22023"):
        begin(outbox, operator, note)

"""A deferred call had no effect and decides nothing: no attempt, no ledger row, no mark."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.lease_holder import claim_streams, take

pytestmark = pytest.mark.one_server

REFUSED = {
    "reason": "credentials_refused",
    "code": "401",
    "detail": "expired",
    "retry_after_seconds": 5,
}


def defer(outbox, claims, worker="worker-1", **fields):
    [recorded] = outbox.complete(claims, "DEFERRED", worker, **REFUSED | fields)
    assert recorded["verdict"] == "applied"
    return recorded


def row_of(outbox, intent_id):
    """What a deferral must leave as it was."""
    found = outbox.pending(intent_id)
    names = (
        "attempt_count",
        "last_state",
        "first_tried_at",
        "reference",
        "begun_at",
        "begun_epoch",
    )
    return {name: found[name] for name in (*names, "claimed_by", "lease_token", "asked_count")}


def seen(outbox, intent_id):
    [row] = outbox.database.execute(
        "SELECT status, reason, code, detail, attempts, deferred_since"
        "  FROM leasehold.intent_status WHERE intent_id = %s",
        [intent_id],
    )
    return row


@pytest.mark.parametrize("guarantee", ["keyed", "fenced", "lookup", "blind"])
def test_deferred_claim_leaves_the_intent_as_it_was_and_says_why(outbox, guarantee):
    outbox.publish(guarantee=guarantee)
    [intent_id] = outbox.enqueue(1)
    before = row_of(outbox, intent_id)
    claims = outbox.claim()
    outbox.begin(claims)
    recorded = defer(outbox, claims)
    assert (recorded["attempt_no"], recorded["state"]) == (0, None)
    assert row_of(outbox, intent_id) == before
    assert outbox.ledger(intent_id) == []
    shown = seen(outbox, intent_id)
    assert shown.pop("deferred_since") is not None
    assert shown == {
        "status": "pending",
        "reason": "credentials_refused",
        "code": "401",
        "detail": "expired",
        "attempts": 0,
    }
    pending = outbox.pending(intent_id)
    assert pending["due_at"] - pending["last_modified_at"] == timedelta(seconds=5)


def test_time_of_the_first_deferral_stays_while_nothing_else_happens(outbox):
    outbox.publish()
    [intent_id] = outbox.enqueue(1)
    defer(outbox, outbox.claim())
    first = outbox.pending(intent_id)["deferred_since"]
    for reason in ("access_refused", "balance_too_low"):
        outbox.make_due()
        defer(outbox, outbox.claim(), reason=reason, code=None)
        found = outbox.pending(intent_id)
        assert (found["deferred_since"], found["deferred_reason"]) == (first, reason)
        assert found["deferred_code"] is None
    outbox.make_due()
    outbox.complete(outbox.claim(), "RETRYABLE", reason="busy")
    found = outbox.pending(intent_id)
    assert [found[f"deferred_{name}"] for name in ("since", "reason", "code", "detail")] == [
        None
    ] * 4
    assert seen(outbox, intent_id)["reason"] == "busy"


def test_deferral_is_never_exhausted_by_attempts(outbox):
    outbox.publish(retry_policy="one_shot")
    [intent_id] = outbox.enqueue(1)
    for _ in range(25):
        outbox.make_due()
        defer(outbox, outbox.claim())
    outbox.make_due()
    outbox.complete(outbox.claim())
    assert outbox.states(intent_id) == ["DISPATCHED"]


@pytest.mark.parametrize(
    ("guarantee", "first"),
    [("fenced", "IN_DOUBT"), ("keyed", "IN_DOUBT"), ("keyed", "SUBMITTED"), ("keyed", "RETRYABLE")],
)
def test_what_an_earlier_attempt_left_stands_after_a_deferral(outbox, guarantee, first):
    outbox.publish(guarantee=guarantee)
    [intent_id] = outbox.enqueue(1)
    outbox.complete(outbox.claim(), first, reason="timeout")
    before = row_of(outbox, intent_id)
    outbox.make_due()
    claims = outbox.claim()
    outbox.begin(claims)
    defer(outbox, claims)
    assert row_of(outbox, intent_id) == before
    assert outbox.states(intent_id) == [first]
    assert seen(outbox, intent_id)["reason"] == "credentials_refused"


def test_deadline_alone_ends_a_deferred_intent(outbox):
    outbox.publish()
    [intent_id] = outbox.enqueue(1, deadline_seconds=3600)
    defer(outbox, outbox.claim(), retry_after_seconds=7200)
    assert outbox.status(intent_id) == "pending"  # an operator may mend the target before
    pass_deadlines(outbox)
    outbox.call("executor", "repair_missed_deadlines", 10, "reaper-1")
    [row] = outbox.ledger(intent_id)
    assert (row["state"], row["reason"]) == ("FAILED", "deadline_exceeded")
    assert outbox.status(intent_id) == "exhausted"


def test_dead_worker_leaves_the_claim_of_a_deferred_intent_to_repair_as_any(outbox):
    outbox.publish(guarantee="lookup")
    [intent_id] = outbox.enqueue(1)
    defer(outbox, outbox.claim())
    outbox.make_due()
    outbox.begin(outbox.claim())
    outbox.expire_claims()
    outbox.call("executor", "repair_expired_leases", 10, "reaper-1")
    assert outbox.states(intent_id) == ["IN_DOUBT"]
    assert outbox.pending(intent_id)["deferred_since"] is None


def test_deferred_intents_are_counted_with_the_age_of_the_oldest(outbox):
    outbox.publish()
    outbox.enqueue(3)
    claims = outbox.claim(batch_size=2)
    outbox.complete(claims, "DEFERRED", **REFUSED)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deferred_since = deferred_since - interval '1 hour'"
        " WHERE intent_id = %s",
        [claims[0]["intent_id"]],
    )
    counted = outbox.count_queue()
    assert counted["deferred"] == 2
    assert 3600 <= counted["oldest_deferred_seconds"] < 3700


# Scope cluster


def mark(leader, intent_id):
    [first, *_] = leader.call("mark_calls", *leader.fence, [intent_id], [1], 1, [True])
    assert first["left_out"] == []


def test_deferred_call_of_a_leader_loses_its_mark_in_the_same_write(outbox):
    outbox.publish(scope="cluster")
    leader = take(outbox)
    called, kept = outbox.enqueue(2)
    leader.call("mark_calls", *leader.fence, [called, kept], [1, 1], 1, [True, True])
    assert leader.record([called], "DEFERRED", **REFUSED) == ["applied"]
    assert seen(outbox, called)["reason"] == "credentials_refused"
    outbox.expire_lease(leader.lease_name)
    take(outbox, "holder-2")
    assert outbox.states(called) == []
    assert outbox.states(kept) == ["IN_DOUBT"]


def test_deferral_that_comes_late_leaves_the_mark_of_the_next_call(outbox):
    outbox.publish(scope="cluster")
    leader = take(outbox)
    [called] = outbox.enqueue(1)
    mark(leader, called)
    assert leader.record([called], "RETRYABLE", retry_after_seconds=0) == ["applied"]
    leader.call("mark_calls", *leader.fence, [called], [2], 1, [True])
    assert leader.record([called], "DEFERRED", attempt_no=1, **REFUSED) == ["superseded"]
    outbox.expire_lease(leader.lease_name)
    take(outbox, "holder-2")
    assert outbox.states(called) == ["RETRYABLE", "IN_DOUBT"]


def test_deferred_call_of_a_leader_can_be_cancelled(outbox):
    outbox.publish(scope="cluster")
    leader = take(outbox)
    [called] = outbox.enqueue(1)
    mark(leader, called)
    leader.record([called], "DEFERRED", **REFUSED)
    [row] = outbox.call("operator", "cancel_intent", called, "ann", "a test")
    assert row["cancel_intent"] == "cancelled"


@pytest.mark.every_server
def test_deferral_beside_an_operator_who_has_the_row_does_not_wait_for_the_marks(outbox):
    """The operator has the call marks too, and might wait for the row."""
    outbox.publish(scope="cluster")
    leader = take(outbox)
    [called] = outbox.enqueue(1)
    mark(leader, called)
    operator = outbox.database.connect("operator", autocommit=False)
    operator.execute("SELECT leasehold.cancel_intent(%s, 'ann', 'a test')", [called])
    outbox.as_role("executor").execute("SET lock_timeout = '10s'")
    assert leader.record([called], "DEFERRED", **REFUSED) == ["locked"]
    operator.rollback()
    assert leader.record([called], "DEFERRED", **REFUSED) == ["applied"]


@pytest.mark.parametrize("guarantee", ["lookup", "blind"])
def test_call_that_a_leader_began_and_deferred_is_not_in_doubt_after_a_takeover(outbox, guarantee):
    outbox.publish(scope="cluster", guarantee=guarantee)
    leader = take(outbox)
    [called] = outbox.enqueue(1)
    before = row_of(outbox, called)
    assert leader.begin([called]) == ["begun"]
    assert leader.record([called], "DEFERRED", **REFUSED) == ["applied"]
    assert row_of(outbox, called) == before
    outbox.expire_lease(leader.lease_name)
    take(outbox, "holder-2")
    assert outbox.states(called) == []


# Scope stream


def heads_of(rows):
    return [row["intent_id"] for row in rows if row["intent_id"]]


@pytest.mark.parametrize("guarantee", ["keyed", "lookup", "blind"])
def test_deferred_head_stays_head_and_its_stream_waits(outbox, guarantee):
    outbox.publish("pay", scope="stream", guarantee=guarantee)
    first, second = outbox.enqueue(2, "pay", stream="s")
    before = row_of(outbox, first)
    [holder] = claim_streams(outbox)
    assert holder.begin([first]) == ["begun"]
    [row] = holder.record_next([first], "DEFERRED", **REFUSED)
    assert (row["stream_state"], row["is_held"]) == ("waiting", False)
    assert row["wait_seconds"] == pytest.approx(5, abs=3)
    assert row_of(outbox, first) == before
    assert claim_streams(outbox) == []
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = clock_timestamp() WHERE intent_id = %s",
        [first],
    )
    [holder] = claim_streams(outbox, "holder-2")
    assert heads_of(holder.heads) == [first]
    holder.begin([first])
    assert heads_of(holder.record_next([first], "DISPATCHED")) == [second]
    assert outbox.states(first) == ["DISPATCHED"]


def test_stream_of_a_deferred_head_is_listed_with_the_reason(outbox):
    outbox.publish("pay", scope="stream")
    first, _ = outbox.enqueue(2, "pay", stream="s")
    [holder] = claim_streams(outbox)
    holder.begin([first])
    holder.record_next([first], "DEFERRED", **REFUSED)
    since = outbox.pending(first)["deferred_since"]
    [listed] = outbox.call("readonly", "read_blocked_streams", 10)
    [read] = outbox.call("readonly", "read_stream", "pay", "s")
    for row in (listed, read):
        assert (row["state"], row["head"], row["waiting"]) == ("deferred", first, 1)
        assert row["reason"] == "401 credentials_refused expired"
        assert row["blocked_since"] == since


def test_batch_whose_head_is_deferred_is_given_back_in_its_order(outbox):
    outbox.publish("pay", scope="stream", batch_max=3)
    ids = outbox.enqueue(3, "pay", stream="s")
    [holder] = claim_streams(outbox)
    assert holder.begin(ids) == ["begun"] * 3
    results = [
        {"intent_id": str(ids[0]), "state": "DEFERRED", **REFUSED},
        *(
            {"intent_id": str(one), "state": "DEFERRED", "retry_after_seconds": 0}
            for one in ids[1:]
        ),
    ]
    rows = holder.call("record_stream_attempts", *holder.fences, results)
    assert {row["verdict"] for row in rows if row["verdict"]} == {"applied"}
    assert [row["stream_state"] for row in rows if not row["verdict"]] == ["waiting"]
    assert [outbox.pending(one)["deferred_reason"] for one in ids] == [
        "credentials_refused",
        None,
        None,
    ]
    assert claim_streams(outbox) == []
    outbox.make_due()
    [holder] = claim_streams(outbox)
    assert heads_of(holder.heads) == ids


def test_pipeline_waits_for_a_deferred_head_and_goes_on_behind_what_is_submitted(outbox):
    outbox.publish("pay", scope="stream", guarantee="lookup", pipeline_max=3)
    ids = outbox.enqueue(3, "pay", stream="s")
    [holder] = claim_streams(outbox)
    holder.begin(ids[:1])
    rows = holder.record_next(ids[:1], "SUBMITTED", retry_after_seconds=60)
    assert heads_of(rows) == ids[1:2]
    holder.begin(ids[1:2])
    [row] = holder.record_next(ids[1:2], "DEFERRED", **REFUSED)
    assert row["stream_state"] == "waiting"
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = clock_timestamp() WHERE intent_id = %s",
        [ids[1]],
    )
    [holder] = claim_streams(outbox)
    assert heads_of(holder.heads) == ids[1:2]


def test_deadline_ends_the_deferred_head_of_a_stream_nobody_holds(outbox):
    outbox.publish("pay", scope="stream", on_failure="continue")
    first, second = outbox.enqueue(2, "pay", stream="s", deadline_seconds=3600)
    [holder] = claim_streams(outbox)
    holder.begin([first])
    holder.record_next([first], "DEFERRED", **REFUSED)
    pass_deadlines(outbox, first)
    outbox.call("executor", "repair_missed_deadlines", 10, "reaper-1")
    assert [row["reason"] for row in outbox.ledger(first)] == ["deadline_exceeded"]
    [holder] = claim_streams(outbox)
    assert heads_of(holder.heads) == [second]


def pass_deadlines(outbox, *ids):
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp() - interval '1 second'"
        " WHERE %s::uuid[] = '{}' OR intent_id = ANY (%s::uuid[])",
        [list(ids), list(ids)],
    )

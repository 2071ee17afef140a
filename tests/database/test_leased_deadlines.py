"""The reaper ends rows of scope cluster and stream that missed their deadline, and no call."""

from __future__ import annotations

import pytest

from tests.support.lease_holder import claim_streams, take

pytestmark = pytest.mark.one_server

REPAIR = "SELECT * FROM leasehold.repair_missed_deadlines(100, 'reaper')"
MARK = "SELECT * FROM leasehold.mark_calls(%s, %s, %s, %s::uuid[], %s::integer[], 1)"
CLAIM_STREAMS = "SELECT * FROM leasehold.claim_streams(1, 'holder-1', 30, 150, '{pay}')"
BEGIN = "SELECT * FROM leasehold.begin_leased_attempts(%s, %s, %s, %s::uuid[])"


@pytest.fixture
def targets(outbox):
    outbox.publish(scope="cluster")
    outbox.publish("bank", scope="cluster", guarantee="lookup")
    outbox.publish("pay", scope="stream", guarantee="lookup")
    return outbox


def miss_deadlines(outbox):
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp()"
        " WHERE deadline_at IS NOT NULL"
    )


def mark(holder, calls, mark_no=1):
    """Mark calls, given with their attempt numbers; return those that were left out."""
    rows = holder.call("mark_calls", *holder.fence, list(calls), list(calls.values()), mark_no)
    return rows[0]["left_out"]


def repair(outbox):
    miss_deadlines(outbox)
    return {row["intent_id"] for row in outbox.as_role("executor").execute(REPAIR)}


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("target", ["sms", "bank"])
def test_row_that_its_holder_does_not_serve_ends_at_its_deadline(targets, target, is_held):
    missed = targets.enqueue(2, target, deadline_seconds=600)
    in_time = targets.enqueue(1, target, deadline_seconds=600)
    endless = targets.enqueue(1, target)
    if is_held:
        take(targets)
    targets.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp()"
        " WHERE intent_id = ANY (%s)",
        [missed],
    )
    rows = targets.call("executor", "repair_missed_deadlines", 10, "reaper")
    assert {row["intent_id"] for row in rows} == set(missed)
    for intent_id in missed:
        [row] = targets.ledger(intent_id)
        assert (row["state"], row["reason"], row["holder"]) == (
            "FAILED",
            "deadline_exceeded",
            "reaper",
        )
        assert targets.status(intent_id) == "exhausted"
    assert {targets.status(one) for one in [*in_time, *endless]} == {"pending"}


def test_call_that_may_be_in_flight_is_not_ended_by_its_deadline(targets):
    [marked, waiting] = targets.enqueue(2, "sms", deadline_seconds=600)
    [begun] = targets.enqueue(1, "bank", deadline_seconds=600)
    [head, behind] = targets.enqueue(2, "pay", deadline_seconds=600, stream="s")
    leader = take(targets)
    assert mark(leader, {marked: 1}) == []
    assert leader.begin([begun]) == ["begun"]
    [holder] = claim_streams(targets)
    assert holder.begin([head]) == ["begun"]
    assert repair(targets) == {waiting}
    # Nor after the death of the holders, until somebody takes over and puts the calls in doubt.
    for lease_name in (leader.lease_name, holder.lease_name):
        targets.expire_lease(lease_name)
    assert repair(targets) == set()
    take(targets, "holder-2")
    claim_streams(targets, "holder-2")
    assert repair(targets) == set()
    assert {targets.status(one) for one in (marked, begun, head)} == {"in_doubt"}
    assert targets.status(behind) == "pending"


def test_row_whose_marked_call_has_been_recorded_ends_at_its_deadline(targets):
    [intent_id] = targets.enqueue(1, "sms", deadline_seconds=600)
    leader = take(targets)
    assert mark(leader, {intent_id: 1}) == []
    assert repair(targets) == set()
    # A retry, with the deadline still ahead.
    targets.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp() + interval '1 hour'"
    )
    assert leader.record([intent_id], "RETRYABLE") == ["applied"]
    assert repair(targets) == {intent_id}


@pytest.mark.parametrize("state", ["IN_DOUBT", "SUBMITTED"])
def test_doubt_under_a_lease_outlives_the_deadline(targets, state):
    ids = targets.enqueue(1, "bank", deadline_seconds=600)
    leader = take(targets)
    assert leader.begin(ids) == ["begun"]
    assert leader.record(ids, state) == ["applied"]
    assert repair(targets) == set()


def test_leader_that_marks_or_records_a_row_that_was_ended_is_told(targets):
    [keyed] = targets.enqueue(1, "sms", deadline_seconds=600)
    [lookup] = targets.enqueue(1, "bank", deadline_seconds=600)
    leader = take(targets)
    assert {row["intent_id"] for row in leader.window(targets=["sms", "bank"])} == {keyed, lookup}
    assert repair(targets) == {keyed, lookup}
    assert mark(leader, {keyed: 1}) == [keyed]
    assert leader.begin([lookup]) == ["already_terminal"]
    assert leader.record([keyed, lookup], "FAILED") == ["already_terminal"] * 2
    assert targets.states(keyed) == targets.states(lookup) == ["FAILED"]
    leader.renew()  # it still leads


@pytest.mark.every_server
def test_reaper_does_not_wait_for_a_leader_that_is_marking_and_leaves_its_rows(targets, database):
    ids = targets.enqueue(2, "sms", deadline_seconds=600)
    others = targets.enqueue(1, "pay", deadline_seconds=600, stream="s")
    leader = take(targets)
    miss_deadlines(targets)
    marking, reaper = database.session("executor"), database.session("executor")
    marking.run("BEGIN")
    marking.run(MARK, [*leader.fence, ids[:1], [1]])
    assert [row["intent_id"] for row in reaper.run(REPAIR)] == others
    marking.run("COMMIT")
    assert [row["intent_id"] for row in reaper.run(REPAIR)] == ids[1:]


@pytest.mark.every_server
def test_leader_that_marks_while_the_reaper_ends_a_row_makes_no_call(targets, database):
    [intent_id] = targets.enqueue(1, "sms", deadline_seconds=600)
    leader = take(targets)
    miss_deadlines(targets)
    marking, reaper = database.session("executor"), database.session("executor")
    reaper.run("BEGIN")
    assert len(reaper.run(REPAIR)) == 1
    waiting = marking.start(MARK, [*leader.fence, [intent_id], [1]])
    waiting.assert_blocked()
    reaper.run("COMMIT")
    [first] = waiting.result()
    assert first["left_out"] == [intent_id]


@pytest.mark.every_server
def test_leader_and_reaper_that_meet_at_a_begin_do_not_both_act(targets, database):
    ids = targets.enqueue(1, "bank", deadline_seconds=600)
    holder = take(targets)
    miss_deadlines(targets)
    beginning, reaper = database.session("executor"), database.session("executor")
    beginning.run("BEGIN")
    assert beginning.run(BEGIN, [*holder.fence, ids])[0]["verdict"] == "begun"
    assert reaper.run(REPAIR) == []
    beginning.run("ROLLBACK")
    reaper.run("BEGIN")
    assert len(reaper.run(REPAIR)) == 1
    assert beginning.run(BEGIN, [*holder.fence, ids])[0]["verdict"] == "locked"
    reaper.run("COMMIT")
    assert beginning.run(BEGIN, [*holder.fence, ids])[0]["verdict"] == "already_terminal"


def test_head_of_a_stream_ends_at_its_deadline_and_the_next_row_follows(targets):
    targets.publish("pay", scope="stream", guarantee="lookup", on_failure="continue")
    late, later, last = targets.enqueue(3, "pay", stream="s", deadline_seconds=600)
    [other] = targets.enqueue(1, "pay", stream="t", deadline_seconds=600)
    [holder] = claim_streams(targets, streams_max=1)
    # A holder ends its head itself, and nothing ends before the head does.
    assert [row["intent_id"] for row in holder.heads] == [late]
    assert repair(targets) == {other}
    assert holder.release()
    assert [repair(targets) for _ in range(4)] == [{late}, {later}, {last}, set()]


def test_missed_deadline_of_a_head_blocks_its_stream_if_the_contract_says_so(targets):
    late, following = targets.enqueue(2, "pay", stream="s", deadline_seconds=600)
    assert repair(targets) == {late}
    assert repair(targets) == set()
    assert targets.status(following) == "pending"
    assert claim_streams(targets) == []


@pytest.mark.every_server
def test_reaper_leaves_a_stream_whose_holder_is_being_chosen(targets, database):
    targets.enqueue(1, "pay", stream="s", deadline_seconds=600)
    miss_deadlines(targets)
    claimer, reaper = database.session("executor"), database.session("executor")
    claimer.run("BEGIN")
    assert len(claimer.run(CLAIM_STREAMS)) == 1
    assert reaper.run(REPAIR) == []
    claimer.run("ROLLBACK")
    assert len(reaper.run(REPAIR)) == 1


def test_marks_that_nobody_ends_do_not_keep_the_reaper_from_other_leases(targets):
    """The first rows by deadline are calls of a leader that died and that nobody replaces."""
    targets.publish("other", scope="cluster", lease_name="another-executor")
    dead = targets.enqueue(20, "sms", deadline_seconds=600)
    assert mark(take(targets), dict.fromkeys(dead, 1)) == []
    miss_deadlines(targets)
    others = targets.enqueue(3, "other", deadline_seconds=600)
    targets.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp() WHERE target = 'other'"
    )
    rows = targets.call("executor", "repair_missed_deadlines", 5, "reaper")
    assert {row["intent_id"] for row in rows} == set(others)

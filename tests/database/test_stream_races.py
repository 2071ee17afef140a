"""Holders, enqueuers and operators of one stream meet: nothing gets stuck, nothing runs twice.

The one difficult meeting: an enqueuer is open and saw the head, which is finished meanwhile. Its
row will not be claimable by itself. Whoever finishes the head must not wait for the enqueuer and
must not call the stream drained. test_stream_stress has many of them at once.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.support.lease_holder import claim_streams
from tests.support.mutants import mutate
from tests.support.outbox import FLAT

ENQUEUE = "SELECT * FROM leasehold.enqueue_intents(%s)"
CLAIM = "SELECT * FROM leasehold.claim_streams(10, %s, 30, 150, '{pay}')"
RECORD = f"SELECT {FLAT} FROM leasehold.record_stream_attempts(%s, %s, %s, %s) AS told"
CANCEL = "SELECT leasehold.cancel_intent(%s, 'ada', 'not wanted')"


@pytest.fixture
def streams(outbox):
    outbox.publish("pay", scope="stream", guarantee="lookup")
    return outbox


def entry(stream="s", payload=1):
    return json.dumps([{"target": "pay", "payload": payload, "stream": stream}])


def open_enqueuer(database, stream="s", level="READ COMMITTED"):
    """Enqueue in a transaction that stays open; return the session and the id."""
    session = database.session("ingest")
    session.run(f"BEGIN ISOLATION LEVEL {level}")
    [row] = session.run(ENQUEUE, [entry(stream)])
    return session, row["intent_id"]


def heads_of(rows):
    return [row["intent_id"] for row in rows if row["intent_id"]]


def in_flight(streams, name="holder-1"):
    """Enqueue one row, claim its stream and begin the call."""
    [head] = streams.enqueue(target="pay", stream="s")
    [holder] = claim_streams(streams, name)
    assert holder.begin([head]) == ["begun"]
    return holder, head


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_finisher_keeps_a_stream_whose_enqueuer_is_open_and_looks_again(streams, database, end):
    holder, head = in_flight(streams)
    enqueuer, following = open_enqueuer(database)
    [row] = holder.record_next([head], "DISPATCHED")
    assert (row["stream_state"], row["is_held"]) == ("recheck", True)
    [row] = holder.look()
    assert row["stream_state"] == "recheck"
    assert claim_streams(streams, "holder-2") == []
    enqueuer.run(end)
    [row] = holder.look(free_idle=True)
    if end == "COMMIT":
        assert (row["stream_state"], row["intent_id"]) == ("ready", following)
        assert holder.begin([following]) == ["begun"]
    else:
        assert (row["stream_state"], row["is_held"]) == ("drained", False)
        assert claim_streams(streams, "holder-2") == []


def test_mutant_that_does_not_look_twice_leaves_the_row_of_an_open_enqueuer_stuck(
    streams, database
):
    mutate(database, "lock_settled_streams", r"FOR SHARE OF s SKIP LOCKED", "")
    holder, head = in_flight(streams)
    enqueuer, following = open_enqueuer(database)
    [row] = holder.record_next([head], "DISPATCHED")
    assert (row["stream_state"], row["is_held"]) == ("drained", False)
    enqueuer.run("COMMIT")
    assert claim_streams(streams, "holder-2") == []
    assert streams.status(following) == "pending"


def row_committed_before_the_lock(streams, database):
    """Let an enqueuer commit after the finisher saw no head, and before it locks the stream.

    Return the id of the row, and what the finisher is told.
    """
    wait = "PERFORM pg_catalog.pg_advisory_xact_lock(1);\n  RETURN (\n"
    mutate(database, "lock_settled_streams", r"RETURN \(\n", wait)
    holder, head = in_flight(streams)
    enqueuer, following = open_enqueuer(database)
    pause, finisher = database.session(), database.session("executor")
    pause.run("BEGIN")
    pause.run("SELECT pg_catalog.pg_advisory_xact_lock(1)")
    result = json.dumps([{"intent_id": str(head), "state": "DISPATCHED"}])
    recording = finisher.start(RECORD, [*holder.fences, result])
    recording.assert_blocked()
    enqueuer.run("COMMIT")
    pause.run("COMMIT")
    return following, recording.result()[-1]


def test_row_that_is_committed_before_the_stream_is_locked_is_the_next_head(streams, database):
    following, told = row_committed_before_the_lock(streams, database)
    assert (told["stream_state"], told["intent_id"]) == ("ready", following)


def test_mutant_that_locks_and_looks_in_one_statement_leaves_such_a_row_stuck(streams, database):
    """A STABLE function sees what its calling statement sees, which is older than the lock."""
    settled = "leasehold.lock_settled_streams(p_lease_names)"
    mutate(database, "advance_streams", rf" := {re.escape(settled)};", ";")
    mutate(database, "advance_streams", "v_enqueued_to, p_free_idle", f"{settled}, p_free_idle")
    following, told = row_committed_before_the_lock(streams, database)
    assert (told["stream_state"], told["is_held"]) == ("drained", False)
    assert claim_streams(streams, "holder-2") == []
    assert streams.status(following) == "pending"


@pytest.mark.parametrize("how", ["dies", "releases"])
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_stream_whose_holder_leaves_before_it_could_recheck_is_found(streams, database, how, end):
    holder, head = in_flight(streams)
    enqueuer, following = open_enqueuer(database)
    assert holder.record([head], "DISPATCHED") == ["applied"]
    if how == "dies":
        streams.expire_lease(holder.lease_name)
    else:
        assert holder.release()
    # Whoever takes it meets the same enqueuer, and keeps it too.
    [successor] = claim_streams(streams, "holder-2")
    assert (successor.epoch, successor.heads) == (2, ())
    enqueuer.run(end)
    if how == "dies":
        streams.expire_lease(holder.lease_name)
        found = claim_streams(streams, "holder-3")
        assert [heads_of(one.heads) for one in found] == ([[following]] if end == "COMMIT" else [])
    else:
        rows = successor.look(free_idle=True)
        assert heads_of(rows) == ([following] if end == "COMMIT" else [])
        assert [row["is_held"] for row in rows] == [end == "COMMIT"]


def end_pause(database):
    """Let the time of a pause pass."""
    database.owner_execute(
        "UPDATE leasehold.outbox_pending p SET due_at = clock_timestamp() FROM leasehold.leases l"
        " WHERE p.lease_name = l.lease_name AND p.due_at = l.paused_until"
    )
    for table in ("leases", "stream_pauses"):
        database.owner_execute(f"UPDATE leasehold.{table} SET paused_until = clock_timestamp()")


@pytest.mark.parametrize("how", ["on_failure", "operator"])
def test_stream_whose_enqueuer_was_open_goes_on_after_a_pause_for_a_time(streams, database, how):
    streams.publish("pay", scope="stream", on_failure="block_for", block_seconds=600)
    holder, head = in_flight(streams)
    enqueuer, following = open_enqueuer(database)
    if how == "operator":
        streams.call("operator", "pause_stream", "pay", "s", "ada", "wait", 600)
    [row] = holder.record_next([head], "FAILED" if how == "on_failure" else "DISPATCHED")
    assert (row["stream_state"], row["is_held"]) == ("recheck", True)
    enqueuer.run("COMMIT")
    [row] = holder.look(free_idle=True)
    assert (row["stream_state"], row["is_held"]) == ("paused", False)
    assert claim_streams(streams, "holder-2") == []
    end_pause(database)
    [successor] = claim_streams(streams, "holder-2")
    assert heads_of(successor.heads) == [following]


@pytest.mark.parametrize("then", ["shorter", "resumed"])
def test_pause_that_replaces_a_longer_one_does_not_last_as_long(streams, database, then):
    streams.enqueue(target="pay", stream="s")
    for seconds in (3600, 60 if then == "shorter" else None):
        streams.call("operator", "pause_stream", "pay", "s", "ada", "wait", seconds)
    if then == "shorter":
        end_pause(database)
    else:
        streams.call("operator", "resume_stream", "pay", "s", "ada", "go on")
    assert len(claim_streams(streams)) == 1


def test_enqueuer_that_comes_after_the_look_waits_and_makes_its_row_the_head(streams, database):
    holder, head = in_flight(streams)
    finisher, enqueuer = database.session("executor"), database.session("ingest")
    finisher.run("BEGIN")
    result = json.dumps([{"intent_id": str(head), "state": "DISPATCHED"}])
    rows = finisher.run(RECORD, [*holder.fences, result])
    assert [row["stream_state"] for row in rows] == [None, "drained"]
    waiting = enqueuer.start(ENQUEUE, [entry()])
    waiting.assert_blocked()
    finisher.run("COMMIT")
    [row] = waiting.result()
    [successor] = claim_streams(streams, "holder-2")
    assert heads_of(successor.heads) == [row["intent_id"]]


def test_enqueuer_that_enqueues_before_and_after_the_finisher_keeps_its_order(streams, database):
    holder, head = in_flight(streams)
    enqueuer, first = open_enqueuer(database)
    holder.record_next([head], "DISPATCHED")
    [row] = enqueuer.run(ENQUEUE, [entry()])
    second = row["intent_id"]
    enqueuer.run("COMMIT")
    assert heads_of(holder.look()) == [first]
    assert holder.begin([first]) == ["begun"]
    assert heads_of(holder.record_next([first], "DISPATCHED")) == [second]


def test_open_enqueuer_of_a_new_stream_is_in_nobodys_way(streams, database):
    """Neither another enqueuer, nor a claim of other streams, nor an operator waits."""
    enqueuer, _ = open_enqueuer(database, "new")
    streams.enqueue(target="pay", stream="other")
    [holder] = claim_streams(streams)
    [head] = heads_of(holder.heads)
    assert holder.begin([head]) == ["begun"]
    [row] = holder.record_next([head], "DISPATCHED")
    assert row["stream_state"] == "drained"
    enqueuer.run("COMMIT")
    assert [one.stream for one in claim_streams(streams, "holder-2")] == ["new"]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_row_of_an_open_enqueuer_is_found_after_an_operator_cancelled_the_head(
    streams, database, end
):
    [head] = streams.enqueue(target="pay", stream="s")
    enqueuer, following = open_enqueuer(database)
    streams.call("operator", "cancel_intent", head, "ada", "not wanted")
    enqueuer.run(end)
    found = claim_streams(streams)
    assert [heads_of(one.heads) for one in found] == ([[following]] if end == "COMMIT" else [])


def test_two_operators_who_cancel_neighbours_do_not_deadlock(streams, database):
    ids = streams.enqueue(3, "pay", stream="s")
    first, second = database.session("operator"), database.session("operator")
    first.run("BEGIN")
    assert first.run(CANCEL, [ids[0]]) == [{"cancel_intent": "cancelled"}]
    waiting = second.start(CANCEL, [ids[1]])
    waiting.assert_blocked()
    first.run("COMMIT")
    assert waiting.result() == [{"cancel_intent": "cancelled"}]
    [holder] = claim_streams(streams)
    assert heads_of(holder.heads) == ids[2:]


def test_operator_and_finisher_of_one_stream_do_not_deadlock(streams, database):
    holder, head = in_flight(streams)
    following = streams.enqueue(2, "pay", stream="s")
    operator, finisher = database.session("operator"), database.session("executor")
    operator.run("BEGIN")
    operator.run(CANCEL, [following[0]])
    result = json.dumps([{"intent_id": str(head), "state": "DISPATCHED"}])
    waiting = finisher.start(RECORD, [*holder.fences, result])
    waiting.assert_blocked()
    operator.run(CANCEL, [head])  # in flight: refused, not waited for
    operator.run("COMMIT")
    assert heads_of(row for row in waiting.result() if not row["verdict"]) == following[1:]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_enqueuer_with_an_old_snapshot_does_not_get_stuck(streams, database, level):
    """It still sees the head that was finished since, so it would wait behind nothing."""
    holder, head = in_flight(streams)
    session = database.session("ingest")
    session.run(f"BEGIN ISOLATION LEVEL {level}")
    session.run("SELECT count(*) FROM leasehold.contracts")
    assert holder.record_next([head], "DISPATCHED")[0]["stream_state"] == "drained"
    [row] = session.run(ENQUEUE, [entry()])
    session.run("COMMIT")
    [successor] = claim_streams(streams, "holder-2")
    assert heads_of(successor.heads) == [row["intent_id"]]


def test_mutant_that_trusts_an_old_snapshot_gets_stuck(streams, database):
    mutate(database, "idle_streams", r"<> 'read committed'", "= 'none'")
    holder, head = in_flight(streams)
    session = database.session("ingest")
    session.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
    session.run("SELECT count(*) FROM leasehold.contracts")
    holder.record_next([head], "DISPATCHED")
    session.run(ENQUEUE, [entry()])
    session.run("COMMIT")
    assert claim_streams(streams, "holder-2") == []


def test_row_of_an_old_snapshot_overtakes_nothing_and_loses_its_mark(streams, database):
    holder, head = in_flight(streams)
    session, following = open_enqueuer(database, level="REPEATABLE READ")
    session.run("COMMIT")
    assert streams.pending(following)["is_claimable"]
    # Held: neither another claimer nor the holder gets it.
    assert claim_streams(streams, "holder-2") == claim_streams(streams, "holder-1") == []
    [row] = holder.record_next([head], "RETRYABLE", retry_after_seconds=600)
    assert row["stream_state"] == "waiting"
    # Free, and its head waits for a retry.
    assert claim_streams(streams, "holder-2") == []
    assert not streams.pending(following)["is_claimable"]
    assert streams.pending(head)["is_claimable"]


def test_row_that_was_claimable_while_its_stream_was_held_is_due_when_free(streams, database):
    """Meanwhile other claimers have passed its due time, and will not look there again."""
    holder, head = in_flight(streams)
    session, following = open_enqueuer(database, level="REPEATABLE READ")
    session.run("COMMIT")
    assert streams.pending(following)["is_claimable"]
    [passed] = database.execute("SELECT clock_timestamp() AS until")
    results = json.dumps([{"intent_id": str(head), "state": "DISPATCHED"}])
    streams.call("executor", "record_stream_attempts", *holder.fences, results, [])
    row = streams.pending(following)
    assert row["is_claimable"]
    assert row["due_at"] > passed["until"]


def test_mutant_that_claims_held_streams_takes_one_from_a_live_holder(streams, database):
    mutate(database, "claim_streams", r"AND l\.expires_at <= v_now\n", "\n")
    mutate(database, "take_streams", r"l\.expires_at <= v_now\s+AND \(.*?stream\)\)", "true")
    _, head = in_flight(streams)
    session, _ = open_enqueuer(database, level="REPEATABLE READ")
    session.run("COMMIT")
    claim_streams(streams, "holder-2")
    assert streams.states(head) == ["IN_DOUBT"], "two holders work on one stream"


def test_claimer_that_meets_another_one_takes_nothing_and_does_not_wait(streams, database):
    streams.enqueue(target="pay", stream="s")
    first, second = database.session("executor"), database.session("executor")
    first.run("BEGIN")
    assert len(first.run(CLAIM, ["holder-1"])) == 1
    assert second.run(CLAIM, ["holder-2"]) == []
    first.run("ROLLBACK")
    [row] = second.run(CLAIM, ["holder-2"])
    assert row["lease_epoch"] == 1


def test_one_lost_stream_does_not_fail_the_results_of_the_others(streams):
    ids = {}
    for name in ("kept", "lost"):
        [ids[name]] = streams.enqueue(target="pay", stream=name)
    [following] = streams.enqueue(target="pay", stream="kept")
    held = {one.stream: one for one in claim_streams(streams)}
    names = [held[name].lease_name for name in ids]
    call = ("holder-1", names, [1, 1])
    streams.call("executor", "begin_stream_attempts", *call, list(ids.values()))
    streams.expire_lease(held["lost"].lease_name)
    claim_streams(streams, "holder-2")
    results = [{"intent_id": str(one), "state": "DISPATCHED"} for one in ids.values()]
    rows = streams.call("executor", "record_stream_attempts", *call, json.dumps(results))
    verdicts = {row["intent_id"]: row["verdict"] for row in rows if row["verdict"]}
    assert verdicts == {ids["kept"]: "applied", ids["lost"]: "lease_lost"}
    states = {row["lease_name"]: row["stream_state"] for row in rows if row["stream_state"]}
    assert states == dict(zip(names, ("ready", "lease_lost"), strict=True))
    rows = streams.call(
        "executor", "begin_stream_attempts", *call, [following, ids["lost"], ids["kept"]]
    )
    assert {row["intent_id"]: row["verdict"] for row in rows} == {
        following: "begun",
        ids["lost"]: "lease_lost",
        ids["kept"]: "already_terminal",
    }
    assert streams.states(ids["lost"]) == ["IN_DOUBT"]


def locked_row(database, intent_id):
    """Lock a pending row in a transaction that stays open, as a person may do."""
    session = database.session("owner")
    session.run("BEGIN")
    session.run("SELECT FROM leasehold.outbox_pending WHERE intent_id = %s FOR UPDATE", [intent_id])
    return session


def test_result_is_recorded_although_somebody_has_locked_the_next_head(streams, database):
    holder, head = in_flight(streams)
    [following] = streams.enqueue(target="pay", stream="s")
    person = locked_row(database, following)
    rows = database.session("executor").run(
        f"SELECT {FLAT} FROM leasehold.record_stream_attempts(%s, %s, %s, %s, NULL, true, true)"
        " AS told",
        [*holder.fences, json.dumps([{"intent_id": str(head), "state": "DISPATCHED"}])],
    )
    assert [row["verdict"] for row in rows] == ["applied", None]
    assert (rows[1]["stream_state"], rows[1]["is_held"]) == ("recheck", True)
    assert heads_of(rows[1:]) == []
    person.run("ROLLBACK")
    [row] = holder.look()
    assert (row["stream_state"], row["intent_id"]) == ("ready", following)
    assert holder.begin([following]) == ["begun"]


def test_batch_ends_before_a_row_that_somebody_has_locked(streams, database):
    streams.publish("pay", scope="stream", guarantee="lookup", batch_max=3)
    ids = streams.enqueue(3, target="pay", stream="s")
    person = locked_row(database, ids[2])
    claim = (
        "SELECT * FROM leasehold.claim_streams(10, 'holder-1', 30, 150, '{pay}', NULL, NULL, true)"
    )
    assert heads_of(database.session("executor").run(claim)) == ids[:2]
    person.run("ROLLBACK")


@pytest.mark.parametrize("how", ["dies", "releases"])
def test_stream_that_is_given_up_while_its_head_is_locked_is_found(streams, database, how):
    [head] = streams.enqueue(target="pay", stream="s")
    [holder] = claim_streams(streams)
    person = locked_row(database, head)
    if how == "dies":
        streams.expire_lease(holder.lease_name)
    else:
        assert holder.release()
    person.run("ROLLBACK")
    [successor] = claim_streams(streams, "holder-2")
    assert heads_of(successor.heads) == [head]


def test_claim_of_a_stream_whose_head_is_locked_takes_nothing_of_it(streams, database):
    [head] = streams.enqueue(target="pay", stream="s")
    person = locked_row(database, head)
    assert database.session("executor").run(CLAIM, ["holder-1"]) == []
    person.run("ROLLBACK")
    [holder] = claim_streams(streams, "holder-2")
    assert (holder.epoch, heads_of(holder.heads)) == (1, [head])


def test_call_of_the_dead_whose_row_is_locked_hides_no_other_from_a_claim_of_one_stream(
    streams, database
):
    ids = [streams.enqueue(target="pay", stream=name)[0] for name in ("locked", "other")]
    for holder in claim_streams(streams, "dead"):
        holder.begin([head["intent_id"] for head in holder.heads])
    for name in ("locked", "other"):  # the first of the line is the first to expire
        streams.expire_lease(f"stream/pay/{name}")
    person = locked_row(database, ids[0])
    for _ in range(2):
        claim_streams(streams, "holder-2", streams_max=1)
    assert [streams.states(one) for one in ids] == [[], ["IN_DOUBT"]]
    person.run("ROLLBACK")
    claim_streams(streams, "holder-2", streams_max=1)
    assert [streams.states(one) for one in ids] == [["IN_DOUBT"], ["IN_DOUBT"]]


def test_expired_stream_that_cannot_be_taken_leaves_its_place_to_another(streams, database):
    """Somebody has locked the row of its call in flight, so nobody can put that in doubt."""
    ids = {}
    for name in ("first", "second"):
        [ids[name]] = streams.enqueue(target="pay", stream=name)
    held = {one.stream: one for one in claim_streams(streams)}
    expire = (
        "UPDATE leasehold.leases SET expires_at = clock_timestamp() - make_interval(secs => %s),"
        "  grace_expires_at = clock_timestamp() - interval '1 second' WHERE lease_name = %s"
    )
    for name, seconds in (("first", 20), ("second", 10)):
        assert held[name].begin([ids[name]]) == ["begun"]
        database.owner_execute(expire, [seconds, held[name].lease_name])
    person = locked_row(database, ids["first"])
    call = ("executor", "claim_streams", 1, "holder-2", 30, 150, ["pay"])
    assert [(row["stream"], row["is_taken_over"]) for row in streams.call(*call)] == [
        ("second", True)
    ]
    person.run("ROLLBACK")
    assert [(row["stream"], row["is_taken_over"]) for row in streams.call(*call)] == [
        ("first", True)
    ]

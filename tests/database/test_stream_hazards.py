"""Hazards of the functions that holders of streams call, each with its naive form as a mutant.

Elsewhere: the second look and the lease check of a claim in test_stream_races, SKIP LOCKED in
test_locked_rows, enqueuers of several streams in test_hazards_order.
"""

from __future__ import annotations

import json
import time

import psycopg
import pytest

from tests.support.lease_holder import claim_streams
from tests.support.mutants import mutate
from tests.support.outbox import FLAT

RECORD = f"SELECT {FLAT} FROM leasehold.record_stream_attempts(%s, %s, %s, %s) AS told"
BEGIN = "SELECT * FROM leasehold.begin_stream_attempts(%s, %s, %s, %s)"
REFRESH = "SELECT * FROM leasehold.refresh_streams(%s, %s, %s)"
RELEASE = "SELECT * FROM leasehold.release_streams(%s, %s, %s)"


@pytest.fixture
def streams(outbox):
    outbox.publish("pay", scope="stream")
    return outbox


def in_flight(streams, stream="s", name="holder-1"):
    """Enqueue one row, claim its stream and begin the call."""
    [head] = streams.enqueue(target="pay", stream=stream)
    [holder] = claim_streams(streams, name)
    assert holder.begin([head]) == ["begun"]
    return holder, head


def dispatched(*intent_ids):
    return json.dumps([{"intent_id": str(one), "state": "DISPATCHED"} for one in intent_ids])


# Lock first, then read the clock.

# The call, and which functions read the clock for it.
CLOCKS = {
    "record": (RECORD, ["lock_held_streams", "record_stream_attempts"]),
    "begin": (BEGIN, ["lock_held_streams", "begin_stream_attempts"]),
    "release": (RELEASE, ["lock_held_streams"]),
}


ALLOWED = {"record": "applied", "begin": "begun", "release": "released"}


def read_the_clock_first(database, functions):
    for function in functions:
        mutate(database, function, r"v_now timestamptz;", "v_now timestamptz := clock_timestamp();")
        mutate(database, function, r"\n\s+v_now := clock_timestamp\(\);", "")


def verdict_after_a_wait(streams, database, call):
    """The lease expires while the holder waits for its row; return what it is told then."""
    if call == "begin":
        [head] = streams.enqueue(target="pay", stream="s")
        [holder] = claim_streams(streams)
    else:
        holder, head = in_flight(streams)
    arguments = [*holder.fences]
    if call in ("record", "begin"):
        arguments.append(dispatched(head) if call == "record" else [head])
    soon = "clock_timestamp() + interval '500 ms'"
    database.owner_execute(
        f"UPDATE leasehold.leases SET expires_at = {soon}, grace_expires_at = {soon}"
    )
    blocker, waiting = database.session(), database.session("executor")
    blocker.run("BEGIN")
    blocker.run("SELECT FROM leasehold.leases FOR UPDATE")
    write = waiting.start(CLOCKS[call][0], arguments)
    write.assert_blocked()
    expired = "SELECT 1 FROM leasehold.leases WHERE grace_expires_at < clock_timestamp()"
    while not database.execute(expired):
        time.sleep(0.01)
    blocker.run("COMMIT")
    return next(row["verdict"] for row in write.result() if row["verdict"])


@pytest.mark.parametrize("call", CLOCKS)
def test_holder_whose_lease_expires_while_it_waits_for_its_row_is_refused(streams, database, call):
    assert verdict_after_a_wait(streams, database, call) == "lease_lost"


@pytest.mark.one_server
@pytest.mark.parametrize("call", CLOCKS)
def test_mutant_that_reads_the_clock_before_the_lock_lets_a_late_holder_act(
    streams, database, call
):
    read_the_clock_first(database, CLOCKS[call][1])
    told = verdict_after_a_wait(streams, database, call)
    assert told == ALLOWED[call]


# The epoch is the one that was granted.


def restarted(streams):
    """A holder that claims its stream again under its old name; return its first life."""
    former, head = in_flight(streams, name="same")
    streams.expire_lease(former.lease_name)
    claim_streams(streams, "same")
    assert streams.states(head) == ["IN_DOUBT"]
    streams.make_due()
    [successor] = claim_streams(streams, "same")
    assert successor.epoch > former.epoch
    return former, head


def test_holder_that_comes_back_under_its_old_name_cannot_use_its_old_epoch(streams):
    former, head = restarted(streams)
    assert former.record([head], "DISPATCHED") == ["lease_lost"]
    assert not former.release()
    assert streams.states(head) == ["IN_DOUBT"]


def test_holder_that_reads_its_epoch_again_adopts_the_one_of_its_successor(streams, database):
    former, head = restarted(streams)
    [lease] = database.execute(
        "SELECT lease_epoch FROM leasehold.leases WHERE holder_id = 'same' AND stream = 's'"
    )
    naive = (former.name, [former.lease_name], [lease["lease_epoch"]])
    rows = streams.call("executor", "record_stream_attempts", *naive, dispatched(head))
    assert [row["verdict"] for row in rows if row["verdict"]] == ["applied"]
    assert streams.states(head) == ["IN_DOUBT", "DISPATCHED"], "a result of the first life"


@pytest.mark.one_server
def test_mutant_that_does_not_compare_epochs_takes_the_result_of_a_former_holder(streams, database):
    mutate(database, "lock_held_streams", r"AND l\.lease_epoch = asked\.lease_epoch", "")
    former, head = restarted(streams)
    assert former.record([head], "DISPATCHED") == ["applied"]


# Leases are locked in the order of their names.

UNSORTED = (
    "FOR place IN 1..cardinality(p_lease_names) LOOP"
    " PERFORM FROM leasehold.leases l WHERE l.lease_name = p_lease_names[place] FOR NO KEY UPDATE;"
    " END LOOP;"
)


def opposite_orders(streams, database):
    """One holder records and looks at the same streams, listed in opposite orders."""
    heads = [in_flight(streams, stream)[1] for stream in ("a", "b")]
    names, epochs = ["stream/pay/a", "stream/pay/b"], [1, 1]
    blocker, up, down = database.session(), *(database.session("executor") for _ in range(2))
    blocker.run("BEGIN")
    blocker.run("SELECT FROM leasehold.leases WHERE stream = 'a' FOR UPDATE")
    both = [up.start(RECORD, ["holder-1", names, epochs, dispatched(*heads)])]
    both[0].assert_blocked()
    both.append(down.start(REFRESH, ["holder-1", names[::-1], epochs]))
    both[1].assert_blocked()
    blocker.run("COMMIT")
    outcomes = []
    for one in both:
        try:
            outcomes.append(len(one.result()))
        except psycopg.errors.DeadlockDetected:
            outcomes.append("deadlock")
    return outcomes


def test_writes_that_list_streams_in_opposite_orders_wait_for_each_other_and_end(streams, database):
    assert "deadlock" not in opposite_orders(streams, database)


@pytest.mark.one_server
def test_mutant_that_locks_streams_as_they_are_listed_deadlocks(streams, database):
    lock = (
        r"PERFORM FROM leasehold\.leases l WHERE [^;]*? ORDER BY l\.lease_name FOR NO KEY UPDATE;"
    )
    mutate(database, "lock_held_streams", lock, UNSORTED)
    assert opposite_orders(streams, database).count("deadlock") == 1

"""Hazards of DESIGN.md, each with its naive form kept as a mutant: fences, clocks, verdicts, locks.

Each test steps sessions through one interleaving, shows that the naive form loses, and that ours
does not.
"""

from __future__ import annotations

import json
import time
from uuid import uuid4

import psycopg
import pytest

from tests.support.outbox import CLUSTER_LEASE, result_of
from tests.support.sqlstates import refused

RECORD = "SELECT * FROM leasehold.record_attempts(%s, %s, %s, %s)"
COMPLETE = "SELECT * FROM leasehold.complete_outbox_attempts(%s, %s)"
ACQUIRE = "SELECT * FROM leasehold.acquire_lease(%s, %s, 60)"

# The naive forms, created by the owner in the database of the test.
NAIVE_RECORD = """
CREATE FUNCTION leasehold.naive_record(p_lease text, p_holder text, p_epoch bigint, p_intent uuid)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM leasehold.leases WHERE lease_name = p_lease
                    AND holder_id = p_holder AND lease_epoch = {epoch}
                    AND expires_at > clock_timestamp()) THEN
    RAISE EXCEPTION 'lost' USING ERRCODE = 'P7002';
  END IF;
  INSERT INTO leasehold.outbox_attempts (
    intent_id, attempt_no, state, holder, lease_name, lease_epoch, started_at, finished_at)
  VALUES (p_intent, 1, 'DISPATCHED', p_holder, p_lease, p_epoch, now(), clock_timestamp());
  DELETE FROM leasehold.outbox_pending WHERE intent_id = p_intent;
END $$"""
NAIVE_COMPLETE = """
UPDATE leasehold.outbox_pending
   SET claimed_by = NULL, lease_token = NULL, lease_expires_at = NULL, lease_seconds = NULL
 WHERE intent_id = %s AND claimed_by = %s AND lease_token = %s
   AND lease_expires_at > clock_timestamp()
RETURNING intent_id"""
NAIVE_BATCH = """
CREATE FUNCTION leasehold.naive_batch(p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_id uuid;
BEGIN
  FOREACH v_id IN ARRAY p_ids LOOP
    UPDATE leasehold.outbox_pending SET attempt_count = attempt_count WHERE intent_id = v_id;
  END LOOP;
END $$"""
NAIVE_REPAIR = """
WITH expired AS MATERIALIZED (
  SELECT intent_id, claimed_by, attempt_count FROM leasehold.outbox_pending
   WHERE claimed_by IS NOT NULL AND lease_expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED
), zombie AS (
  INSERT INTO leasehold.outbox_attempts
         (intent_id, attempt_no, state, holder, started_at, finished_at)
  SELECT intent_id, attempt_count + 1, 'ZOMBIE_REQUEUE', claimed_by, now(), now() FROM expired
)
UPDATE leasehold.outbox_pending p
   SET claimed_by = NULL, lease_token = NULL, lease_expires_at = NULL, lease_seconds = NULL,
       attempt_count = p.attempt_count + 1
  FROM expired WHERE p.intent_id = expired.intent_id"""


@pytest.fixture
def cluster(outbox):
    outbox.publish(scope="cluster")
    return outbox


def dispatched(intent):
    return json.dumps([{"intent_id": str(intent), "state": "DISPATCHED"}])


def wait_until_expired(database, intent):
    """Wait until the database's clock has passed the end of the lease."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        [row] = database.execute(
            "SELECT lease_expires_at <= clock_timestamp() AS expired"
            "  FROM leasehold.outbox_pending WHERE intent_id = %s",
            [intent],
        )
        if row["expired"]:
            return
        time.sleep(0.01)
    raise AssertionError("the lease does not expire")


# 1. The fence is checked under a lock in the writing transaction.


def test_1_naive_fence_lets_a_takeover_slip_in_before_the_commit(cluster, database):
    database.owner_execute(NAIVE_RECORD.format(epoch="p_epoch"))
    [intent] = cluster.enqueue()
    lease = cluster.acquire("old")
    old, new = database.session("owner"), database.session("executor")
    old.run("BEGIN")
    old.run("SELECT leasehold.naive_record(%s, 'old', 1, %s)", [CLUSTER_LEASE, intent])
    cluster.expire_lease()
    [taken] = new.run(ACQUIRE, [CLUSTER_LEASE, "new"])
    assert (taken["acquired"], taken["lease_epoch"]) == (True, lease["lease_epoch"] + 1)
    [seen] = new.run("SELECT intent_id FROM leasehold.outbox_pending")
    old.run("COMMIT")
    [row] = cluster.ledger(seen["intent_id"])
    assert row["lease_epoch"] < taken["lease_epoch"], "written by the old after the new took over"


def test_1_takeover_waits_for_our_fenced_writer_and_then_sees_what_it_wrote(cluster, database):
    [intent] = cluster.enqueue()
    cluster.acquire("old")
    old, new = database.session("executor"), database.session("executor")
    old.run("BEGIN")
    old.run(RECORD, [CLUSTER_LEASE, "old", 1, dispatched(intent)])
    cluster.expire_lease()
    takeover = new.start(ACQUIRE, [CLUSTER_LEASE, "new"])
    takeover.assert_blocked()
    old.run("COMMIT")
    [taken] = takeover.result()
    assert (taken["acquired"], taken["lease_epoch"]) == (True, 2)
    assert new.run("SELECT intent_id FROM leasehold.outbox_pending") == []


def test_1_writer_that_meets_a_takeover_in_flight_writes_nothing(cluster, database):
    [intent] = cluster.enqueue()
    cluster.acquire("old")
    cluster.expire_lease()
    old, new = database.session("executor"), database.session("executor")
    new.run("BEGIN")
    new.run(ACQUIRE, [CLUSTER_LEASE, "new"])
    late = old.start(RECORD, [CLUSTER_LEASE, "old", 1, dispatched(intent)])
    late.assert_blocked()
    new.run("COMMIT")
    with refused("P7002"):
        late.result()
    assert cluster.ledger(intent) == []


def test_1_holder_that_reads_its_epoch_again_adopts_the_one_of_its_successor(cluster, database):
    """A holder lost its lease and acquired it again in another thread."""
    reread = "(SELECT l.lease_epoch FROM leasehold.leases l WHERE l.lease_name = p_lease)"
    database.owner_execute(NAIVE_RECORD.format(epoch=reread))
    first, second = cluster.enqueue(2)
    cluster.acquire("same")
    cluster.expire_lease()
    assert cluster.acquire("same")["lease_epoch"] == 2
    database.owner_execute(
        "SELECT leasehold.naive_record(%s, 'same', 1, %s)", [CLUSTER_LEASE, first]
    )
    assert cluster.states(first) == ["DISPATCHED"], "the naive form wrote under the lost epoch"
    with refused("P7002"):
        cluster.as_role("executor").execute(RECORD, [CLUSTER_LEASE, "same", 1, dispatched(second)])
    assert cluster.ledger(second) == []


# 2. Lock first, then read the clock.


def test_2_lease_that_expires_during_the_wait_for_a_lock_is_lost(outbox, database):
    """The blocker only locks the rows. Nothing changed, so a naive WHERE is not evaluated again."""
    outbox.publish()
    outbox.enqueue(2)
    for_naive, for_ours = outbox.claim()
    blocker, naive, ours = (database.session(role) for role in (None, "owner", "executor"))
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET lease_expires_at = now() + interval '3 seconds'"
    )
    blocker.run("BEGIN")
    blocker.run("SELECT FROM leasehold.outbox_pending FOR UPDATE")
    naive_write = naive.start(
        NAIVE_COMPLETE, [for_naive["intent_id"], "worker-1", for_naive["lease_token"]]
    )
    our_write = ours.start(
        "SELECT leasehold.complete_outbox_attempt('worker-1', %s, %s, 'DISPATCHED')",
        [for_ours["intent_id"], for_ours["lease_token"]],
    )
    naive_write.assert_blocked()
    our_write.assert_blocked()
    wait_until_expired(database, for_ours["intent_id"])
    blocker.run("COMMIT")
    assert naive_write.result() == [{"intent_id": for_naive["intent_id"]}], "a stale write"
    with refused("P7002"):
        our_write.result()
    assert outbox.ledger(for_ours["intent_id"]) == []


def test_2_begin_and_release_read_the_clock_after_their_wait_too(outbox, database):
    outbox.publish()
    outbox.enqueue(2)
    begun, released = outbox.claim()
    blocker = database.session()
    sessions = [database.session("executor") for _ in range(2)]
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET lease_expires_at = now() + interval '3 seconds'"
    )
    blocker.run("BEGIN")
    blocker.run("SELECT FROM leasehold.outbox_pending FOR UPDATE")
    waiting = [
        sessions[0].start(
            "SELECT verdict FROM leasehold.begin_outbox_attempts('worker-1', %s, %s)",
            [[begun["intent_id"]], [begun["lease_token"]]],
        ),
        sessions[1].start(
            "SELECT verdict FROM leasehold.release_outbox_claims('worker-1', %s, %s, 0)",
            [[released["intent_id"]], [released["lease_token"]]],
        ),
    ]
    for one in waiting:
        one.assert_blocked()
    wait_until_expired(database, begun["intent_id"])
    blocker.run("COMMIT")
    assert [one.result() for one in waiting] == [[{"verdict": "lease_lost"}]] * 2


def test_2_renewal_of_a_locked_row_does_not_wait_and_extends_nothing(outbox, database):
    outbox.publish()
    outbox.enqueue(1)
    [renewed] = outbox.claim()
    blocker, session = database.session(), database.session("executor")
    renew = "SELECT * FROM leasehold.renew_outbox_leases('worker-1', %s, %s, 30)"
    claim = [[renewed["intent_id"]], [renewed["lease_token"]]]
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET lease_expires_at = now() + interval '3 seconds'"
    )
    blocker.run("BEGIN")
    blocker.run("SELECT FROM leasehold.outbox_pending FOR UPDATE")
    unchanged = {"verdict": "locked", "lease_expires_at": None}
    assert session.run(renew, claim) == [{"intent_id": renewed["intent_id"]} | unchanged]
    wait_until_expired(database, renewed["intent_id"])
    [late] = session.run(renew, claim)
    assert late["verdict"] == "lease_lost"


def test_2_transaction_that_began_before_the_expiry_reads_the_current_time(outbox, database):
    """now() is the start of the transaction, so a completion long after it must not use it."""
    outbox.publish()
    outbox.enqueue(2)
    for_naive, for_ours = outbox.claim()
    slow = database.session("owner")
    slow.run("BEGIN")
    slow.run("SELECT now()")
    outbox.expire_claims(seconds_ago=0)
    naive = NAIVE_COMPLETE.replace("clock_timestamp()", "now()")
    assert slow.run(naive, [for_naive["intent_id"], "worker-1", for_naive["lease_token"]]) != []
    [row] = slow.run(COMPLETE, ["worker-1", json.dumps([result_of(for_ours, "DISPATCHED")])])
    assert row["verdict"] == "lease_lost"
    slow.run("ROLLBACK")


# 5. Stale, terminal and missing are different verdicts.


def test_5_naive_write_cannot_tell_lost_from_finished_from_unknown_and_ours_can(outbox, database):
    outbox.publish()
    outbox.enqueue(2)
    stale, finished = outbox.claim()
    outbox.complete([finished])
    missing = {"intent_id": uuid4(), "lease_token": uuid4()}
    stale = stale | {"lease_token": uuid4()}
    cases = (stale, finished, missing)
    naive = [
        database.owner_execute(NAIVE_COMPLETE, [one["intent_id"], "worker-1", one["lease_token"]])
        for one in cases
    ]
    assert naive == [[], [], []], "no row, three times, for three different reasons"
    verdicts = {row["intent_id"]: row["verdict"] for row in outbox.complete(cases)}
    assert [verdicts[one["intent_id"]] for one in cases] == [
        "lease_lost",
        "already_terminal",
        "not_found",
    ]


def test_5_only_a_lost_lease_drops_leadership(cluster):
    finished, other = cluster.enqueue(2)
    executor = cluster.as_role("executor")
    cluster.acquire("leader")
    executor.execute(RECORD, [CLUSTER_LEASE, "leader", 1, dispatched(finished)])
    for intent, verdict in ((finished, "already_terminal"), (uuid4(), "not_found")):
        row = executor.execute(RECORD, [CLUSTER_LEASE, "leader", 1, dispatched(intent)]).fetchone()
        assert row["verdict"] == verdict
    for holder, epoch in (("leader", 2), ("other", 1)):
        with refused("P7002"):
            executor.execute(RECORD, [CLUSTER_LEASE, holder, epoch, dispatched(other)])
    assert cluster.ledger(other) == []


# 6. Every takeover writes a row and uses an attempt; a row at its ceiling blocks no other.


def test_6_row_at_its_ceiling_fails_the_naive_repair_of_its_neighbours_but_not_ours(outbox):
    outbox.publish()
    [poison] = outbox.enqueue()
    for _ in range(19):
        outbox.complete(outbox.claim(), "RETRYABLE", retry_after_seconds=0)
    outbox.complete(outbox.claim(), "SUBMITTED", retry_after_seconds=0)
    # It is held for a person now; make it claimable again.
    outbox.database.owner_execute("UPDATE leasehold.outbox_pending SET due_at = now()")
    neighbours = outbox.enqueue(3)
    assert len(outbox.claim("dead")) == 4
    outbox.expire_claims()
    with refused("23514"):
        outbox.database.owner_execute(NAIVE_REPAIR)
    assert outbox.ledger(neighbours[0]) == [], "the naive repair never repairs any row"
    outbox.call("executor", "repair_expired_leases", 100, "reaper")
    assert [outbox.states(intent) for intent in neighbours] == [["ZOMBIE_REQUEUE"]] * 3
    assert len(outbox.ledger(poison)) == 21
    assert outbox.pending(poison)["claimed_by"] is None


def test_6_poison_work_is_retried_forever_by_a_naive_takeover_but_not_by_ours(outbox):
    outbox.publish(attempts_max=3)
    [intent] = outbox.enqueue()
    naive = (
        "UPDATE leasehold.outbox_pending SET claimed_by = 'next', lease_token = gen_random_uuid(),"
        " lease_expires_at = clock_timestamp(), lease_seconds = 1"
        " WHERE claimed_by IS NULL OR lease_expires_at <= clock_timestamp() RETURNING attempt_count"
    )
    for _ in range(10):
        assert outbox.database.owner_execute(naive) == [{"attempt_count": 0}]
    for _ in range(5):  # to claim it, and to end that claim
        outbox.claim("victim")
        outbox.expire_claims()
        outbox.make_due()
    outbox.call("executor", "repair_expired_leases", 10, "reaper")
    assert outbox.states(intent) == ["ZOMBIE_REQUEUE", "ZOMBIE_REQUEUE", "FAILED"]


# 16. Locks are taken in one order.


def opposite_batches(database, low, run_up, run_down):
    """Let both batches wait for a lock on the lower row, then release it."""
    blocker, up, down = (database.session() for _ in range(3))
    for session in (up, down):
        session.run("SET deadlock_timeout = '50ms'")
    blocker.run("BEGIN")
    blocker.run("SELECT FROM leasehold.outbox_pending WHERE intent_id = %s FOR UPDATE", [low])
    first = run_up(up)
    first.assert_blocked()
    second = run_down(down)
    second.assert_blocked()
    blocker.run("COMMIT")
    return first, second


def test_16_naive_batches_in_opposite_order_deadlock(outbox, database):
    database.owner_execute(NAIVE_BATCH)
    outbox.publish()
    low, high = sorted(outbox.enqueue(2))
    statement = "SELECT leasehold.naive_batch(%s)"
    both = opposite_batches(
        database,
        low,
        lambda up: up.start(statement, [[low, high]]),
        lambda down: down.start(statement, [[high, low]]),
    )
    outcomes = []
    for one in both:
        try:
            outcomes.append(one.result())
        except psycopg.errors.DeadlockDetected:
            outcomes.append("deadlock")
    assert outcomes.count("deadlock") == 1


def test_16_our_completions_in_opposite_order_do_not_wait_for_each_other(outbox, database):
    outbox.publish()
    outbox.enqueue(2)
    low, high = sorted(outbox.claim(), key=lambda claim: claim["intent_id"])

    def complete(session, *claims):
        results = json.dumps([result_of(claim, "DISPATCHED") for claim in claims])
        return [row["verdict"] for row in session.run(COMPLETE, ["worker-1", results])]

    up, down = database.session("executor"), database.session("executor")
    up.run("BEGIN")
    assert complete(up, low, high) == ["applied"] * 2
    assert complete(down, high, low) == ["locked"] * 2
    up.run("COMMIT")
    assert complete(down, high, low) == ["already_terminal"] * 2


def test_16_our_begin_in_opposite_order_holds_nothing_while_it_waits(outbox, database):
    outbox.publish()
    outbox.enqueue(2)
    low, high = sorted(outbox.claim(), key=lambda claim: claim["intent_id"])

    def beginning(claims):
        ids = [claim["intent_id"] for claim in claims]
        tokens = [claim["lease_token"] for claim in claims]
        statement = "SELECT verdict FROM leasehold.begin_outbox_attempts('worker-1', %s, %s)"
        return lambda session: session.start(statement, [ids, tokens])

    both = opposite_batches(
        database, low["intent_id"], beginning([low, high]), beginning([high, low])
    )
    assert [one.result() for one in both] == [[{"verdict": "begun"}] * 2] * 2

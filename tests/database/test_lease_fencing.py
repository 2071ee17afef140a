"""What a lease protects: fenced writes, calls in flight at a takeover, the leader's heartbeat."""

from __future__ import annotations

import json

import pytest

from tests.support.lease_holder import leased_result, take
from tests.support.outbox import CLUSTER_LEASE, ZERO_ID
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

ACQUIRE = "SELECT * FROM leasehold.acquire_lease(%s, %s, 60)"
RENEW = "SELECT leasehold.renew_lease(%s, %s, %s, 60)"
RECORD = "SELECT * FROM leasehold.record_attempts(%s, %s, %s, %s)"


@pytest.fixture
def cluster(outbox):
    outbox.publish(scope="cluster")
    return outbox


def ledger_size(database):
    return database.execute("SELECT count(*) AS rows FROM leasehold.outbox_attempts")[0]["rows"]


def expire_by_the_clock(session):
    """Expire the lease in the transaction of another session; visible only after its commit."""
    session.run("UPDATE leasehold.leases SET expires_at = '-infinity', grace_expires_at = now()")


@pytest.mark.every_server
@pytest.mark.parametrize("writer", ["record", "begin", "heartbeat"])
def test_takeover_waits_for_a_fenced_writer_in_flight_and_then_sees_its_work(
    cluster, database, writer
):
    [intent_id] = cluster.enqueue()
    holder = take(cluster, "holder-1")
    cluster.expire_lease(grace=False)
    if writer != "record":
        holder.renew(grace_seconds=60)
    slow, successor = database.session("executor"), database.session("executor")
    slow.run("BEGIN")
    if writer == "record":
        results = json.dumps([leased_result(intent_id, "RETRYABLE")])
        slow.run(RECORD, [*holder.fence, results])
    elif writer == "begin":
        slow.run(
            "SELECT * FROM leasehold.begin_leased_attempts(%s, %s, %s, %s)",
            [*holder.fence, [intent_id]],
        )
    else:
        slow.run("SELECT leasehold.record_leader_heartbeat(%s, %s, %s, '{}')", holder.fence)
    cluster.expire_lease(grace=True)
    waiting = successor.start(ACQUIRE, [CLUSTER_LEASE, "holder-2"])
    waiting.assert_blocked()
    slow.run("COMMIT")
    [answer] = waiting.result()
    assert (answer["acquired"], answer["lease_epoch"]) == (True, 2)
    expected = {"record": ["RETRYABLE"], "begin": ["IN_DOUBT"], "heartbeat": []}
    assert cluster.states(intent_id) == expected[writer]


@pytest.mark.every_server
def test_unlocked_check_of_the_fence_lets_a_takeover_slip_in(cluster, database):
    """The naive form is EXISTS without a lock: both the old and the new holder write."""
    [intent_id] = cluster.enqueue()
    holder = take(cluster, "holder-1")
    naive = database.session()
    naive.run("BEGIN")
    found = naive.run(
        "SELECT EXISTS (SELECT FROM leasehold.leases WHERE lease_name = %s AND holder_id = %s"
        " AND lease_epoch = %s AND expires_at > clock_timestamp()) AS held",
        holder.fence,
    )
    assert found == [{"held": True}]
    cluster.expire_lease()
    successor = take(cluster, "holder-2")
    successor.begin([intent_id])
    naive.run(
        "UPDATE leasehold.outbox_pending SET reference = 'of a stale holder' WHERE intent_id = %s",
        [intent_id],
    )
    naive.run("COMMIT")
    assert cluster.pending(intent_id)["reference"] == "of a stale holder"


@pytest.mark.every_server
def test_renewal_does_not_wait_for_a_fenced_writer(cluster, database):
    [intent_id] = cluster.enqueue()
    holder = take(cluster)
    slow, heart = database.session("executor"), database.session("executor")
    slow.run("BEGIN")
    slow.run(RECORD, [*holder.fence, json.dumps([leased_result(intent_id, "RETRYABLE")])])
    heart.run(RENEW, holder.fence)
    # Nor does a writer wait for a renewal that is not yet committed.
    slow.run("COMMIT")
    heart.run("BEGIN")
    heart.run(RENEW, holder.fence)
    slow.run(RECORD, [*holder.fence, json.dumps([leased_result(intent_id, "RETRYABLE")])])
    heart.run("COMMIT")
    assert cluster.states(intent_id) == ["RETRYABLE", "RETRYABLE"]


@pytest.mark.every_server
def test_writer_that_waited_for_a_takeover_is_refused_and_writes_nothing(cluster, database):
    ids = cluster.enqueue(3)
    holder = take(cluster, "holder-1")
    cluster.expire_lease(grace=False)
    successor, slow = database.session("executor"), database.session("executor")
    successor.run("BEGIN")
    successor.run(ACQUIRE, [CLUSTER_LEASE, "holder-2"])
    results = json.dumps([leased_result(intent_id, "DISPATCHED") for intent_id in ids])
    waiting = slow.start(RECORD, [*holder.fence, results])
    waiting.assert_blocked()
    successor.run("COMMIT")
    with refused("P7002"):
        waiting.result()
    assert ledger_size(database) == 0


@pytest.mark.every_server
def test_writer_whose_lease_expires_while_it_waits_for_marks_writes_nothing(cluster, database):
    [intent_id] = cluster.enqueue()
    holder = take(cluster)
    operator, slow = database.session(), database.session("executor")
    operator.run("BEGIN")
    operator.run("SELECT leasehold.lock_call_marks(%s)", [CLUSTER_LEASE])
    deferred = leased_result(intent_id, "DEFERRED", retry_after_seconds=5, attempt_no=1)
    waiting = slow.start(RECORD, [*holder.fence, json.dumps([deferred])])
    waiting.assert_blocked()
    expire_by_the_clock(operator)
    operator.run("COMMIT")
    with refused("P7002"):
        waiting.result()
    assert cluster.pending(intent_id)["deferred_since"] is None


def test_lost_lease_writes_nothing_of_a_batch(cluster, database):
    ids = cluster.enqueue(5)
    stale = take(cluster, "holder-1")
    stale.begin(ids[:2])
    cluster.expire_lease()
    take(cluster, "holder-2")
    before = ledger_size(database)
    with refused("P7002"):
        stale.record(ids, "DISPATCHED")
    assert ledger_size(database) == before == 2
    assert {cluster.status(intent_id) for intent_id in ids} == {"pending", "in_doubt"}


def test_takeover_puts_begun_calls_in_doubt_in_the_name_of_the_replaced_holder(cluster):
    begun, also_begun, untouched = cluster.enqueue(3)
    holder = take(cluster, "holder-1")
    assert holder.begin([begun, also_begun]) == ["begun", "begun"]
    before = cluster.pending(untouched)
    cluster.expire_lease()
    take(cluster, "holder-2")
    for intent_id in (begun, also_begun):
        [row] = cluster.ledger(intent_id)
        assert (row["state"], row["reason"]) == ("IN_DOUBT", "lease_taken_over")
        fence = (row["lease_name"], row["holder"], row["lease_epoch"])
        assert fence == holder.fence == (CLUSTER_LEASE, "holder-1", 1)
        assert row["started_at"] <= row["finished_at"]
        pending = cluster.pending(intent_id)
        assert pending["attempt_count"] == 1
        assert pending["begun_at"] is pending["begun_epoch"] is None
    assert cluster.ledger(untouched) == []
    assert cluster.pending(untouched) | {"seen_at": None} == before | {"seen_at": None}


def test_holder_that_takes_its_lease_again_puts_its_old_calls_in_doubt(cluster):
    [intent_id] = cluster.enqueue()
    old = take(cluster, "holder-1")
    old.begin([intent_id])
    cluster.expire_lease()
    new = take(cluster, "holder-1")
    assert cluster.states(intent_id) == ["IN_DOUBT"]
    with refused("P7002"):
        old.record([intent_id], "DISPATCHED")
    cluster.make_due()
    assert new.begin([intent_id]) == ["begun"]


def test_begun_calls_of_a_released_lease_are_put_in_doubt_by_the_successor(cluster):
    [intent_id] = cluster.enqueue()
    holder = take(cluster, "holder-1")
    holder.begin([intent_id])
    assert holder.release()
    assert cluster.states(intent_id) == []
    take(cluster, "holder-2")
    [row] = cluster.ledger(intent_id)
    assert (row["state"], row["holder"], row["lease_epoch"]) == ("IN_DOUBT", "holder-1", 1)


def test_record_has_a_verdict_for_applied_finished_missing_and_foreign_items(cluster):
    cluster.publish("other", scope="cluster", lease_name="other-lease")
    cluster.publish("item-target")
    applied, finished = cluster.enqueue(2)
    [foreign] = cluster.enqueue(target="other")
    [item] = cluster.enqueue(target="item-target")
    holder = take(cluster)
    assert holder.record([finished], "DISPATCHED") == ["applied"]
    given = [applied, finished, ZERO_ID, foreign, item]
    verdicts = ["applied", "already_terminal", "not_found", "not_found", "not_found"]
    assert holder.record(given, "DISPATCHED") == verdicts
    assert cluster.ledger(foreign) == cluster.ledger(item) == []
    [row] = cluster.ledger(applied)
    assert (row["holder"], row["lease_name"], row["lease_epoch"], row["lease_token"]) == (
        "holder-1",
        CLUSTER_LEASE,
        1,
        None,
    )


def test_retry_at_the_ceiling_is_not_recorded_while_the_others_are(cluster, database):
    spent, fresh = cluster.enqueue(2)
    holder = take(cluster)
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET attempt_count = 20 WHERE intent_id = %s", [spent]
    )
    assert holder.record([spent, fresh], "RETRYABLE") == ["ceiling_reached", "applied"]
    assert cluster.ledger(spent) == []


@pytest.mark.parametrize("guarantee", ["lookup", "blind"])
def test_result_of_a_call_that_had_to_be_begun_first_is_refused(cluster, guarantee):
    cluster.publish("careful", scope="cluster", guarantee=guarantee)
    unbegun, begun = cluster.enqueue(2, "careful")
    holder = take(cluster)
    holder.begin([begun])
    with refused("P7003"):
        holder.record([begun, unbegun], "DISPATCHED")
    assert cluster.states(begun) == []
    assert holder.record([begun], "DISPATCHED") == ["applied"]
    # No call was made, so this item may fail without having begun.
    assert holder.record([unbegun], "FAILED") == ["applied"]


def test_state_that_no_executor_may_report_is_refused(cluster):
    [intent_id] = cluster.enqueue()
    holder = take(cluster)
    for state in ("ZOMBIE_REQUEUE", "CANCELLED", "NONSENSE", None):
        with refused("P7003"):
            holder.record([intent_id], state)


def test_begin_has_a_verdict_for_each_item_and_marks_only_the_begun_ones(cluster, database):
    cluster.publish("other", scope="cluster", lease_name="other-lease")
    granted, begun, finished, spent = cluster.enqueue(4)
    [later] = cluster.enqueue(delay_seconds=60)
    [foreign] = cluster.enqueue(target="other")
    holder = take(cluster)
    holder.begin([begun])
    holder.record([finished], "DISPATCHED")
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET attempt_count = 20 WHERE intent_id = %s", [spent]
    )
    expected = {
        granted: "begun",
        begun: "already_begun",
        finished: "already_terminal",
        spent: "ceiling_reached",
        later: "not_due",
        foreign: "not_found",
        ZERO_ID: "not_found",
    }
    rows = holder.call("begin_leased_attempts", *holder.fence, list(expected))
    assert {row["intent_id"]: row["verdict"] for row in rows} == expected
    # Content is returned only for begun calls.
    content = {row["intent_id"]: row["payload"] for row in rows if row["payload"] is not None}
    assert content == {granted: {"number": 0}}
    [row] = [row for row in rows if row["verdict"] == "begun"]
    assert (row["submission_key"], row["attempt_no"]) == (granted, 1)
    marked = [one for one in expected if (cluster.pending(one) or {}).get("begun_at")]
    assert marked == [granted, begun]


def test_only_the_leader_can_write_its_heartbeat(cluster, database):
    holder = take(cluster, "holder-1")
    holder.call("record_leader_heartbeat", *holder.fence, {"scheduled": 7})
    [row] = database.execute("SELECT * FROM leasehold.leader_heartbeat")
    assert (row["instance_id"], row["lease_epoch"], row["detail"]) == (
        "holder-1",
        1,
        {"scheduled": 7},
    )
    cluster.expire_lease()
    with refused("P7002"):
        holder.call("record_leader_heartbeat", *holder.fence, {"scheduled": 8})
    successor = take(cluster, "holder-2")
    with refused("P7002"):
        holder.call("record_leader_heartbeat", *holder.fence, {"scheduled": 9})
    successor.call("record_leader_heartbeat", *successor.fence, {"scheduled": 10})
    [row] = database.execute("SELECT * FROM leasehold.leader_heartbeat")
    assert (row["instance_id"], row["lease_epoch"]) == ("holder-2", 2)

"""What was dispatched is recorded in arrays as it is in JSON, only cheaper."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.lease_holder import leased_result, take
from tests.support.outbox import CLUSTER_LEASE, ZERO_ID
from tests.support.sqlstates import refused

DISPATCHED = "SELECT * FROM leasehold.record_dispatched(%s, %s, %s, %s, %s)"
ACQUIRE = "SELECT * FROM leasehold.acquire_lease(%s, %s, 60)"
SECONDS = 0.25
UUID_MAX = UUID(int=2**128 - 1)


@pytest.fixture
def cluster(outbox):
    outbox.publish(scope="cluster")
    outbox.publish("careful", scope="cluster", guarantee="lookup")
    outbox.publish("other", scope="cluster", lease_name="other-lease")
    return outbox


def fresh(cluster, holder):
    del holder
    return cluster.enqueue()[0]


def begun(cluster, holder):
    [intent_id] = cluster.enqueue(target="careful")
    holder.begin([intent_id])
    return intent_id


def tried(cluster, holder):
    [intent_id] = cluster.enqueue()
    holder.record([intent_id], "RETRYABLE", retry_after_seconds=0)
    return intent_id


def submitted(cluster, holder):
    """Accepted under a reference, which the row keeps."""
    [intent_id] = cluster.enqueue()
    holder.record([intent_id], "SUBMITTED")
    return intent_id


def miscounted(cluster, holder):
    """The ledger is the truth for the number, whatever the cache says."""
    intent_id = tried(cluster, holder)
    cluster.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET attempt_count = 7 WHERE intent_id = %s", [intent_id]
    )
    return intent_id


def finished(cluster, holder):
    [intent_id] = cluster.enqueue()
    holder.record([intent_id], "FAILED")
    return intent_id


def foreign(cluster, holder):
    del holder
    return cluster.enqueue(target="other")[0]


def missing(cluster, holder):
    del cluster, holder
    return ZERO_ID


APPLIED = [fresh, begun, tried, submitted, miscounted]
OTHERS = {finished: "already_terminal", foreign: "not_found", missing: "not_found"}


def without_times(rows):
    """Ledger rows but for what differs between any two writings; how long the last one lasted."""
    apart = ("intent_id", "started_at", "finished_at", "transaction_id")
    kept = [{name: row[name] for name in row if name not in apart} for row in rows]
    lasted = [(row["finished_at"] - row["started_at"]).total_seconds() for row in rows[-1:]]
    return kept, lasted


@pytest.mark.parametrize("is_told", [False, True], ids=["plain", "told"])
@pytest.mark.parametrize(
    "others", [[], [foreign], list(OTHERS)], ids=["all ours", "one of another", "not all pending"]
)
@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "in disorder"])
def test_arrays_write_what_the_same_results_write_as_json(cluster, is_told, others, in_order):
    holder = take(cluster)
    kinds = [*APPLIED, *others]
    by_array, by_json = ([kind(cluster, holder) for kind in kinds] for _ in range(2))
    told = {"reference": "r-1", "code": "200", "detail": "d" * 3000} if is_told else {}
    results = [leased_result(one, "DISPATCHED", elapsed_seconds=SECONDS, **told) for one in by_json]
    rows = holder.call("record_attempts", *holder.fence, results)
    expected = {row["intent_id"]: row["verdict"] for row in rows}
    given = sorted(by_array, reverse=not in_order)
    lists = [[value] * len(given) for value in told.values()]
    found = holder.record_dispatched(given, [SECONDS] * len(given), *lists)
    assert dict(zip(given, found, strict=True)) == {
        one: expected[twin] for one, twin in zip(by_array, by_json, strict=True)
    }
    for kind, one, twin in zip(kinds, by_array, by_json, strict=True):
        assert expected[twin] == OTHERS.get(kind, "applied")
        (ours, lasted), theirs = map(without_times, map(cluster.ledger, (one, twin)))
        assert ours == theirs[0]
        # What was begun lasts since then, as long as the test takes.
        assert lasted == theirs[1] or (kind is begun and lasted[0] > 0 < theirs[1][0])
        assert (cluster.pending(one) is None) == (cluster.pending(twin) is None)


def test_short_way_is_taken_for_what_is_in_order_and_all_pending(cluster, database):
    """Without the function that judges results one by one, only the short way is left."""
    holder = take(cluster)
    short, long = (sorted(kind(cluster, holder) for kind in APPLIED) for _ in range(2))
    database.owner_execute(
        "ALTER FUNCTION leasehold.append_attempts(leasehold.outcome[], timestamptz, text)"
        " RENAME TO append_attempts_gone"
    )
    assert holder.record_dispatched(short) == ["applied"] * len(short)
    for given in (long[::-1], [*long, UUID_MAX]):
        with refused("42883"):
            holder.record_dispatched(given)


def test_call_that_had_to_be_begun_and_was_not_cannot_be_recorded(cluster):
    holder = take(cluster)
    [unbegun] = cluster.enqueue(target="careful")
    given = sorted([begun(cluster, holder), unbegun])
    with refused("P7003"):
        holder.record_dispatched(given)
    assert [cluster.states(one) for one in given] == [[], []]


def test_stale_holder_writes_nothing(cluster):
    ids = cluster.enqueue(3)
    stale = take(cluster, "holder-1")
    cluster.expire_lease()
    take(cluster, "holder-2")
    with refused("P7002"):
        stale.record_dispatched(sorted(ids))
    assert [cluster.states(one) for one in ids] == [[], [], []]


def test_takeover_waits_for_a_writer_in_flight_and_then_sees_its_work(cluster, database):
    [intent_id] = cluster.enqueue()
    holder = take(cluster, "holder-1")
    slow, successor = database.session("executor"), database.session("executor")
    slow.run("BEGIN")
    slow.run(DISPATCHED, [*holder.fence, [intent_id], [SECONDS]])
    cluster.expire_lease()
    waiting = successor.start(ACQUIRE, [CLUSTER_LEASE, "holder-2"])
    waiting.assert_blocked()
    slow.run("COMMIT")
    [answer] = waiting.result()
    assert (answer["acquired"], answer["lease_epoch"]) == (True, 2)
    assert cluster.states(intent_id) == ["DISPATCHED"]


def test_writer_whose_lease_expires_while_it_waits_for_rows_writes_nothing(cluster, database):
    [intent_id] = cluster.enqueue()
    holder = take(cluster)
    other, slow = database.session(), database.session("executor")
    other.run("BEGIN")
    other.run("SELECT FROM leasehold.outbox_pending FOR UPDATE")
    waiting = slow.start(DISPATCHED, [*holder.fence, [intent_id], [SECONDS]])
    waiting.assert_blocked()
    other.run("UPDATE leasehold.leases SET expires_at = '-infinity', grace_expires_at = now()")
    other.run("COMMIT")
    with refused("P7002"):
        waiting.result()
    assert cluster.states(intent_id) == []


@pytest.mark.parametrize("what", ["cancelled", "moved"])
def test_row_that_changes_while_it_is_waited_for_is_judged_as_it_is_then(cluster, database, what):
    """One is gone, so that nothing is written twice; the other stands elsewhere in the table."""
    first, second = sorted(cluster.enqueue(2))
    holder = take(cluster)
    other, slow = database.session(), database.session("executor")
    other.run("BEGIN")
    if what == "cancelled":
        other.run("SELECT leasehold.cancel_intent(%s, 'ann', 'a test')", [second])
    else:
        other.run("UPDATE leasehold.outbox_pending SET reference = 'r-9'")
    waiting = slow.start(DISPATCHED, [*holder.fence, [first, second], [SECONDS] * 2])
    waiting.assert_blocked()
    other.run("COMMIT")
    others = {row["intent_id"]: row["verdict"] for row in waiting.result()}
    assert others == ({second: "already_terminal"} if what == "cancelled" else {})
    assert cluster.states(first) == ["DISPATCHED"]
    assert cluster.states(second) == ["CANCELLED" if what == "cancelled" else "DISPATCHED"]
    assert cluster.ledger(first)[0]["reference"] == (None if what == "cancelled" else "r-9")
    assert cluster.pending(first) is cluster.pending(second) is None

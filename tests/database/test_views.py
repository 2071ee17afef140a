"""The views: the derived status of an intent, and the supervisor's one row."""

from __future__ import annotations

import pytest

from tests.support.lease_holder import claim_streams, take

pytestmark = pytest.mark.one_server


def finish(outbox, target, state, **fields):
    """Enqueue an intent, call it and report this outcome."""
    [intent_id] = outbox.enqueue(target=target)
    [claim] = [row for row in outbox.claim(targets=[target]) if row["intent_id"] == intent_id]
    outbox.begin([claim])
    assert outbox.complete([claim], state, **fields)[0]["verdict"] == "applied"
    return intent_id


def seen(database, intent_id):
    [row] = database.execute(
        "SELECT * FROM leasehold.intent_status WHERE intent_id = %s", [intent_id]
    )
    return row


@pytest.fixture
def targets(outbox):
    outbox.publish()
    outbox.publish("once", retry_policy="one_shot")
    outbox.publish("twice", attempts_max=1)
    outbox.publish("blind", guarantee="blind")
    outbox.publish("lookup", guarantee="lookup")
    outbox.publish("chain", scope="cluster")
    return outbox


def test_every_status_is_derived_from_the_ledger_and_the_pending_row(targets, database):
    expected = {}
    [fresh] = targets.enqueue(target="chain")
    expected[fresh] = ("pending", None, 0)
    expected[finish(targets, "sms", "RETRYABLE")] = ("pending", None, 1)
    expected[finish(targets, "lookup", "IN_DOUBT")] = ("in_doubt", None, 1)
    expected[finish(targets, "blind", "IN_DOUBT")] = ("held", None, 1)
    expected[finish(targets, "sms", "SUBMITTED")] = ("confirming", None, 1)
    expected[finish(targets, "sms", "DISPATCHED")] = ("accepted", None, 1)
    expected[finish(targets, "sms", "FAILED", reason="bad_number")] = ("rejected", "bad_number", 1)
    expected[finish(targets, "once", "RETRYABLE")] = ("exhausted", "one_shot", 1)
    expected[finish(targets, "twice", "RETRYABLE")] = ("exhausted", "max_attempts", 1)
    late = finish(targets, "sms", "FAILED", reason="deadline_exceeded")
    expected[late] = ("exhausted", "deadline_exceeded", 1)
    [unwanted] = targets.enqueue()
    targets.call("operator", "cancel_intent", unwanted, "ada", "not wanted")
    expected[unwanted] = ("cancelled", "cancelled_by_operator", 1)
    # A claim, begun or not, is still pending.
    [claimed] = targets.enqueue(target="blind")
    targets.begin(targets.claim(targets=["blind"]))
    expected[claimed] = ("pending", None, 0)

    rows = database.execute("SELECT * FROM leasehold.intent_status")
    found = {row["intent_id"]: (row["status"], row["reason"], row["attempts"]) for row in rows}
    assert found == expected
    assert seen(database, claimed)["claimed_by"] == "worker-1"
    assert seen(database, claimed)["begun_at"] is not None


@pytest.mark.parametrize(
    ("target", "state", "status"),
    [
        ("blind", "IN_DOUBT", "held"),
        ("lookup", "IN_DOUBT", "in_doubt"),
        ("sms", "RETRYABLE", "pending"),
    ],
)
def test_unfinished_intent_shows_what_the_last_attempt_met(
    targets, database, target, state, status
):
    fields = {"reason": "status", "code": "500", "detail": "boom"}
    row = seen(database, finish(targets, target, state, **fields))
    assert row["status"] == status
    assert {name: row[name] for name in fields} == fields
    assert row["finished_at"] is None


def test_status_shows_the_answer_of_the_gateway(targets, database):
    fields = {"reference": "their-7", "code": "202", "detail": "queued"}
    row = seen(database, finish(targets, "sms", "DISPATCHED", **fields))
    assert {name: row[name] for name in fields} == fields
    assert row["finished_at"] is not None
    assert row["due_at"] is row["lease_expires_at"] is None
    waiting = seen(database, finish(targets, "sms", "SUBMITTED", reference="their-8"))
    assert (waiting["reference"], waiting["finished_at"]) == ("their-8", None)


def test_supervisor_of_an_empty_queue_counts_zero(outbox):
    row = outbox.count_queue()
    assert row.pop("seen_at") is not None
    assert row.pop("age_seconds") >= 0
    assert row.pop("oldest_pending_seconds") is row.pop("oldest_in_doubt_seconds") is None
    assert row.pop("oldest_deferred_seconds") is None
    assert row.pop("oldest_xmin_age") >= 0
    assert {name: row.pop(name) for name in list(row) if "by_" in name} == {
        "pending_by_last_state": {},
        "pending_by_attempts": {},
    }
    assert row.pop("streams_blocked") == {}
    assert set(row.values()) == {0}


def test_supervisor_counts_every_column_of_a_known_situation(targets, database):
    targets.enqueue(2, delay_seconds=600)  # not due
    targets.enqueue(3, "chain")  # due, unleased, under a cluster lease
    targets.enqueue(4)
    for worker in ("worker-1", "worker-2"):
        targets.claim(worker, batch_size=1)  # two of the four are leased
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET lease_expires_at = now() - interval '1 second'"
        " WHERE claimed_by = 'worker-2'"
    )
    finish(targets, "blind", "IN_DOUBT")  # held
    finish(targets, "lookup", "IN_DOUBT")  # in doubt, to be asked about later
    finish(targets, "lookup", "SUBMITTED")  # confirming
    for state in ("DISPATCHED", "DISPATCHED", "FAILED"):
        finish(targets, "lookup", state)
    holder = take(targets)
    [retried] = targets.enqueue(target="chain")
    for _ in range(2):
        holder.record([retried], "RETRYABLE", retry_after_seconds=0)
    holder.record([retried], "DEFERRED", retry_after_seconds=0, reason="credentials_refused")
    row = targets.count_queue()
    assert row.pop("seen_at") is not None
    assert 0 <= row.pop("age_seconds") < 60
    assert 0 <= row.pop("oldest_pending_seconds") < 60
    assert 0 <= row.pop("oldest_in_doubt_seconds") < 60
    assert 0 <= row.pop("oldest_deferred_seconds") < 60
    assert row.pop("oldest_xmin_age") >= 0
    assert row == {
        "pending": 13,
        "due": 3 + 4 + 1,
        "leased": 2,
        "expired_leases": 1,
        "due_unleased": 3 + 2 + 1,
        "in_doubt": 1,
        "held": 1,
        "confirming": 1,
        "deferred": 1,
        "pending_by_last_state": {"NEW": 9, "IN_DOUBT": 2, "SUBMITTED": 1, "RETRYABLE": 1},
        "pending_by_attempts": {"0": 9, "1": 3, "2": 1},
        "streams_blocked": {},
    }


def test_only_what_can_be_worked_on_of_streams_is_due(outbox, database):
    outbox.publish("pay", scope="stream", guarantee="lookup")

    def counted():
        row = outbox.count_queue()
        return row["due"], row["leased"], row["due_unleased"]

    for number in range(6):
        outbox.enqueue(4, "pay", stream=f"s{number}")
    assert counted() == (6, 0, 6)
    holders = claim_streams(outbox, streams_max=4)
    for holder in holders:
        holder.begin([holder.heads[0]["intent_id"]])
    assert counted() == (6, 4, 2)
    failed, doubted, retried, _ = holders
    failed.record_next([failed.heads[0]["intent_id"]], "FAILED")  # pauses its stream
    doubted.record_next([doubted.heads[0]["intent_id"]], "IN_DOUBT", retry_after_seconds=0)
    retried.record_next([retried.heads[0]["intent_id"]], "RETRYABLE", retry_after_seconds=60)
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = 'infinity' WHERE last_state = 'IN_DOUBT'"
    )
    assert counted() == (3, 1, 2)
    for number in range(6):
        outbox.call("operator", "pause_stream", "pay", f"s{number}", "ada", "wait")
    assert counted() == (1, 1, 0)


def test_supervisor_takes_the_age_of_the_oldest_intent_from_its_id(targets, database):
    targets.enqueue()
    database.owner_execute(
        "INSERT INTO leasehold.outbox_pending (intent_id, scope, target, contract_version,"
        " priority, due_at, last_modified_at) SELECT"
        " leasehold.lowest_intent_id(now() - interval '2 days'), 'item', 'sms', 1, 1, now(), now()"
    )
    assert targets.count_queue()["oldest_pending_seconds"] == pytest.approx(2 * 86400, abs=60)


def test_age_of_a_doubt_counts_from_its_first_row(targets, database):
    [intent_id] = targets.enqueue(target="lookup")
    minutes = [("RETRYABLE", 90), ("IN_DOUBT", 60), ("RETRYABLE", 50), ("IN_DOUBT", 40)]
    for number, (state, ago) in enumerate([*minutes, ("IN_DOUBT", 5)], start=1):
        database.owner_execute(
            "INSERT INTO leasehold.outbox_attempts (intent_id, attempt_no, state, holder,"
            " started_at, finished_at) SELECT %s, %s, %s, 'worker-1', at, at"
            "   FROM (VALUES (now() - make_interval(mins => %s))) AS v (at)",
            [intent_id, number, state, ago],
        )
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET attempt_count = 5, last_state = 'IN_DOUBT'"
    )
    assert targets.count_queue()["oldest_in_doubt_seconds"] == pytest.approx(40 * 60, abs=60)
    finish(targets, "lookup", "IN_DOUBT")
    assert targets.count_queue()["oldest_in_doubt_seconds"] == pytest.approx(40 * 60, abs=60)
    # An intent that is held for a person does not resolve by itself.
    database.owner_execute("UPDATE leasehold.outbox_pending SET due_at = 'infinity'")
    assert targets.count_queue()["oldest_in_doubt_seconds"] is None

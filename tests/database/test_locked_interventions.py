"""An operator meets a pending row that another transaction has locked.

Whoever waits for the row holds nothing that a leader or a stream's holder needs meanwhile.
"""

from __future__ import annotations

import json

import pytest

from tests.support.lease_holder import claim_streams, leased_result, take

LOCK = "SELECT FROM leasehold.outbox_pending WHERE intent_id = %s FOR UPDATE"
INTERVENTIONS = {
    "cancel": "SELECT leasehold.cancel_intent(%s, 'ann', 'a test') AS verdict",
    "resolve": "SELECT leasehold.resolve_intent(%s, 'FAILED', 'ann', 'a test') AS verdict",
    "retry": "SELECT leasehold.retry_intent_now(%s, 'ann', 'a test') AS verdict",
}
SKIP = "SELECT leasehold.skip_stream_head('pay', 's', %s, 'ann', 'a test') AS verdict"
MARK = "SELECT FROM leasehold.mark_calls(%s, %s, %s, %s, '{1}', 1)"
RECORD = "SELECT verdict FROM leasehold.record_attempts(%s, %s, %s, %s)"


@pytest.fixture
def locked(database):
    """Return a function that locks a row until the end of the test, or until `commit`."""
    session = database.session()

    def lock(intent_id):
        session.run("BEGIN")
        session.run(LOCK, [intent_id])
        return session

    return lock


@pytest.fixture
def leader(outbox):
    outbox.publish(scope="cluster")
    return take(outbox)


def mark(database, leader, intent_id):
    """Mark a call, as a leader that gives up after two seconds."""
    session = database.session("executor")
    session.run("SET lock_timeout = '2s'")
    session.run(MARK, [*leader.fence, [intent_id]])


@pytest.mark.parametrize("statement", INTERVENTIONS.values(), ids=INTERVENTIONS)
def test_operator_who_waits_for_a_locked_row_keeps_no_leader_from_its_calls(
    database, outbox, leader, locked, statement
):
    wanted, other = outbox.enqueue(2)
    owner = locked(wanted)
    waiting = database.session("operator").start(statement, [wanted])
    waiting.assert_blocked()
    mark(database, leader, other)
    assert outbox.call("executor", "read_lock_squatters", [leader.lease_name], []) == []
    owner.run("COMMIT")
    assert waiting.result() != [{"verdict": "in_flight"}]


def test_operator_who_waited_for_a_row_sees_the_call_that_was_marked_meanwhile(
    database, outbox, leader, locked
):
    [wanted] = outbox.enqueue()
    owner = locked(wanted)
    waiting = database.session("operator").start(INTERVENTIONS["cancel"], [wanted])
    waiting.assert_blocked()
    mark(database, leader, wanted)
    owner.run("COMMIT")
    assert waiting.result() == [{"verdict": "in_flight"}]


def test_leader_that_cannot_record_a_deferral_yet_can_mark_its_other_calls(
    database, outbox, leader, locked
):
    deferred, other = outbox.enqueue(2)
    mark(database, leader, deferred)
    owner = locked(deferred)
    results = [
        leased_result(deferred, "DEFERRED", reason="away", retry_after_seconds=5, attempt_no=1)
    ]
    session = database.session("executor")
    assert session.run(RECORD, [*leader.fence, json.dumps(results)]) == [{"verdict": "locked"}]
    session.run("SET lock_timeout = '2s'")
    session.run(MARK.replace("'{1}', 1)", "'{1}', 2)"), [*leader.fence, [other]])
    owner.run("COMMIT")
    assert session.run(RECORD, [*leader.fence, json.dumps(results)]) == [{"verdict": "applied"}]
    # The mark of the deferred call is gone, that of the other is not.
    [row] = outbox.call("operator", "cancel_intent", deferred, "ann", "a test")
    assert row["cancel_intent"] == "cancelled"
    [row] = outbox.call("operator", "cancel_intent", other, "ann", "a test")
    assert row["cancel_intent"] == "in_flight"


@pytest.mark.parametrize("statement", [*INTERVENTIONS.values(), SKIP], ids=[*INTERVENTIONS, "skip"])
def test_operator_is_told_at_once_that_a_locked_row_of_a_stream_is_in_flight(
    database, outbox, locked, statement
):
    """To wait would keep the holder of the stream from its lease."""
    outbox.publish("pay", scope="stream")
    [wanted] = outbox.enqueue(1, target="pay", stream="s")
    [stream] = claim_streams(outbox)
    owner = locked(wanted)
    operator = database.session("operator")
    assert operator.run(statement, [wanted]) == [{"verdict": "in_flight"}]
    stream.renew()
    owner.run("COMMIT")
    assert operator.run(statement, [wanted]) != [{"verdict": "in_flight"}]

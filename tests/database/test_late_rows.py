"""Rows that become claimable below a worker's low-water mark are found when it looks back.

Each test advances the marks of a real worker's bookkeeping with real claims, makes a row claimable
behind them, and checks both sides: a claim from the marks does not see it (that is the price of not
reading dead rows), and a claim after a look does; or a full walk, in the few cases that are left.
When these are due is tested with a clock in hand.
"""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from leasehold.domain.intent import Claimed
from leasehold.executor.low_water import (
    FULL_WALK_PAUSE_SECONDS_MAX,
    FULL_WALK_SECONDS,
    LOOK_PAUSE_SECONDS_MAX,
    LOOK_SECONDS,
    LowWaterMarks,
)
from leasehold.store.postgres.open_transactions import seen_after

pytestmark = pytest.mark.one_server

BATCH = 10


class Worker:
    """Claims as a worker does: from its marks, or by a full walk."""

    def __init__(self, outbox, name="worker-1"):
        self.outbox = outbox
        self.name = name
        self.marks = LowWaterMarks(lambda: 0.0)

    def claim(self, *, batch_size=BATCH, full=False):
        due_from = None if full else self.marks.due_from(["sms"])
        rows = self.outbox.call(
            "executor",
            "claim_outbox_batch",
            *(batch_size, self.name, 30.0, ["sms"], [batch_size], due_from),
        )
        claimed = [Claimed(**{name: row[name] for name in Claimed._fields}) for row in rows]
        taken = {"sms": len(claimed)}
        self.marks.advance(claimed, taken, {"sms": batch_size}, batch_size, is_full_walk=full)
        return claimed

    def look_back(self, *, clock_stepped_by=timedelta(0)):
        [row] = self.outbox.call("executor", "read_open_transactions")
        seen_at = row["seen_at"] + clock_stepped_by
        seen = seen_after(self.marks.seen, seen_at, row["transaction_ids"])
        self.marks.look_back(seen)
        return seen

    def ids(self, **how):
        return [one.intent_id for one in self.claim(**how)]


@pytest.fixture
def worker(outbox):
    """A worker that has claimed something, so that its marks are near the present."""
    outbox.publish()
    outbox.enqueue(3)
    worker = Worker(outbox)
    worker.look_back()
    assert len(worker.claim()) == 3
    return worker


def move_back(outbox, intent_id, seconds):
    """As if the row had been enqueued so long ago."""
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = due_at - make_interval(secs => %s)"
        " WHERE intent_id = %s",
        [seconds, intent_id],
    )


def assert_found_by_a_full_walk_only(worker, intent_id):
    assert worker.ids() == []
    assert worker.ids(full=True) == [intent_id]


def go_on(outbox, worker, looks=3):
    """Others enqueue, and the worker claims, well past the due times of open transactions."""
    for _ in range(looks):
        worker.look_back()
        outbox.database.execute("SELECT pg_sleep(0.06)")
        assert set(outbox.enqueue(3)) <= set(worker.ids())


@pytest.mark.every_server
@pytest.mark.parametrize("looks", [1, 2, 5])
def test_intent_that_is_committed_late_is_found_by_the_next_look(outbox, worker, looks):
    slow = outbox.database.session("ingest")
    slow.run("BEGIN")
    [row] = slow.run("SELECT leasehold.enqueue_intent('sms', '{}') AS intent_id")
    go_on(outbox, worker, looks)
    slow.run("COMMIT")
    assert worker.ids() == []
    worker.look_back()
    assert worker.ids() == [row["intent_id"]]


@pytest.mark.every_server
def test_intent_committed_late_is_found_although_nobody_else_has_written(outbox, worker):
    """A snapshot lists an open transaction only if one with a higher id has ended."""
    slow = outbox.database.session("ingest")
    slow.run("BEGIN")
    [row] = slow.run("SELECT leasehold.enqueue_intent('sms', '{}') AS intent_id")
    for _ in range(3):
        worker.look_back()
        assert worker.ids() == []
        outbox.database.execute("SELECT pg_sleep(0.06)")
    [other] = outbox.enqueue()
    worker.look_back()
    assert worker.ids() == [other]
    slow.run("COMMIT")
    worker.look_back()
    assert worker.ids() == [row["intent_id"]]


@pytest.mark.every_server
def test_intents_of_two_open_transactions_are_found_when_each_has_ended(outbox, worker):
    open_sessions, late = [outbox.database.session("ingest") for _ in range(2)], []
    for session in open_sessions:
        session.run("BEGIN")
        [row] = session.run("SELECT leasehold.enqueue_intent('sms', '{}') AS intent_id")
        late.append(row["intent_id"])
        go_on(outbox, worker, looks=2)
    for session, intent_id in zip(reversed(open_sessions), reversed(late), strict=True):
        session.run("COMMIT")
        worker.look_back()
        assert worker.ids() == [intent_id]
        go_on(outbox, worker, looks=2)


@pytest.mark.every_server
@pytest.mark.parametrize("keys", [["key"], ["key", "other"]])
def test_intent_that_waited_for_its_key_is_found_by_the_next_look(outbox, worker, keys):
    """Its due time is of before the wait, so its transaction must be seen during the wait."""
    entries = [{"target": "sms", "payload": 1, "idempotency_key": key} for key in keys]
    enqueue = "SELECT intent_id FROM leasehold.enqueue_intents(%s)", [json.dumps(entries)]
    first, second = (outbox.database.session("ingest") for _ in range(2))
    first.run("BEGIN")
    first.run(*enqueue)
    second.run("BEGIN")
    waiting = second.start(*enqueue)
    waiting.assert_blocked()
    go_on(outbox, worker)
    first.run("ROLLBACK")
    accepted = {row["intent_id"] for row in waiting.result()}
    go_on(outbox, worker)
    second.run("COMMIT")
    worker.look_back()
    assert set(worker.ids()) == accepted


@pytest.mark.every_server
@pytest.mark.parametrize(
    "call",
    [
        "claim_outbox_batch(1, 'worker-2', 30, '{sms}')",
        "repair_expired_leases(10, 'reaper')",
    ],
)
@pytest.mark.usefixtures("worker")
def test_due_time_of_an_expired_claim_counts_from_its_lock_not_the_search(outbox, call):
    """The search may take long. No look sees a transaction that has not locked anything yet."""
    [first] = outbox.enqueue()
    move_back(outbox, first, 60)
    outbox.expire_claims()
    operator, slow = (outbox.database.session(role) for role in (None, "executor"))
    operator.run("BEGIN")
    operator.run("LOCK TABLE leasehold.contracts")
    searching = slow.start(f"SELECT FROM leasehold.{call}")
    searching.assert_blocked()
    [locked] = outbox.database.execute("SELECT clock_timestamp() AS at")
    operator.run("COMMIT")
    searching.result()
    requeued = outbox.database.execute(
        "SELECT finished_at FROM leasehold.outbox_attempts WHERE state = 'ZOMBIE_REQUEUE'"
    )
    assert requeued
    assert all(row["finished_at"] > locked["at"] for row in requeued)


@pytest.mark.every_server
def test_transaction_that_stays_open_keeps_no_mark_back(outbox, worker):
    """Otherwise every look would read again what died since the transaction began."""
    forgotten = outbox.database.session("ingest")
    forgotten.run("BEGIN")
    forgotten.run("SELECT leasehold.enqueue_intent('sms', '{}')")
    go_on(outbox, worker, looks=2)
    looked_at = worker.look_back().seen_at
    go_on(outbox, worker, looks=2)
    worker.look_back()
    assert all(mark >= looked_at for mark in worker.marks.due_from(["sms"]))


def test_marks_of_an_idle_worker_advance_too(outbox, worker):
    """Its next claim need not read what others have finished meanwhile."""
    looked_at = worker.look_back().seen_at
    assert worker.claim() == []
    assert all(looked_at - mark < timedelta(seconds=1) for mark in worker.marks.due_from(["sms"]))
    new = Worker(outbox, "worker-2")
    assert new.claim() == []
    assert new.marks.due_from(["sms"])[0].year == 1, "it has not looked yet"


@pytest.mark.every_server
def test_intent_that_is_committed_a_little_late_is_found_at_once(outbox, worker):
    slow = outbox.database.session("ingest")
    slow.run("BEGIN")
    [row] = slow.run("SELECT leasehold.enqueue_intent('sms', '{}') AS intent_id")
    [other] = outbox.enqueue()
    assert worker.ids() == [other]
    slow.run("COMMIT")
    assert worker.ids() == [row["intent_id"]]


def test_claim_that_is_given_back_is_found_at_once(outbox, worker):
    [given_back] = outbox.enqueue()
    [claimed] = worker.claim()
    go_on(outbox, worker)
    held = [claimed.intent_id], [claimed.lease_token]
    outbox.call("executor", "release_outbox_claims", worker.name, *held, 0)
    assert worker.ids() == [given_back]


def test_intent_with_a_due_time_in_the_past_is_found_at_once(outbox, worker):
    [intent_id] = outbox.enqueue(due_at="2020-01-01T00:00:00Z")
    assert worker.ids() == [intent_id]


def test_retry_that_is_due_at_once_is_found_without_a_full_walk(outbox, worker):
    [retried] = outbox.enqueue()
    [claimed] = worker.claim()
    result = {"intent_id": claimed.intent_id, "lease_token": claimed.lease_token}
    outbox.complete([result], "RETRYABLE", retry_after_seconds=0)
    assert worker.ids() == [retried]


def test_redriven_intent_is_found_without_a_full_walk(outbox, worker):
    [rejected] = outbox.enqueue()
    [claimed] = worker.claim()
    result = {"intent_id": claimed.intent_id, "lease_token": claimed.lease_token}
    outbox.complete([result], "FAILED", reason="rejected")
    outbox.call("operator", "redrive_intents", [rejected], "ada", "again")
    [again] = worker.claim()
    assert again.intent_id != rejected


def test_first_intent_of_another_priority_is_found_without_a_full_walk(outbox, worker):
    for priority in (0, 3):
        [intent_id] = outbox.enqueue(priority=priority)
        assert worker.ids() == [intent_id]


@pytest.mark.every_server
def test_rows_of_a_claim_that_is_rolled_back_are_found_by_the_next_look(outbox, worker):
    worker.look_back()
    [first] = outbox.enqueue()
    dying = outbox.database.session("executor")
    dying.run("BEGIN")
    dying.run("SELECT FROM leasehold.claim_outbox_batch(1, 'dying', 30, '{sms}')")
    outbox.database.execute("SELECT pg_sleep(0.06)")
    [second] = outbox.enqueue()
    assert worker.ids() == [second]
    dying.run("ROLLBACK")
    assert worker.ids() == []
    worker.look_back()
    assert worker.ids() == [first]


@pytest.mark.every_server
def test_row_that_was_locked_for_several_looks_is_found_by_a_full_walk(outbox, worker):
    [locked] = outbox.enqueue()
    move_back(outbox, locked, 60)
    operator = outbox.database.session()
    operator.run("BEGIN")
    operator.run("SELECT FROM leasehold.outbox_pending WHERE intent_id = %s FOR UPDATE", [locked])
    go_on(outbox, worker)
    operator.run("ROLLBACK")
    worker.look_back()
    assert_found_by_a_full_walk_only(worker, locked)


def test_clock_that_stepped_back_hides_new_intents_until_the_next_look_only(outbox, worker):
    """The marks are of before the step; what is enqueued after it is due before them."""
    go_on(outbox, worker)
    [intent_id] = outbox.enqueue()
    move_back(outbox, intent_id, 3600)
    assert worker.ids() == []
    worker.look_back()
    assert worker.ids() == []
    worker.look_back(clock_stepped_by=-timedelta(hours=1))
    assert worker.ids() == [intent_id]


@pytest.mark.every_server
def test_transaction_that_was_open_when_the_clock_stepped_back_is_found_when_it_ends(
    outbox, worker
):
    slow = outbox.database.session("ingest")
    slow.run("BEGIN")
    [row] = slow.run("SELECT leasehold.enqueue_intent('sms', '{}') AS intent_id")
    go_on(outbox, worker)
    worker.look_back()
    worker.look_back(clock_stepped_by=-timedelta(hours=1))
    go_on(outbox, worker)
    slow.run("COMMIT")
    move_back(outbox, row["intent_id"], 3600)  # it was enqueued after the step
    worker.look_back()
    assert worker.ids() == [row["intent_id"]]


@pytest.mark.usefixtures("worker")
def test_restarted_worker_begins_with_everything_that_is_due(outbox):
    [old] = outbox.enqueue()
    move_back(outbox, old, 3600)
    assert Worker(outbox, "worker-2").ids() == [old]


def test_claim_expired_before_its_call_is_ended_by_a_full_walk(outbox, worker):
    [intent_id] = outbox.enqueue()
    Worker(outbox, "dead").claim()
    outbox.expire_claims()
    worker.claim()
    assert outbox.states(intent_id) == []
    worker.claim(full=True)
    assert outbox.states(intent_id) == ["ZOMBIE_REQUEUE"]


def test_mark_of_a_target_with_more_work_stays_at_its_last_row(outbox):
    outbox.publish()
    outbox.enqueue(5)
    worker = Worker(outbox)
    assert len(worker.claim(batch_size=3)) == 3
    assert len(worker.claim(batch_size=3)) == 2


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_look_is_due_once_a_second(worker):
    clock = Clock()
    marks = LowWaterMarks(clock)
    assert marks.is_look_due()
    marks.look_back(worker.look_back())
    assert not marks.is_look_due()
    clock.now += LOOK_SECONDS
    assert marks.is_look_due()


@pytest.mark.every_server
def test_look_after_a_slow_claim_that_went_back_waits_for_ten_times_its_duration(worker):
    """Transactions that last a minute may end all the time: each sends the next claim back."""
    clock = Clock()
    worker.marks = LowWaterMarks(clock)
    worker.look_back()
    worker.claim()
    worker.look_back()
    clock.now += 0.3
    worker.marks.claim_ended(["sms"], started_at=100.0)
    clock.now += 2.9
    assert not worker.marks.is_look_due()
    worker.marks.claim_ended(["sms"], started_at=clock.now - 0.3)  # it did not go back
    clock.now += 0.2
    assert worker.marks.is_look_due()


def test_stalled_database_puts_off_looks_for_five_seconds_at_most(worker):
    clock = Clock()
    worker.marks = LowWaterMarks(clock)
    worker.look_back()
    worker.claim()
    worker.look_back()
    clock.now += 20
    worker.marks.claim_ended(["sms"], started_at=100.0)
    assert not worker.marks.is_look_due()
    clock.now += LOOK_PAUSE_SECONDS_MAX
    assert worker.marks.is_look_due()


def test_full_walk_is_due_at_every_poll_and_once_a_second_under_load():
    clock = Clock()
    marks = LowWaterMarks(clock)
    assert marks.is_full_walk_due(["sms"], is_wanted=True)
    marks.full_walk_ended(["sms"], started_at=clock.now)
    assert not marks.is_full_walk_due(["sms"], is_wanted=False)
    assert marks.is_full_walk_due(["sms"], is_wanted=True)
    clock.now += FULL_WALK_SECONDS
    assert marks.is_full_walk_due(["sms"], is_wanted=False)


def test_slow_full_walk_is_not_repeated_before_fifty_times_its_duration():
    clock = Clock()
    marks = LowWaterMarks(clock)
    clock.now += 0.3
    marks.full_walk_ended(["sms"], started_at=100.0)
    clock.now += 14.9
    assert not marks.is_full_walk_due(["sms"], is_wanted=True)
    clock.now += 0.2
    assert marks.is_full_walk_due(["sms"], is_wanted=True)


def test_stalled_database_puts_off_full_walks_for_half_a_minute_at_most():
    clock = Clock()
    marks = LowWaterMarks(clock)
    clock.now += 20
    marks.full_walk_ended(["sms"], started_at=100.0)
    clock.now += FULL_WALK_PAUSE_SECONDS_MAX
    assert marks.is_full_walk_due(["sms"], is_wanted=True)


def test_claim_with_impossible_expiry_is_repaired_one_lease_after_the_clock_stepped_back(outbox):
    outbox.publish()
    [intent_id] = outbox.enqueue()
    outbox.claim("dead", lease_seconds=30)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending"
        "   SET lease_expires_at = lease_expires_at + interval '1 hour'"
    )
    assert outbox.call("executor", "repair_expired_leases", 10, "reaper") == []
    row = outbox.pending(intent_id)
    assert row["lease_expires_at"] - row["seen_at"] <= timedelta(seconds=30)
    outbox.expire_claims()
    [repaired] = outbox.call("executor", "repair_expired_leases", 10, "reaper")
    assert repaired["state"] == "ZOMBIE_REQUEUE"

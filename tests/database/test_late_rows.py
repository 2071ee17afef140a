"""Rows that become claimable below a worker's low-water mark are found by its next full walk.

Each test advances the marks of a real worker's bookkeeping with real claims, makes a row claimable
behind them, and checks both sides: a claim from the marks does not see it (that is the price of not
reading dead rows), and a full walk does. When a full walk is due is tested with a clock in hand.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from leasehold.domain.intent import Claimed
from leasehold.executor.low_water import (
    FULL_WALK_PAUSE_SECONDS_MAX,
    FULL_WALK_SECONDS,
    LowWaterMarks,
)

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
        self.marks.advance(claimed, {"sms": batch_size}, batch_size, is_full_walk=full)
        return claimed

    def ids(self, **how):
        return [one.intent_id for one in self.claim(**how)]


@pytest.fixture
def worker(outbox):
    """A worker that has claimed something, so that its marks are near the present."""
    outbox.publish()
    outbox.enqueue(3)
    worker = Worker(outbox)
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


def test_intent_that_is_committed_late_is_found_by_a_full_walk(outbox, worker):
    slow = outbox.database.session("ingest")
    slow.run("BEGIN")
    [row] = slow.run("SELECT leasehold.enqueue_intent('sms', '{}') AS intent_id")
    # Others go on meanwhile, well past the due time of the open transaction.
    outbox.enqueue(3)
    move_back(outbox, row["intent_id"], 0)  # invisible, so nothing moves
    worker.claim()
    slow.run("COMMIT")
    move_back(outbox, row["intent_id"], 60)
    assert_found_by_a_full_walk_only(worker, row["intent_id"])


def test_intent_that_is_committed_a_little_late_is_found_at_once(outbox, worker):
    slow = outbox.database.session("ingest")
    slow.run("BEGIN")
    [row] = slow.run("SELECT leasehold.enqueue_intent('sms', '{}') AS intent_id")
    [other] = outbox.enqueue()
    assert worker.ids() == [other]
    slow.run("COMMIT")
    assert worker.ids() == [row["intent_id"]]


def test_claim_that_is_given_back_is_found_by_a_full_walk(outbox, worker):
    [given_back] = outbox.enqueue()
    move_back(outbox, given_back, 60)
    [claimed] = worker.claim(full=True)
    held = [claimed.intent_id], [claimed.lease_token]
    outbox.call("executor", "release_outbox_claims", worker.name, *held, 0)
    assert_found_by_a_full_walk_only(worker, given_back)


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


def test_claim_that_is_rolled_back_leaves_its_rows_to_a_full_walk(outbox, worker):
    [first, second] = outbox.enqueue(2)
    move_back(outbox, first, 60)
    dying = outbox.database.session("executor")
    dying.run("BEGIN")
    dying.run("SELECT FROM leasehold.claim_outbox_batch(1, 'dying', 30, '{sms}')")
    assert worker.ids() == [second]
    dying.run("ROLLBACK")
    assert_found_by_a_full_walk_only(worker, first)


def test_clock_that_stepped_back_hides_new_intents_no_longer_than_until_a_full_walk(outbox, worker):
    """The marks are of before the step; what is enqueued after it is due before them."""
    [intent_id] = outbox.enqueue()
    move_back(outbox, intent_id, 3600)
    assert_found_by_a_full_walk_only(worker, intent_id)


@pytest.mark.usefixtures("worker")
def test_restarted_worker_begins_with_everything_that_is_due(outbox):
    [old] = outbox.enqueue()
    move_back(outbox, old, 3600)
    assert Worker(outbox, "worker-2").ids() == [old]


def test_claim_expired_before_its_call_is_taken_over_by_a_full_walk(outbox, worker):
    [intent_id] = outbox.enqueue()
    Worker(outbox, "dead").claim()
    outbox.expire_claims()
    assert intent_id not in worker.ids()
    assert intent_id in worker.ids(full=True)


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


def test_full_walk_is_due_at_every_poll_and_once_a_second_under_load():
    clock = Clock()
    marks = LowWaterMarks(clock)
    assert marks.is_full_walk_due(["sms"], is_poll=True)
    marks.full_walk_ended(["sms"], started_at=clock.now)
    assert not marks.is_full_walk_due(["sms"], is_poll=False)
    assert marks.is_full_walk_due(["sms"], is_poll=True)
    clock.now += FULL_WALK_SECONDS
    assert marks.is_full_walk_due(["sms"], is_poll=False)


def test_slow_full_walk_is_not_repeated_before_fifty_times_its_duration():
    clock = Clock()
    marks = LowWaterMarks(clock)
    clock.now += 0.3
    marks.full_walk_ended(["sms"], started_at=100.0)
    clock.now += 14.9
    assert not marks.is_full_walk_due(["sms"], is_poll=True)
    clock.now += 0.2
    assert marks.is_full_walk_due(["sms"], is_poll=True)


def test_stalled_database_puts_off_full_walks_for_half_a_minute_at_most():
    clock = Clock()
    marks = LowWaterMarks(clock)
    clock.now += 20
    marks.full_walk_ended(["sms"], started_at=100.0)
    clock.now += FULL_WALK_PAUSE_SECONDS_MAX
    assert marks.is_full_walk_due(["sms"], is_poll=True)


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

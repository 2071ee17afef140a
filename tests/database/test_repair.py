"""Repair: expired claims of dead workers are finished or requeued once, in their name."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from tests.support.database import FOREVER
from tests.support.race import race

pytestmark = pytest.mark.one_server

END_BY_HAND = (
    "INSERT INTO leasehold.outbox_attempts"
    " (intent_id, attempt_no, state, holder, started_at, finished_at)"
    " VALUES (%s, 1, 'DISPATCHED', 'by hand', now(), now())"
)


def repair(outbox, batch_size=100, worker="reaper"):
    return outbox.call("executor", "repair_expired_leases", batch_size, worker)


def dead_claims(outbox, count=1, target="sms", *, begun=False, **terms):
    """Return claims of a worker that died before or after it began its calls."""
    outbox.publish(target, **terms)
    outbox.enqueue(count, target=target)
    claims = outbox.claim("dead", batch_size=count, targets=[target])
    if begun:
        outbox.begin(claims, "dead")
    outbox.expire_claims(seconds_ago=3)
    return claims


def test_claim_of_a_dead_worker_is_requeued_in_its_name_after_one_second(outbox):
    [claim] = dead_claims(outbox)
    [repaired] = repair(outbox)
    [row] = outbox.ledger(claim["intent_id"])
    pending = outbox.pending(claim["intent_id"])
    assert (row["attempt_no"], row["state"], row["holder"]) == (1, "ZOMBIE_REQUEUE", "dead")
    assert (row["lease_token"], row["reason"]) == (claim["lease_token"], "lease_expired")
    assert pending["due_at"] - row["finished_at"] == timedelta(seconds=1)
    assert pending["attempt_count"] == 1
    assert pending["claimed_by"] is None
    assert pending["lease_token"] is None
    assert pending["lease_expires_at"] is None
    assert (repaired["intent_id"], repaired["target"]) == (claim["intent_id"], "sms")
    assert (repaired["replaced_holder"], repaired["attempt_no"]) == ("dead", 1)
    assert 3 <= repaired["stale_seconds"] < 60
    assert outbox.claim() == []


def test_live_claim_and_unclaimed_row_are_left_alone(outbox):
    outbox.publish()
    outbox.enqueue(2)
    [claim] = outbox.claim(batch_size=1)
    assert repair(outbox) == []
    assert outbox.pending(claim["intent_id"])["lease_token"] == claim["lease_token"]


def test_repair_takes_no_more_than_its_batch(outbox):
    dead_claims(outbox, 5)
    assert [len(repair(outbox, 2)) for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.every_server
def test_eight_reapers_repair_two_hundred_rows_each_exactly_once(outbox):
    claims = dead_claims(outbox, 200)

    def repair_all(caller, number):
        repaired = []
        while rows := repair(caller, 10, f"reaper-{number}"):
            repaired += [row["intent_id"] for row in rows]
        return repaired

    repaired = Counter(intent for some in race(outbox.database, 8, repair_all) for intent in some)
    assert repaired == Counter(claim["intent_id"] for claim in claims)
    rows = outbox.database.execute(
        "SELECT DISTINCT attempt_no, state FROM leasehold.outbox_attempts"
    )
    assert rows == [{"attempt_no": 1, "state": "ZOMBIE_REQUEUE"}]
    assert outbox.database.execute("SELECT count(*) AS n FROM leasehold.outbox_attempts") == [
        {"n": 200}
    ]


@pytest.mark.every_server
def test_reaper_and_claimers_together_replace_each_dead_worker_once(outbox):
    claims = dead_claims(outbox, 100)

    def replace(caller, number):
        return repair(caller, 20) if number % 2 else caller.claim(f"worker-{number}", 20)

    race(outbox.database, 8, replace)
    repair(outbox)
    numbers = outbox.database.execute(
        "SELECT intent_id, max(attempt_no) AS last, count(*) AS n"
        "  FROM leasehold.outbox_attempts GROUP BY 1"
    )
    assert len(numbers) == len(claims)
    assert {(row["last"], row["n"]) for row in numbers} == {(1, 1)}


@pytest.mark.parametrize(
    ("terms", "delay_seconds", "status"),
    [
        ({"guarantee": "keyed"}, 1, "in_doubt"),
        ({"guarantee": "fenced"}, 1, "in_doubt"),
        ({"guarantee": "lookup", "quarantine_seconds": 77}, 77, "in_doubt"),
        ({"guarantee": "blind"}, None, "held"),
    ],
    ids=lambda value: value.get("guarantee") if isinstance(value, dict) else None,
)
def test_begun_call_of_a_dead_worker_is_in_doubt_and_due_by_its_guarantee(
    outbox, terms, delay_seconds, status
):
    [claim] = dead_claims(outbox, begun=True, **terms)
    begun_at = outbox.pending(claim["intent_id"])["begun_at"]
    [repaired] = repair(outbox)
    [row] = outbox.ledger(claim["intent_id"])
    pending = outbox.pending(claim["intent_id"])
    assert repaired["state"] == row["state"] == "IN_DOUBT"
    assert (row["holder"], row["started_at"]) == ("dead", begun_at)
    assert pending["begun_at"] is None
    assert outbox.status(claim["intent_id"]) == status
    if delay_seconds is None:
        assert pending["due_at"] == FOREVER
    else:
        assert pending["due_at"] - row["finished_at"] == timedelta(seconds=delay_seconds)


def test_doubt_past_the_key_window_is_looked_up_or_held_and_not_resent(outbox):
    terms = {"guarantee": "keyed", "key_window_seconds": 3600, "quarantine_seconds": 90}
    fresh, old = dead_claims(outbox, 2, begun=True, can_look_up=True, **terms)
    [silent] = dead_claims(outbox, 1, "silent", begun=True, **terms)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET first_tried_at = clock_timestamp() - interval '61 min'"
        " WHERE intent_id <> %s",
        [fresh["intent_id"]],
    )
    repair(outbox)
    delays = []
    for claim in (fresh, old):
        [row] = outbox.ledger(claim["intent_id"])
        delays.append(outbox.pending(claim["intent_id"])["due_at"] - row["finished_at"])
    assert delays == [timedelta(seconds=1), timedelta(seconds=90)]
    assert outbox.status(silent["intent_id"]) == "held"


def test_keyed_doubt_with_no_attempt_left_is_held_and_not_failed(outbox):
    [claim] = dead_claims(outbox, begun=True, attempts_max=1)
    repair(outbox)
    assert outbox.states(claim["intent_id"]) == ["IN_DOUBT"]
    assert outbox.status(claim["intent_id"]) == "held"


def test_poison_work_that_kills_every_worker_ends_as_failed(outbox):
    [claim] = dead_claims(outbox, attempts_max=3)
    for _ in range(2):
        repair(outbox)
        outbox.make_due()
        outbox.claim("next victim")
        outbox.expire_claims()
    [last] = repair(outbox)
    assert (last["state"], last["reason"]) == ("FAILED", "max_attempts")
    assert outbox.states(claim["intent_id"]) == ["ZOMBIE_REQUEUE", "ZOMBIE_REQUEUE", "FAILED"]
    assert outbox.status(claim["intent_id"]) == "exhausted"
    assert repair(outbox) == []


def test_poison_work_ends_too_if_claims_come_before_the_reaper(outbox):
    [claim] = dead_claims(outbox, attempts_max=4)
    for _ in range(3):
        assert outbox.claim("finder") == [], "it ends the claim, and the intent is due in a second"
        outbox.make_due()
        assert len(outbox.claim("next victim")) == 1
        outbox.expire_claims()
    assert outbox.claim("last") == []
    [last] = repair(outbox)
    assert (last["attempt_no"], last["state"]) == (4, "FAILED")
    assert outbox.states(claim["intent_id"]) == [*["ZOMBIE_REQUEUE"] * 3, "FAILED"]


def test_one_shot_intent_of_a_dead_worker_is_not_retried(outbox):
    [claim] = dead_claims(outbox, retry_policy="one_shot")
    [row] = repair(outbox)
    assert (row["state"], row["reason"]) == ("FAILED", "one_shot")
    assert outbox.pending(claim["intent_id"]) is None


def test_claim_of_a_dead_worker_past_its_deadline_ends_as_failed(outbox):
    [claim] = dead_claims(outbox, retry_policy="deadline", deadline_seconds=60)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp() - interval '1 second'"
    )
    assert outbox.claim() == []
    [row] = repair(outbox)
    assert (row["state"], row["reason"]) == ("FAILED", "deadline_exceeded")
    assert outbox.status(claim["intent_id"]) == "exhausted"


# Intents in doubt stay in doubt if a worker dies during its lookup


@pytest.mark.parametrize("successor", ["reaper", "claimer"])
@pytest.mark.parametrize(
    ("doubt", "status"), [("IN_DOUBT", "in_doubt"), ("SUBMITTED", "confirming")]
)
def test_worker_that_dies_during_a_lookup_leaves_the_intent_in_doubt(
    outbox, doubt, status, successor
):
    outbox.publish(guarantee="lookup")
    [intent] = outbox.enqueue()
    claims = outbox.claim()
    outbox.begin(claims)
    outbox.complete(claims, doubt)
    outbox.make_due()
    assert len(outbox.claim("asker")) == 1
    outbox.expire_claims()
    if successor == "reaper":
        repair(outbox)
        outbox.make_due()
    again = outbox.claim("successor")
    if not again:
        outbox.make_due()
        again = outbox.claim("successor")
    assert [claim["last_state"] for claim in again] == [doubt]
    assert outbox.status(intent) == status


def test_intent_in_doubt_never_fails_because_workers_died(outbox):
    outbox.publish(guarantee="lookup", attempts_max=3)
    [intent] = outbox.enqueue()
    claims = outbox.claim()
    outbox.begin(claims)
    outbox.complete(claims, "IN_DOUBT")
    for _ in range(4):
        outbox.make_due()
        outbox.claim("asker")
        outbox.expire_claims()
        repair(outbox)
    assert "FAILED" not in outbox.states(intent)
    assert outbox.status(intent) in ("in_doubt", "held")


# Bad rows


def collect_warnings(outbox):
    warnings = []
    outbox.as_role("executor").add_notice_handler(
        lambda notice: warnings.append(notice.message_primary)
    )
    return warnings


@pytest.mark.parametrize("batch_size", [1, 100])
def test_finished_row_does_not_prevent_the_repair_of_others(outbox, batch_size):
    warnings = collect_warnings(outbox)
    bad, *good = dead_claims(outbox, 4, attempts_max=1)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET lease_expires_at = lease_expires_at - interval '1 min'"
        " WHERE intent_id = %s",
        [bad["intent_id"]],
    )
    outbox.database.owner_execute(END_BY_HAND, [bad["intent_id"]])
    rows = [row for _ in range(5) for row in repair(outbox, batch_size)]
    repaired = [row["intent_id"] for row in rows if row["attempt_no"] is not None]
    assert Counter(repaired) == Counter(claim["intent_id"] for claim in good)
    [hit] = [row for row in rows if row["attempt_no"] is None]
    assert (hit["intent_id"], hit["reason"]) == (bad["intent_id"], "terminal_guard_hit")
    assert outbox.states(bad["intent_id"]) == ["DISPATCHED"]
    assert outbox.pending(bad["intent_id"]) is None
    assert ["finished but still had a pending row" in warning for warning in warnings] == [True]


def unrepairable(outbox, claim):
    """Make the ledger refuse this intent for a reason that repair does not know."""
    outbox.database.owner_execute(
        "ALTER TABLE leasehold.outbox_attempts"
        f" ADD CONSTRAINT poison CHECK (intent_id <> '{claim['intent_id']}')"
    )
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET lease_expires_at = lease_expires_at - interval '1 min'"
        " WHERE intent_id = %s",
        [claim["intent_id"]],
    )


def test_row_that_cannot_be_repaired_is_set_aside_with_a_warning_for_a_minute(outbox):
    warnings = collect_warnings(outbox)
    bad, *good = dead_claims(outbox, 4)
    unrepairable(outbox, bad)
    repaired = [row["intent_id"] for _ in range(4) for row in repair(outbox, 1)]
    assert Counter(repaired) == Counter(claim["intent_id"] for claim in good)
    assert len(warnings) == 1
    assert f"intent {bad['intent_id']} could not be repaired (23514)" in warnings[0]
    row = outbox.pending(bad["intent_id"])
    assert timedelta(0) < row["lease_expires_at"] - row["seen_at"] <= timedelta(minutes=1)
    outbox.database.owner_execute("ALTER TABLE leasehold.outbox_attempts DROP CONSTRAINT poison")
    outbox.expire_claims()
    assert [row["intent_id"] for row in repair(outbox)] == [bad["intent_id"]]


def test_dead_worker_cannot_use_a_claim_that_repair_set_aside(outbox):
    [claim] = dead_claims(outbox)
    unrepairable(outbox, claim)
    repair(outbox)
    outbox.database.owner_execute("ALTER TABLE leasehold.outbox_attempts DROP CONSTRAINT poison")
    held = [claim["intent_id"]], [claim["lease_token"]]
    [renewed] = outbox.call("executor", "renew_outbox_leases", "dead", *held, 30)
    assert renewed["verdict"] == "lease_lost"
    assert outbox.begin([claim], "dead")[0]["verdict"] == "lease_lost"
    assert outbox.complete([claim], worker="dead")[0]["verdict"] == "lease_lost"
    assert outbox.ledger(claim["intent_id"]) == []


def test_bad_row_does_not_prevent_claims(outbox):
    warnings = collect_warnings(outbox)
    bad, *good = dead_claims(outbox, 3)
    unrepairable(outbox, bad)
    [fresh] = outbox.enqueue()
    assert [claim["intent_id"] for claim in outbox.claim()] == [fresh]
    assert "left to repair (23514)" in warnings[0]
    repair(outbox)
    outbox.make_due()
    assert {claim["intent_id"] for claim in outbox.claim()} == {row["intent_id"] for row in good}


# Deadlines


def test_item_that_nobody_claimed_before_its_deadline_fails(outbox):
    outbox.publish("lookup", guarantee="lookup")
    outbox.publish()
    missed, claimed, in_time = outbox.enqueue(3, deadline_seconds=600)
    [doubted] = outbox.enqueue(target="lookup", deadline_seconds=600)
    calls = outbox.claim(targets=["lookup"])
    outbox.begin(calls)
    outbox.complete(calls, "IN_DOUBT")
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = due_at - interval '1 hour'"
        " WHERE intent_id = %s",
        [claimed],
    )
    outbox.claim(batch_size=1)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp() WHERE intent_id <> %s",
        [in_time],
    )
    rows = outbox.call("executor", "repair_missed_deadlines", 10, "reaper")
    assert rows == [{"intent_id": missed, "attempt_no": 1, "trace_context": None}]
    [row] = outbox.ledger(missed)
    assert (row["state"], row["reason"], row["holder"]) == (
        "FAILED",
        "deadline_exceeded",
        "reaper",
    )
    assert outbox.pending(missed) is None
    statuses = [outbox.status(intent) for intent in (missed, claimed, in_time, doubted)]
    assert statuses == ["exhausted", "pending", "pending", "in_doubt"]


@pytest.mark.every_server
def test_eight_reapers_fail_each_missed_deadline_once(outbox):
    outbox.publish()
    ids = outbox.enqueue(60, deadline_seconds=600)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp()"
    )

    def repair_some(caller, _):
        rows = [caller.call("executor", "repair_missed_deadlines", 7, "reaper") for _ in range(10)]
        return [row["intent_id"] for some in rows for row in some]

    repaired = [intent for some in race(outbox.database, 8, repair_some) for intent in some]
    assert Counter(repaired) == Counter(ids)


def test_finished_row_does_not_prevent_the_repair_of_other_deadlines(outbox):
    warnings = collect_warnings(outbox)
    outbox.publish()
    bad, *good = outbox.enqueue(4, deadline_seconds=600)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp()"
    )
    outbox.database.owner_execute(END_BY_HAND, [bad])
    rows = outbox.call("executor", "repair_missed_deadlines", 10, "reaper")
    repaired = [row["intent_id"] for row in rows if row["attempt_no"] is not None]
    assert Counter(repaired) == Counter(good)
    assert [row["intent_id"] for row in rows if row["attempt_no"] is None] == [bad]
    assert f"intent {bad} could not be repaired (23505)" in warnings[0]
    assert outbox.pending(bad) is None
    assert outbox.states(bad) == ["DISPATCHED"]

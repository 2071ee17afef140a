"""The count of a queue with a limit starts at a low-water mark and misses no row below it.

Each test counts, lets an hour pass, so that the marks are far above what was pending before, and
counts again. A row below its mark is not counted; that is the price of not reading dead rows. So
nothing may become pending there, and what is committed late must move the marks back.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.mutants import mutate
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

TERMS = {
    "item": {"scope": "item"},
    "cluster": {"scope": "cluster", "lease_name": "executor"},
}
SCOPES = pytest.mark.parametrize("scope", TERMS)


def publish(outbox, scope="item", **terms):
    outbox.publish(**(TERMS[scope] | {"pending_max": 1000} | terms))


def depth(outbox):
    return outbox.count_depths()["sms"]


def pass_an_hour(outbox, *open_sessions):
    """Move what is pending, and the looks, back by an hour; the minute of the full count lasts."""
    for run in (outbox.database.owner_execute, *(session.run for session in open_sessions)):
        run("UPDATE leasehold.outbox_pending SET due_at = due_at - interval '1 hour'")
    outbox.database.owner_execute(
        "UPDATE leasehold.queue_depths SET due_from = ARRAY("
        "  SELECT one - interval '1 hour' FROM unnest(due_from) AS one)"
    )
    outbox.database.owner_execute(
        "UPDATE leasehold.watch_turns SET full_at = 'infinity',"
        "  looked_at = looked_at - interval '1 hour', open_since = ARRAY("
        "    SELECT one - interval '1 hour' FROM unnest(open_since) AS one)"
    )


def marks_are_recent(outbox):
    """Say whether the next count starts a little before now; a later mark would be wrong."""
    [row] = outbox.database.execute(
        "SELECT bool_and(one BETWEEN clock_timestamp() - interval '1 minute'"
        "                        AND clock_timestamp()) AS are_recent"
        "  FROM leasehold.queue_depths, unnest(due_from) AS one"
    )
    return row["are_recent"]


def open_enqueue(outbox, count, target="sms"):
    """Enqueue in a transaction that stays open."""
    session = outbox.database.session()
    session.run("BEGIN")
    session.run(
        "SELECT FROM leasehold.enqueue_intents((SELECT jsonb_agg(jsonb_build_object("
        " 'target', %s::text, 'payload', n)) FROM generate_series(1, %s) AS n))",
        [target, count],
    )
    return session


@SCOPES
@pytest.mark.parametrize("looks", [1, 3])
def test_late_commit_of_many_rows_is_in_the_next_count(outbox, scope, looks):
    publish(outbox, scope)
    assert depth(outbox) == 0
    slow = open_enqueue(outbox, 50)
    for _ in range(looks):
        assert depth(outbox) == 0
        pass_an_hour(outbox, slow)
    outbox.enqueue(2)
    assert depth(outbox) == 2
    assert marks_are_recent(outbox)
    slow.run("COMMIT")
    assert depth(outbox) == 52
    pass_an_hour(outbox)
    assert depth(outbox) == 52


def test_count_that_does_not_look_back_would_miss_a_late_commit(outbox):
    move_back = r"v_changed_from < ANY \(due_from\)"
    mutate(outbox.database, "record_queue_depths", move_back, "false")
    publish(outbox)
    depth(outbox)
    slow = open_enqueue(outbox, 5)
    depth(outbox)
    pass_an_hour(outbox, slow)
    depth(outbox)
    slow.run("COMMIT")
    assert depth(outbox) == 0


def test_late_commits_of_two_transactions_are_counted_when_each_has_ended(outbox):
    publish(outbox)
    depth(outbox)
    first = open_enqueue(outbox, 3)
    depth(outbox)
    pass_an_hour(outbox, first)
    second = open_enqueue(outbox, 4)
    depth(outbox)
    pass_an_hour(outbox, first, second)
    assert depth(outbox) == 0
    second.run("COMMIT")
    assert depth(outbox) == 4
    first.run("COMMIT")
    assert depth(outbox) == 7


def test_transaction_that_stays_open_keeps_no_mark_back(outbox):
    publish(outbox)
    depth(outbox)
    slow = open_enqueue(outbox, 3)
    for _ in range(2):
        depth(outbox)
        pass_an_hour(outbox, slow)
    depth(outbox)
    assert marks_are_recent(outbox)


def test_late_commit_counts_for_a_queue_that_the_turn_did_not_reach(outbox):
    """A turn ends after 50,000 rows; the other queues learn of the transaction all the same."""
    publish(outbox)
    outbox.publish("vast", pending_max=100_000)
    assert outbox.count_depths() == {"sms": 0, "vast": 0}
    slow = open_enqueue(outbox, 5)
    outbox.count_depths()
    pass_an_hour(outbox, slow)
    outbox.count_depths()
    outbox.database.owner_execute(
        "INSERT INTO leasehold.outbox_pending"
        "       (intent_id, scope, target, contract_version, priority, due_at, last_modified_at)"
        " SELECT gen_random_uuid(), 'item', 'vast', 1, 1, clock_timestamp(), clock_timestamp()"
        "   FROM generate_series(1, 50000)"
    )
    slow.run("COMMIT")
    outbox.database.owner_execute(
        "UPDATE leasehold.queue_depths SET seen_at = '-infinity' WHERE target = 'vast'"
    )
    assert outbox.count_depths() == {"sms": 0, "vast": 50_000}
    assert outbox.count_depths() == {"sms": 5, "vast": 50_000}


def give_back(outbox, claims):
    held = [claim["intent_id"] for claim in claims], [claim["lease_token"] for claim in claims]
    outbox.call("executor", "release_outbox_claims", "worker-1", *held, 0)


def lose(outbox, _claims):
    outbox.expire_claims()
    assert outbox.call("executor", "repair_expired_leases", 10, "reaper")


def hold(outbox, claims):
    outbox.begin(claims)
    outbox.complete(claims, "IN_DOUBT")
    assert {outbox.status(claim["intent_id"]) for claim in claims} == {"held"}


def resolve(outbox, claims):
    for claim in claims:
        decided = claim["intent_id"], "RETRYABLE", "ada", "not sent"
        [row] = outbox.call("operator", "resolve_intent", *decided)
        assert row["resolve_intent"] == "resolved"


def redrive(outbox, claims):
    outbox.complete(claims, "FAILED", reason="rejected")
    ids = [claim["intent_id"] for claim in claims]
    rows = outbox.call("operator", "redrive_intents", ids, "ada", "again")
    assert {row["verdict"] for row in rows} == {"redriven"}


def put_off(outbox, claims):
    outbox.complete(claims, "DEFERRED", retry_after_seconds=7200)


def retry(outbox, claims):
    outbox.complete(claims, "RETRYABLE", retry_after_seconds=0)


@pytest.mark.parametrize(
    "steps", [[], [put_off], [retry], [give_back], [lose], [hold, resolve], [redrive]]
)
def test_no_pending_row_gets_lost_below_its_mark(outbox, steps):
    publish(outbox, guarantee="blind")
    outbox.enqueue(3)
    claims = outbox.claim()
    assert depth(outbox) == 3
    for step in steps:
        step(outbox, claims)
        assert depth(outbox) == 3
        pass_an_hour(outbox)
        assert depth(outbox) == 3
    outbox.enqueue(1, delay_seconds=3600)
    outbox.enqueue(1, due_at="2020-01-01T00:00:00Z")
    assert depth(outbox) == 5


def test_each_priority_has_a_mark_of_its_own(outbox):
    """A backlog of low priority does not make the count read what died before it."""
    publish(outbox)
    outbox.enqueue(2, priority=3)
    depth(outbox)
    pass_an_hour(outbox)
    assert depth(outbox) == 2
    [row] = outbox.database.execute(
        "SELECT clock_timestamp() - interval '1 minute' < ALL (due_from[1:3]) AS others_are_new,"
        "       clock_timestamp() - interval '1 minute' > due_from[4] AS last_is_old"
        "  FROM leasehold.queue_depths"
    )
    assert row == {"others_are_new": True, "last_is_old": True}
    outbox.enqueue(1, priority=0)
    assert depth(outbox) == 3


def test_raised_limit_counts_what_the_lower_one_did_not_reach(outbox):
    publish(outbox, pending_max=3)
    for priority in range(4):
        outbox.enqueue(2, priority=priority)
    for _ in range(2):
        assert depth(outbox) == 3
        pass_an_hour(outbox)
    publish(outbox, pending_max=100)
    assert depth(outbox) == 8


def test_mark_of_a_full_queue_advances_too(outbox):
    publish(outbox, pending_max=2)
    outbox.enqueue(5)
    depth(outbox)
    pass_an_hour(outbox)
    outbox.complete(outbox.claim())
    outbox.enqueue(5)
    assert depth(outbox) == 2
    assert marks_are_recent(outbox)


def test_target_that_changes_its_scope_is_counted_in_all_of_them(outbox):
    for scope, name in (
        ("cluster", "executor"),
        ("cluster", "annex"),
        ("stream", None),
        ("item", None),
        ("cluster", "executor"),
    ):
        outbox.publish(scope=scope, pending_max=100, **({"lease_name": name} if name else {}))
        before = outbox.count_depths().get("sms", 0)
        outbox.enqueue(2, **({"stream": "a"} if scope == "stream" else {}))
        assert depth(outbox) == before + 2
        pass_an_hour(outbox)
    assert depth(outbox) == 10


def set_clock_back(outbox):
    """Move everything that is remembered an hour into the future."""
    outbox.database.owner_execute(
        "UPDATE leasehold.queue_depths SET seen_at = seen_at + interval '1 hour',"
        "  due_from = ARRAY(SELECT one + interval '1 hour' FROM unnest(due_from) AS one)"
    )
    outbox.database.owner_execute(
        "UPDATE leasehold.watch_turns SET full_at = full_at + interval '1 hour',"
        "  looked_at = looked_at + interval '1 hour', open_since = ARRAY("
        "    SELECT one + interval '1 hour' FROM unnest(open_since) AS one)"
    )


def test_clock_that_stepped_back_hides_nothing(outbox):
    publish(outbox)
    depth(outbox)
    slow = open_enqueue(outbox, 1)
    depth(outbox)
    set_clock_back(outbox)
    outbox.enqueue(2)
    slow.run("SELECT leasehold.enqueue_intent('sms', '{}')")
    assert depth(outbox) == 2
    pass_an_hour(outbox, slow)
    assert depth(outbox) == 2
    slow.run("COMMIT")
    assert depth(outbox) == 4, "what it wrote after the step counts too"


def test_everything_is_counted_from_the_beginning_once_a_minute(outbox):
    """For whatever nobody has thought of."""
    publish(outbox)
    outbox.enqueue(2)
    depth(outbox)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = due_at - interval '2 hours'"
    )
    assert depth(outbox) == 0, "a row below its mark is not counted"
    outbox.database.owner_execute(
        "UPDATE leasehold.watch_turns SET full_at = clock_timestamp() - interval '1 minute'"
    )
    assert depth(outbox) == 2
    [row] = outbox.database.execute(
        "SELECT clock_timestamp() - full_at AS age FROM leasehold.watch_turns"
    )
    assert row["age"] < timedelta(minutes=1)


def test_count_in_a_transaction_with_an_old_snapshot_is_refused(outbox):
    publish(outbox)
    reader = outbox.database.session("readonly")
    reader.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
    with refused("22023"):
        reader.run("SELECT leasehold.record_queue_depths(1)")

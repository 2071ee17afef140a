"""The ledger: append-only, numbered without gaps, one terminal row per intent."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from tests.support.race import race
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

LEDGER_ROW = (
    "INSERT INTO leasehold.outbox_attempts"
    " (intent_id, attempt_no, state, holder, started_at, finished_at)"
    " VALUES (%s, %s, %s, 'by hand', now(), now())"
)

CHANGES = [
    "UPDATE {table} SET detail = 'rewritten'",
    "UPDATE {table} SET detail = detail",
    "DELETE FROM {table}",
    "TRUNCATE {table}",
    "WITH gone AS (DELETE FROM {table} RETURNING *) SELECT FROM gone",
    "INSERT INTO {table} TABLE {table} ON CONFLICT (intent_id, attempt_no) DO UPDATE SET code = ''",
]


def partition_of(outbox, intent):
    [row] = outbox.database.execute(
        "SELECT 'leasehold.' || relname AS name FROM leasehold.outbox_attempts a"
        " JOIN pg_class ON pg_class.oid = a.tableoid WHERE intent_id = %s LIMIT 1",
        [intent],
    )
    return row["name"]


@pytest.fixture
def intent(outbox):
    """Return a pending intent with one RETRYABLE row."""
    outbox.publish()
    [intent] = outbox.enqueue()
    outbox.complete(outbox.claim(), "RETRYABLE", retry_after_seconds=0)
    return intent


def test_not_even_the_owner_can_change_or_delete_a_ledger_row(outbox, intent):
    database = outbox.database
    database.owner_execute(LEDGER_ROW, ["00000000-0000-7000-8000-000000000000", 1, "RETRYABLE"])
    partition = partition_of(outbox, intent)
    assert partition != "leasehold.outbox_attempts_default"
    for table in ("leasehold.outbox_attempts", partition, "leasehold.outbox_attempts_default"):
        for statement in CHANGES:
            for execute in (database.owner_execute, database.execute):
                with refused("P0001"):
                    execute(statement.format(table=table))
    assert outbox.states(intent) == ["RETRYABLE"]


def test_partition_created_later_refuses_changes_too(outbox):
    made = outbox.call("executor", "create_ledger_partitions", 12)
    assert len(made) >= 6
    for row in made:
        table = f"leasehold.{row['create_ledger_partitions']}"
        [middle] = outbox.database.execute(
            "SELECT first_id FROM leasehold.ledger_months() WHERE 'leasehold.' || name = %s",
            [table],
        )
        outbox.database.owner_execute(LEDGER_ROW, [middle["first_id"], 1, "FAILED"])
        for statement in (
            f"UPDATE {table} SET code = ''",
            f"DELETE FROM {table}",
            f"TRUNCATE {table}",
        ):
            with refused("P0001"):
                outbox.database.owner_execute(statement)


def test_not_even_the_owner_can_write_a_second_terminal_row(outbox, intent):
    outbox.complete(outbox.claim())
    index = f"{partition_of(outbox, intent).removeprefix('leasehold.')}_intent_id_idx"
    for state in ("DISPATCHED", "FAILED", "CANCELLED"):
        with refused("23505") as caught:
            outbox.database.owner_execute(LEDGER_ROW, [intent, 3, state])
        assert caught.value.diag.constraint_name.startswith(index)
    [parent] = outbox.database.execute(
        "SELECT relname AS name FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent"
        " WHERE inhrelid = ('leasehold.' || %s)::regclass",
        [caught.value.diag.constraint_name],
    )
    assert parent["name"] == "outbox_attempts_one_terminal_per_intent"
    assert outbox.states(intent) == ["RETRYABLE", "DISPATCHED"]


def test_completion_after_a_terminal_row_written_by_hand_is_refused(outbox, intent):
    claims = outbox.claim()
    outbox.database.owner_execute(LEDGER_ROW, [intent, 2, "FAILED"])
    with refused("23505") as caught:
        outbox.complete(claims)
    assert "_intent_id_idx" in caught.value.diag.constraint_name
    assert outbox.states(intent) == ["RETRYABLE", "FAILED"]


def test_comment_of_the_terminal_index_states_its_invariant(outbox):
    [row] = outbox.database.execute(
        "SELECT obj_description('leasehold.outbox_attempts_one_terminal_per_intent'::regclass)"
        " AS comment"
    )
    assert "at most one terminal outcome" in row["comment"]


def test_invalid_ledger_row_is_refused_for_the_owner_too(outbox, intent):
    for number, state in ((0, "RETRYABLE"), (21, "RETRYABLE"), (21, "ZOMBIE_REQUEUE"), (2, "DONE")):
        with refused("23514"):
            outbox.database.owner_execute(LEDGER_ROW, [intent, number, state])
    with refused("23505"):
        outbox.database.owner_execute(LEDGER_ROW, [intent, 1, "RETRYABLE"])


@pytest.mark.parametrize("cached", [0, 19, 1000])
def test_attempt_number_comes_from_the_ledger_and_not_from_its_cache(outbox, intent, cached):
    claims = outbox.claim()
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET attempt_count = %s", [cached]
    )
    state = "RETRYABLE" if cached < 20 else "SUBMITTED"
    [row] = outbox.complete(claims, state, retry_after_seconds=0)
    assert (row["verdict"], row["attempt_no"]) == ("applied", 2)
    assert outbox.pending(intent)["attempt_count"] == 2
    outbox.claim("dead")
    outbox.database.owner_execute("UPDATE leasehold.outbox_pending SET attempt_count = 7")
    outbox.expire_claims()
    [repaired] = outbox.call("executor", "repair_expired_leases", 10, "reaper")
    assert repaired["attempt_no"] == 3
    assert [row["attempt_no"] for row in outbox.ledger(intent)] == [1, 2, 3]


def test_tampered_cache_does_not_give_an_intent_more_attempts(outbox):
    outbox.publish(attempts_max=2)
    [intent] = outbox.enqueue()
    outbox.complete(outbox.claim(), "RETRYABLE", retry_after_seconds=0)
    outbox.database.owner_execute("UPDATE leasehold.outbox_pending SET attempt_count = 0")
    [row] = outbox.complete(outbox.claim(), "RETRYABLE", retry_after_seconds=0)
    assert (row["attempt_no"], row["state"], row["reason"]) == (2, "FAILED", "max_attempts")
    assert outbox.states(intent) == ["RETRYABLE", "FAILED"]


# Skip locked rows: moving the time must not deadlock with the writers.
LET_TIME_PASS = """
WITH free AS MATERIALIZED (SELECT intent_id FROM leasehold.outbox_pending FOR UPDATE SKIP LOCKED)
UPDATE leasehold.outbox_pending p
   SET due_at = clock_timestamp(),
       lease_expires_at = CASE WHEN claimed_by = %s THEN clock_timestamp() ELSE lease_expires_at END
  FROM free WHERE free.intent_id = p.intent_id
"""


def live(caller, number):
    """Claim, then at random retry, die, begin and die, or finish."""
    chance = random.Random(number)
    worker = f"worker-{number}"
    for _ in range(40):
        claims = caller.claim(worker, batch_size=chance.randint(1, 6))
        fate = chance.choice(["retry", "retry", "die", "begin and die", "finish"])
        if claims and fate == "retry":
            caller.complete(claims, "RETRYABLE", worker, retry_after_seconds=0)
        elif claims and fate == "finish":
            caller.complete(claims[:1], "DISPATCHED", worker)
        elif fate == "begin and die":
            caller.begin(claims, worker)
        caller.database.owner_execute(LET_TIME_PASS, [worker])
        caller.call("executor", "repair_expired_leases", 5, worker)


@pytest.mark.every_server
def test_eight_concurrent_writers_leave_no_gap_and_no_duplicate(outbox):
    outbox.publish(attempts_max=20)
    ids = outbox.enqueue(24)
    race(outbox.database, 8, live)
    numbers, ended = defaultdict(list), set()
    for row in outbox.database.execute(
        "SELECT intent_id, attempt_no, state FROM leasehold.outbox_attempts ORDER BY 1, 2"
    ):
        numbers[row["intent_id"]].append(row["attempt_no"])
        if row["state"] in ("DISPATCHED", "FAILED", "CANCELLED"):
            ended.add(row["intent_id"])
    assert sum(len(some) for some in numbers.values()) > 100
    assert [some for some in numbers.values() if some != list(range(1, len(some) + 1))] == []
    cached = {
        row["intent_id"]: row["attempt_count"]
        for row in outbox.database.execute("SELECT * FROM leasehold.outbox_pending")
    }
    assert cached == {intent: len(numbers[intent]) for intent in ids if intent not in ended}

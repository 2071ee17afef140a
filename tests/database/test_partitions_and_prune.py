"""The monthly partitions of the ledger: created ahead, filled by id, and pruned."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.outbox import ZERO_ID
from tests.support.race import race
from tests.support.sqlstates import refused

LEDGER = "SELECT * FROM leasehold.outbox_attempts ORDER BY intent_id, attempt_no"
OLD_INTENTS = """
WITH given AS (
  SELECT n, at, (left(leasehold.lowest_intent_id(at)::text, 24)
                 || lpad(to_hex(n), 12, '0'))::uuid AS id
    FROM generate_series(1, %(count)s) AS n,
         (SELECT date_trunc('month', now(), 'UTC') - make_interval(months => %(months)s)
                 + interval '10 days') AS v (at)
), intent AS (
  INSERT INTO leasehold.intents (intent_id, target, contract_version, idempotency_key,
                                 submission_key, payload, payload_hash, created_at)
  SELECT id, 'sms', 1, %(months)s || ' months ago: ' || n, id, '1', sha256('1'), at FROM given
), pending AS (
  INSERT INTO leasehold.outbox_pending (intent_id, scope, target, contract_version, priority,
                                        due_at, attempt_count, last_state, last_modified_at)
  SELECT id, 'item', 'sms', 1, 1, at, 1, 'RETRYABLE', at FROM given WHERE n <= %(unfinished)s
)
INSERT INTO leasehold.outbox_attempts (
  intent_id, attempt_no, state, holder, started_at, finished_at)
SELECT id, 1, CASE WHEN n <= %(unfinished)s THEN 'RETRYABLE' ELSE 'DISPATCHED' END, 'w', at, at
  FROM given RETURNING intent_id"""


@pytest.fixture
def history(outbox):
    outbox.publish()
    return outbox


def make_partitions(outbox, months_ahead=0):
    rows = outbox.call("executor", "create_ledger_partitions", months_ahead)
    return [row["create_ledger_partitions"] for row in rows]


def add_old_intents(outbox, months, count, unfinished=0):
    """Add intents that were accepted this many months ago, with their partition."""
    parameters = {"months": months, "count": count, "unfinished": unfinished}
    rows = outbox.database.owner_execute(OLD_INTENTS, parameters)
    make_partitions(outbox)
    return [row["intent_id"] for row in rows]


def month_name(database, months_from_now):
    [row] = database.execute(
        "SELECT to_char(date_trunc('month', now(), 'UTC') AT TIME ZONE 'UTC'"
        "               + make_interval(months => %s), 'YYYY_MM') AS month",
        [months_from_now],
    )
    return f"outbox_attempts_{row['month']}"


def partitions(database):
    rows = database.execute(
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
        " WHERE inhparent = 'leasehold.outbox_attempts'::regclass"
    )
    return {row["relname"] for row in rows}


def where_rows_are(database):
    rows = database.execute(
        "SELECT relname, count(*) AS rows FROM leasehold.outbox_attempts a"
        "  JOIN pg_class ON pg_class.oid = a.tableoid GROUP BY 1"
    )
    return {row["relname"]: row["rows"] for row in rows}


def prune(database, *, months, batch_size=1000):
    """Prune everything accepted before the month that began this many months ago."""
    [row] = database.owner_execute(
        "SELECT * FROM leasehold.prune("
        "  date_trunc('month', now(), 'UTC') - make_interval(months => %s), %s)",
        [months, batch_size],
    )
    return row


def test_months_are_created_ahead_once(history, database):
    """The migration has created this month and three more."""
    expected = [month_name(database, months) for months in range(7)]
    assert partitions(database) == {*expected[:4], "outbox_attempts_default"}
    assert make_partitions(history, 3) == []
    assert make_partitions(history, 5) == expected[4:6]
    assert make_partitions(history, 5) == []
    assert make_partitions(history, 6) == expected[6:]
    assert partitions(database) == {*expected, "outbox_attempts_default"}


def test_concurrent_calls_create_each_month_once(database):
    made = race(database, 6, lambda caller, _: make_partitions(caller, 8))
    names = [name for one in made for name in one]
    assert sorted(names) == [month_name(database, months) for months in range(4, 9)]


def test_absurd_number_of_months_is_refused(history, database):
    before = partitions(database)
    for months in (-1, 25, None):
        with refused("22023"):
            make_partitions(history, months)
    assert partitions(database) == before


def test_ledger_rows_are_in_the_month_in_which_their_intent_was_accepted(history, database):
    make_partitions(history, 1)
    add_old_intents(history, months=2, count=3, unfinished=1)
    history.enqueue(2)
    history.complete(history.claim(batch_size=1), "DISPATCHED")
    rows = where_rows_are(database)
    assert rows.pop(month_name(database, -2)) >= 3
    assert set(rows) <= {month_name(database, 0)}
    # The old intent stays in its old month.
    history.make_due()
    history.complete(history.claim(), "DISPATCHED")
    assert where_rows_are(database) == {month_name(database, -2): 4, month_name(database, 0): 2}


def test_rows_in_the_default_partition_are_moved_when_their_month_is_created(history, database):
    # As in a database without partitions for the next months.
    for name in partitions(database) - {"outbox_attempts_default"}:
        database.owner_execute(f"DROP TABLE leasehold.{name}")
    ids = history.enqueue(3)
    history.complete(history.claim(batch_size=2), "DISPATCHED")
    database.owner_execute(OLD_INTENTS, {"months": 5, "count": 2, "unfinished": 0})
    assert where_rows_are(database) == {"outbox_attempts_default": 4}
    before = database.execute(LEDGER)
    made = make_partitions(history, 1)
    assert made == [month_name(database, months) for months in (-5, 0, 1)]
    assert database.execute(LEDGER) == before
    assert where_rows_are(database) == {made[0]: 2, made[1]: 2}
    # The functions still work on these rows.
    history.complete(history.claim(), "DISPATCHED")
    assert {history.status(intent_id) for intent_id in ids} == {"accepted"}
    assert make_partitions(history, 1) == []


def test_default_partition_catches_an_id_of_no_month(history, database):
    make_partitions(history)
    for year in (1990, 2999):
        database.owner_execute(
            "INSERT INTO leasehold.outbox_attempts (intent_id, attempt_no, state, holder,"
            " started_at, finished_at) VALUES (leasehold.lowest_intent_id(make_timestamptz("
            "   %s, 6, 1, 0, 0, 0)), 1, 'DISPATCHED', 'w', now(), now())",
            [year],
        )
    assert where_rows_are(database) == {"outbox_attempts_default": 2}


def test_no_partition_can_be_changed_however_its_rows_got_there(history, database):
    add_old_intents(history, months=1, count=2)
    database.owner_execute(
        "INSERT INTO leasehold.outbox_attempts (intent_id, attempt_no, state, holder, started_at,"
        " finished_at) VALUES (%s, 1, 'DISPATCHED', 'w', now(), now())",
        [ZERO_ID],
    )
    filled = ["outbox_attempts", "outbox_attempts_default", month_name(database, -1)]
    assert set(where_rows_are(database)) == set(filled[1:])
    for table in [*filled, month_name(database, 0)]:
        with refused("P0001"):
            database.owner_execute(f"TRUNCATE leasehold.{table}")
    for table in filled:
        for statement in ("DELETE FROM {}", "UPDATE {} SET holder = 'eve'"):
            with refused("P0001"):
                database.owner_execute(statement.format(f"leasehold.{table}"))
        # Each partition allows only one terminal row per intent.
        with refused("23505"):
            database.owner_execute(
                f"INSERT INTO leasehold.{table} (intent_id, attempt_no, state, holder, started_at,"
                f" finished_at) SELECT intent_id, 2, 'FAILED', 'w', now(), now()"
                f" FROM leasehold.{table} LIMIT 1"
            )


@pytest.mark.parametrize(
    ("count", "steps"),
    [(5, [(2, False), (2, False), (1, True)]), (4, [(2, False), (2, False), (0, True)])],
)
def test_finished_month_is_deleted_in_batches_and_then_dropped(history, database, count, steps):
    add_old_intents(history, months=3, count=count)
    kept = add_old_intents(history, months=1, count=2)
    name = month_name(database, -3)
    for deleted, is_dropped in steps:
        answer = prune(database, months=2, batch_size=2)
        assert answer == {
            "intents_deleted": deleted,
            "partition_dropped": name if is_dropped else None,
            "partitions_kept": [],
            "done": False,
        }
    assert name not in partitions(database)
    answer = prune(database, months=2, batch_size=2)
    assert (answer["intents_deleted"], answer["partition_dropped"], answer["done"]) == (
        0,
        None,
        True,
    )
    rows = database.execute("SELECT intent_id FROM leasehold.intents ORDER BY 1")
    assert [row["intent_id"] for row in rows] == kept
    assert where_rows_are(database) == {month_name(database, -1): 2}


def test_month_with_an_unfinished_intent_is_kept_whole_and_named(history, database):
    unfinished = add_old_intents(history, months=4, count=3, unfinished=1)
    add_old_intents(history, months=3, count=2)
    answers = [prune(database, months=1) for _ in range(2)]
    assert [answer["partition_dropped"] for answer in answers] == [month_name(database, -3), None]
    assert {tuple(answer["partitions_kept"]) for answer in answers} == {(month_name(database, -4),)}
    assert [answer["done"] for answer in answers] == [False, True]
    rows = database.execute("SELECT intent_id FROM leasehold.intents ORDER BY 1")
    assert [row["intent_id"] for row in rows] == unfinished
    # Once it is finished, it is pruned too.
    history.make_due()
    assert len(history.complete(history.claim(), "DISPATCHED")) == 1
    assert prune(database, months=1)["partition_dropped"] == month_name(database, -4)
    assert database.execute(LEDGER) == []


def test_month_that_ends_after_the_given_time_is_kept(history, database):
    add_old_intents(history, months=2, count=1)
    for moment in ("20 days", "31 days"):
        [answer] = database.owner_execute(
            "SELECT * FROM leasehold.prune(date_trunc('month', now(), 'UTC')"
            " - interval '1 month' - %s::interval + interval '1 hour', 10)",
            [moment],
        )
        assert answer["done"]
    assert month_name(database, -2) in partitions(database)
    assert prune(database, months=1)["partition_dropped"] == month_name(database, -2)


def test_key_of_a_pruned_intent_may_be_used_again_and_not_before(history, database):
    [old] = add_old_intents(history, months=3, count=1)
    entry = {"target": "sms", "payload": 1, "idempotency_key": "3 months ago: 1"}
    [answer] = history.enqueue_entries([entry])
    assert (answer["verdict"], answer["intent_id"]) == ("duplicate", old)
    prune(database, months=1)
    [answer] = history.enqueue_entries([entry])
    assert answer["verdict"] == "accepted"
    assert answer["intent_id"] != old
    [row] = history.call("operator", "redrive_intents", [old], "ada", "again")
    assert row["verdict"] == "not_found"


def test_only_instances_that_died_before_the_given_time_are_pruned(history, database):
    for name in ("dead for long", "just dead", "alive"):
        history.call("executor", "renew_instance", name, "worker", [], {}, 60)
    for name, ago in (("dead for long", "3 months"), ("just dead", "1 minute")):
        database.owner_execute(
            "UPDATE leasehold.instances SET alive_until = now() - %s::interval"
            " WHERE instance_id = %s",
            [ago, name],
        )
    prune(database, months=1)
    rows = database.execute("SELECT instance_id FROM leasehold.instances")
    assert {row["instance_id"] for row in rows} == {"just dead", "alive"}


def test_time_less_than_a_day_ago_and_absurd_batch_sizes_are_refused(history, database):
    add_old_intents(history, months=2, count=1)
    for moment, batch_size in (
        ("now()", 10),
        ("now() - interval '23 hours 59 minutes'", 10),
        ("'infinity'", 10),
        ("NULL", 10),
        ("now() - interval '2 days'", 0),
        ("now() - interval '2 days'", -1),
        ("now() - interval '2 days'", 100_001),
        ("now() - interval '2 days'", None),
    ):
        with refused("22023"):
            database.owner_execute(f"SELECT leasehold.prune({moment}, %s)", [batch_size])
    assert len(database.execute(LEDGER)) == 1


def test_nobody_but_the_owner_prunes(database):
    for role in ("ingest", "executor", "operator", "readonly", "auditor"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            database.connect(role).execute("SELECT leasehold.prune(now() - interval '1 year', 10)")

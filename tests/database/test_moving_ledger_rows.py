"""Rows in the ledger's default partition are moved to their months, step by step."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import psycopg
import pytest

from tests.database.test_partitions_and_prune import (
    LEDGER,
    OLD_INTENTS,
    make_partitions,
    month_name,
    partitions,
    where_rows_are,
)
from tests.support.race import race
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

MANY = 400_000
FILL = """
INSERT INTO leasehold.outbox_attempts (
  intent_id, attempt_no, state, holder, started_at, finished_at)
SELECT (left(leasehold.lowest_intent_id(at)::text, 24) || lpad(to_hex(n), 12, '0'))::uuid, 1,
       'DISPATCHED', 'w', at, at
  FROM generate_series(1, %s) AS n,
       (SELECT date_trunc('month', now(), 'UTC') - interval '2 months' + interval '10 days')
         AS v (at)"""
INSERT = """
INSERT INTO leasehold.outbox_attempts (
  intent_id, attempt_no, state, holder, started_at, finished_at)
VALUES (leasehold.new_intent_id(), 1, 'DISPATCHED', 'w', now(), now())"""
SUMS = (
    "SELECT count(*) AS rows, count(DISTINCT (intent_id, attempt_no)) AS different"
    "  FROM leasehold.outbox_attempts"
)
MOVE = "SELECT * FROM leasehold.move_ledger_rows(%s)"
DEFAULT = "outbox_attempts_default"


@pytest.fixture
def history(outbox):
    outbox.publish()
    return outbox


def fill(database, months, count):
    rows = database.owner_execute(OLD_INTENTS, {"months": months, "count": count, "unfinished": 0})
    return [row["intent_id"] for row in rows]


def move(outbox, rows_max=10):
    [row] = outbox.call("executor", "move_ledger_rows", rows_max)
    return row


def move_all(outbox, rows_max=10):
    """Return how many steps it took."""
    for step in range(1, 1000):
        if move(outbox, rows_max)["is_complete"]:
            return step
    raise AssertionError("it never ends")


def tables(database):
    rows = database.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'leasehold'::regnamespace"
        "   AND relkind IN ('r', 'p') AND relname LIKE 'outbox\\_attempts%%'"
    )
    return {row["relname"] for row in rows}


def test_many_rows_are_moved_under_a_short_statement_timeout(database):
    database.owner_execute("SET synchronous_commit = off")
    database.owner_execute(FILL, [MANY])
    before = database.execute(SUMS)
    worker = database.connect("executor")
    worker.execute("SET statement_timeout = '15s'")
    steps = 0
    while not worker.execute(MOVE, [20_000]).fetchone()["is_complete"]:
        steps += 1
    assert steps >= MANY // 20_000
    assert where_rows_are(database) == {month_name(database, -2): MANY}
    assert database.execute(SUMS) == before == [{"rows": MANY, "different": MANY}]


def test_each_step_is_bounded_and_readers_see_each_row_once_all_the_time(history, database):
    fill(database, 5, 25)
    fill(database, 2, 30)
    before = database.execute(LEDGER)
    months = [month_name(database, -5), month_name(database, -2)]
    for _ in range(5):
        assert move(history) == {"partitions": [], "is_complete": False}
        assert database.execute(LEDGER) == before
    assert move(history) == {"partitions": months, "is_complete": True}
    assert database.execute(LEDGER) == before
    assert where_rows_are(database) == {months[0]: 25, months[1]: 30}
    assert move(history) == {"partitions": [], "is_complete": True}
    assert tables(database) == partitions(database) | {"outbox_attempts"}


def test_rows_written_meanwhile_are_moved_too_wherever_they_belong(history, database):
    ids = fill(database, 2, 30)
    for _ in range(3):
        move(history)
    # An earlier intent gets a further row, and another month appears.
    insert = (
        "INSERT INTO leasehold.outbox_attempts (intent_id, attempt_no, state, holder, started_at,"
        " finished_at) VALUES (%s, 2, 'RETRYABLE', 'w', now(), now())"
    )
    for one in (*ids[:3], ids[-1]):
        database.owner_execute(insert, [one])
    fill(database, 4, 3)
    before = database.execute(LEDGER)
    move_all(history)
    assert database.execute(LEDGER) == before
    assert where_rows_are(database) == {month_name(database, -4): 3, month_name(database, -2): 34}


def test_step_that_is_killed_loses_nothing_and_the_next_goes_on(history, database):
    fill(database, 2, 25)
    before = database.execute(LEDGER)
    move(history)
    for _ in range(2):
        dying = database.session("executor")
        dying.run("BEGIN")
        dying.run("SELECT * FROM leasehold.move_ledger_rows(10)")
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE '%%move_ledger_rows(10)'"
            "   AND pid <> pg_backend_pid() AND state = 'idle in transaction'"
        )
        assert database.execute(LEDGER) == before
        move(history)
    move_all(history)
    assert database.execute(LEDGER) == before
    assert where_rows_are(database) == {month_name(database, -2): 25}


class Traffic:
    """Writes to the ledger and reads it, each on a connection of its own, until it is ended."""

    def __init__(self, database, rows_before):
        self._database = database
        self._rows_before = rows_before
        self._ended = threading.Event()
        self.written = 0
        self.wrong = []

    def write(self):
        with psycopg.connect(self._database.url, autocommit=True) as connection:
            while not self._ended.is_set() or self.written < 50:
                connection.execute(INSERT)
                self.written += 1

    def read(self):
        with psycopg.connect(self._database.url, autocommit=True) as connection:
            while not self._ended.is_set():
                known = self._rows_before + self.written
                rows, different = connection.execute(SUMS).fetchone()
                if rows != different or rows < known:
                    self.wrong.append((rows, different, known))

    @contextmanager
    def running(self):
        threads = [threading.Thread(target=one) for one in (self.write, self.read, self.read)]
        for one in threads:
            one.start()
        try:
            yield
        finally:
            self._ended.set()
            for one in threads:
                one.join()


def test_writers_and_readers_go_on_while_rows_are_moved(history, database):
    fill(database, 2, 200)
    for name in partitions(database) - {DEFAULT}:
        database.owner_execute(f"DROP TABLE leasehold.{name}")
    traffic = Traffic(database, 200)
    with traffic.running():
        for _ in range(3):
            move_all(history, 50)
    move_all(history, 1000)
    assert traffic.wrong == []
    [sums] = database.execute(SUMS)
    assert sums["rows"] == sums["different"] == 200 + traffic.written
    assert DEFAULT not in where_rows_are(database)


def test_concurrent_runs_move_each_row_once(database):
    fill(database, 2, 100)
    before = database.execute(LEDGER)
    race(database, 4, lambda caller, _: move_all(caller, 7))
    assert database.execute(LEDGER) == before
    assert where_rows_are(database) == {month_name(database, -2): 100}


def test_moved_rows_and_the_new_default_partition_are_append_only(history, database):
    fill(database, 2, 3)
    move_all(history)
    fill(database, 3, 1)
    for name in (month_name(database, -2), DEFAULT):
        for change in ("DELETE FROM leasehold.{}", "UPDATE leasehold.{} SET state = 'FAILED'"):
            with refused("P0001"):
                database.owner_execute(change.format(name))
        with refused("P0001"):
            database.owner_execute(f"TRUNCATE leasehold.{name}")
    assert where_rows_are(database) == {month_name(database, -2): 3, DEFAULT: 1}


def test_rows_that_are_still_being_moved_are_left_alone_by_the_creation_of_months(
    history, database
):
    fill(database, 2, 25)
    before = database.execute(LEDGER)
    move(history)
    assert make_partitions(history, 3) == [month_name(database, -2)]
    assert make_partitions(history, 3) == []
    assert database.execute(LEDGER) == before


def test_last_step_waits_for_nobody_longer_than_two_seconds(history, database):
    fill(database, 2, 5)
    reader = database.session()
    reader.run("BEGIN")
    reader.run("SELECT count(*) FROM leasehold.outbox_attempts")
    with refused("55P03"):
        move(history)
    reader.run("COMMIT")
    assert move(history)["is_complete"]

"""Watching must not load what it watches: one counts at a time, a bounded part at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from leasehold.observe.metrics import Metrics
from leasehold.runtime.watches import QUEUE_SECONDS, QueueWatch
from tests.support.database import Database
from tests.support.outbox import Outbox
from tests.support.query_plans import Explainer
from tests.support.sqlstates import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server

pytestmark = pytest.mark.one_server

PENDING = 1_000_000
SEGMENT_PAGES = 2048
# The form that the functions would write. One in 100,000 is held, one in 50,000 has expired.
BACKLOG = f"""
INSERT INTO leasehold.outbox_pending (
  intent_id, scope, target, contract_version, priority, due_at, attempt_count, last_state,
  claimed_by, lease_token, lease_expires_at, lease_seconds, last_modified_at)
SELECT (lpad(to_hex(floor(extract(epoch FROM now()) * 1000 - 3600000 + n)::bigint), 12, '0')
        || '70008' || lpad(to_hex(n), 15, '0'))::uuid,
       'item', 'sms', 1, 1, CASE WHEN n % 100000 = 0 THEN 'infinity' ELSE now() END, n % 3,
       CASE WHEN n % 3 > 0 THEN 'RETRYABLE' END,
       CASE WHEN n % 50000 = 1 THEN 'worker-1' END,
       CASE WHEN n % 50000 = 1 THEN gen_random_uuid() END,
       CASE WHEN n % 50000 = 1 THEN now() END, CASE WHEN n % 50000 = 1 THEN 30 END, now()
  FROM generate_series(1, {PENDING}) AS n"""


def begin(outbox: Outbox, role: str = "executor") -> int | None:
    return outbox.call(role, "begin_watch_turn", "counts")[0]["begin_watch_turn"]


def record(outbox: Outbox, turn_no: int, role: str = "executor") -> float | None:
    return outbox.call(role, "record_queue_counts", turn_no)[0]["record_queue_counts"]


def pause_seconds(outbox: Outbox) -> float:
    [row] = outbox.database.execute(
        "SELECT extract(epoch FROM next_at - clock_timestamp())::float8 AS pause"
        "  FROM leasehold.watch_turns WHERE name = 'counts'"
    )
    return row["pause"]


def test_second_instance_gets_no_turn_and_reads_what_the_first_has_counted(outbox):
    outbox.publish()
    outbox.enqueue(3)
    record(outbox, begin(outbox))
    outbox.enqueue(2)
    assert begin(outbox, "readonly") is None
    reader = outbox.as_role("readonly")
    [row] = reader.execute("SELECT pending, age_seconds FROM leasehold.supervisor").fetchall()
    assert row["pending"] == 3
    assert row["age_seconds"] >= 0
    assert 9 < pause_seconds(outbox) <= 10


def test_streams_that_wait_for_a_person_are_counted_by_target(outbox, database):
    for target in ("mail", "pay"):
        outbox.publish(target, scope="stream")
    for stream, seconds in (("a", None), ("b", None), ("for a time", 3600), ("goes on", None)):
        outbox.enqueue(target="pay", stream=stream)
        if stream != "goes on":
            outbox.call("operator", "pause_stream", "pay", stream, "ada", "wait", seconds)
    assert outbox.count_queue()["streams_blocked"] == {"mail": 0, "pay": 2}
    outbox.call("operator", "resume_stream", "pay", "a", "ada", "go on")
    # Turns of a large queue come every second; the streams are not counted with each.
    assert outbox.count_queue()["streams_blocked"] == {"mail": 0, "pay": 2}
    for moved in ("- interval '10 seconds'", "+ interval '1 hour'"):
        database.owner_execute(
            f"UPDATE leasehold.blocked_counts SET seen_at = seen_at {moved}, blocked = 7"
        )
        assert outbox.count_queue()["streams_blocked"] == {"mail": 0, "pay": 1}


async def test_every_instance_shows_the_blocked_streams_that_one_has_counted(outbox, stores):
    outbox.publish("pay", scope="stream")
    outbox.enqueue(target="pay", stream="s")
    outbox.call("operator", "pause_stream", "pay", "s", "ada", "wait")
    for store in (stores.executor, stores.readonly):
        metrics = Metrics()
        await QueueWatch(store, metrics).step()
        labels = {"target": "pay"}
        assert metrics.registry.get_sample_value("leasehold_streams_blocked", labels) == 1


def test_many_paused_streams_are_counted_up_to_a_bound(outbox, database):
    outbox.publish("pay", scope="stream")
    database.owner_execute(
        "INSERT INTO leasehold.leases (lease_name, holder_id, lease_epoch, acquired_at, renewed_at,"
        "  expires_at, grace_expires_at, target, stream, paused_since, paused_until)"
        " SELECT 'stream/pay/' || n, 'x', 1, now(), now(), '-infinity', '-infinity', 'pay', n,"
        "  now(), 'infinity' FROM generate_series(1, 30000) AS n"
    )
    begin(outbox)
    explainer = Explainer(database)
    plans = explainer.run("SELECT leasehold.record_queue_counts(1)")
    explainer.connection.close()
    [scan] = [one for one in plans.nodes if one.get("Relation Name") == "leases"]
    assert scan["Index Name"] == "leases_paused"
    assert scan["Actual Rows"] == 20_000
    assert outbox.count_queue()["streams_blocked"] == {"pay": 20_000}


def test_count_that_failed_is_not_repeated_sooner_and_then_less_and_less_often(outbox):
    pauses = []
    for _ in range(9):
        assert begin(outbox) is not None
        assert begin(outbox) is None, "no other instance repeats it"
        pauses.append(round(pause_seconds(outbox)))
        outbox.end_pause("counts")
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    turn_no = begin(outbox)
    record(outbox, turn_no)
    assert round(pause_seconds(outbox)) == 10


async def test_instance_whose_count_fails_does_not_count_again_when_it_is_retried(stores, outbox):
    outbox.database.execute(
        "ALTER FUNCTION leasehold.record_queue_counts RENAME TO record_queue_counts_gone"
    )
    watch = QueueWatch(stores.readonly, Metrics())
    with pytest.raises(Exception, match="record_queue_counts"):
        await watch.step()
    outbox.database.execute(
        "ALTER FUNCTION leasehold.record_queue_counts_gone RENAME TO record_queue_counts"
    )
    assert (await watch.step()).seconds == QUEUE_SECONDS
    assert outbox.database.execute("SELECT * FROM leasehold.queue_counts") == []
    outbox.end_pause("counts")
    await watch.step()
    assert len(outbox.database.execute("SELECT * FROM leasehold.queue_counts")) == 1


def test_turn_that_was_overtaken_counts_nothing(outbox):
    late = begin(outbox)
    outbox.end_pause("counts")
    current = begin(outbox)
    assert record(outbox, late) is None
    assert outbox.database.execute("SELECT * FROM leasehold.queue_counts") == []
    assert record(outbox, current) is not None
    assert record(outbox, current) is None, "a turn counts once"


@pytest.mark.every_server
def test_nobody_gets_a_turn_while_another_counts(outbox):
    turn_no = begin(outbox)
    outbox.end_pause("counts")
    other = outbox.database.connect("executor")
    with other.transaction():
        other.execute("SELECT leasehold.record_queue_counts(%s)", [turn_no])
        assert begin(outbox) is None
        assert record(outbox, turn_no) is None


def test_turn_that_a_clock_an_hour_ahead_has_planned_is_not_waited_for(outbox):
    record(outbox, begin(outbox))
    outbox.database.owner_execute(
        "UPDATE leasehold.watch_turns SET next_at = next_at + interval '1 hour'"
    )
    assert begin(outbox) is not None


@pytest.mark.parametrize("name", [None, "", "other"])
def test_turn_without_a_known_name_is_refused(outbox, name):
    with refused("22023"):
        outbox.call("executor", "begin_watch_turn", name)


def test_turn_without_a_number_is_refused(outbox):
    with refused("22023"):
        outbox.call("executor", "record_queue_counts", None)


@pytest.fixture(scope="module")
def million(server: Server) -> Iterator[Database]:
    database = Database(server, server.create_database())
    table = "'leasehold.outbox_pending'::regclass"
    database.execute(f"UPDATE pg_index SET indisready = false WHERE indrelid = {table}")
    database.owner_execute("ALTER TABLE leasehold.outbox_pending SET (autovacuum_enabled = off)")
    database.owner_execute(BACKLOG)
    database.execute("REINDEX TABLE leasehold.outbox_pending")
    yield database
    database.close()


@pytest.mark.every_server
def test_million_pending_rows_are_counted_a_bounded_part_at_a_time(million: Database) -> None:
    outbox = Outbox(million)
    explainer = Explainer(million)
    [size] = million.execute("SELECT pg_relation_size('leasehold.outbox_pending') / 8192 AS pages")
    turns = -(-size["pages"] // SEGMENT_PAGES)
    assert turns > 7
    for number in range(turns):
        [row] = million.execute("SELECT seen_at FROM leasehold.supervisor")
        assert row["seen_at"] is None, "a part was never counted"
        turn_no = begin(outbox)
        assert turn_no == number + 1
        # The first call of a session also reads the catalogs.
        plans = explainer.run("SELECT leasehold.record_queue_counts(%s)", [turn_no], times=2)
        scans = [
            node["Node Type"]
            for node in plans.nodes
            if node.get("Relation Name") == "outbox_pending" and node["Actual Loops"]
        ]
        assert scans == ["Tid Range Scan"]
        assert plans.buffers <= SEGMENT_PAGES + 500
        assert record(outbox, turn_no) >= 1
        outbox.end_pause("counts")
    read = explainer.run("SELECT * FROM leasehold.supervisor")
    [row] = read.rows
    assert read.buffers <= 200
    assert row["seen_at"] is not None
    assert (row["pending"], row["held"], row["expired_leases"]) == (PENDING, 10, 20)
    assert row["pending_by_attempts"] == {"0": 333_333, "1": 333_334, "2": 333_333}
    assert row["pending_by_last_state"] == {"NEW": 333_333, "RETRYABLE": 666_667}
    assert row["oldest_pending_seconds"] == pytest.approx(3600, abs=300)
    # One of the parts is counted again; the others stay as they were.
    million.owner_execute("DELETE FROM leasehold.outbox_pending WHERE ctid < '(100,0)'")
    record(outbox, begin(outbox))
    [again] = million.execute("SELECT * FROM leasehold.supervisor")
    assert PENDING - 10_000 < again["pending"] < PENDING
    assert again["seen_at"] > row["seen_at"]


@pytest.mark.every_server
def test_queue_of_a_million_is_counted_once_in_twenty_seconds_by_all(million: Database) -> None:
    outbox = Outbox(million)
    outbox.publish(pending_max=990_000)
    outbox.publish("idle", pending_max=1)
    outbox.publish("next", pending_max=1)
    [row] = outbox.call("readonly", "begin_watch_turn", "depths")
    turn_no = row["begin_watch_turn"]
    explainer = Explainer(million)
    statement = "SELECT leasehold.record_queue_depths(%s)"
    plans = explainer.run(statement, [turn_no], times=2)
    read = [node["Actual Rows"] * node["Actual Loops"] for node in plans.nodes if "Alias" in node]
    assert max(read) <= 990_000
    [row] = outbox.call("readonly", "record_queue_depths", turn_no)
    assert row["record_queue_depths"] >= 19.8
    assert outbox.call("readonly", "begin_watch_turn", "depths")[0]["begin_watch_turn"] is None
    depths = "SELECT target, depth FROM leasehold.queue_depths ORDER BY target"
    found = {row["target"]: row["depth"] for row in million.execute(depths)}
    assert found == {"idle": 0, "next": 0, "sms": 990_000}
    # The other queues of the turn were counted first; the next turn begins with the oldest.
    outbox.enqueue(1, "idle")
    assert outbox.count_depths()["idle"] == 1


def test_segments_beyond_the_end_of_a_table_that_became_smaller_are_forgotten(outbox):
    outbox.publish()
    outbox.enqueue(2)
    outbox.database.owner_execute(
        "INSERT INTO leasehold.queue_counts"
        " SELECT 7, 'NEW', 0, 5, 0, 0, 0, 0, 0, NULL, NULL, 8, now()"
    )
    assert outbox.count_queue()["pending"] == 2


@pytest.mark.every_server
def test_reader_without_the_executors_rights_may_count_and_nothing_else(outbox):
    with psycopg.connect(outbox.database.url_as("readonly"), autocommit=True) as reader:
        [turn_no] = reader.execute("SELECT leasehold.begin_watch_turn('counts')").fetchone()
        reader.execute("SELECT leasehold.record_queue_counts(%s)", [turn_no])
        for statement in (
            "UPDATE leasehold.watch_turns SET next_at = now()",
            "DELETE FROM leasehold.queue_counts",
        ):
            with refused("42501"):
                reader.execute(statement)

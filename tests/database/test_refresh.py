"""The cursor of a leader's reader: no row is skipped, in any order of commits."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.support.lease_holder import ChangeReader, take
from tests.support.outbox import CLUSTER_LEASE, ZERO_ID
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

ENQUEUE = "SELECT * FROM leasehold.enqueue_intents(%s)"
# The naive cursor of the seed advances to the last row that it saw.
SEED_REFRESH = """
SELECT intent_id, last_modified_at FROM leasehold.outbox_pending
 WHERE last_modified_at > %(at)s OR (last_modified_at = %(at)s AND intent_id > %(id)s)
 ORDER BY last_modified_at, intent_id"""


@pytest.fixture
def cluster(outbox):
    outbox.publish(scope="cluster")
    return outbox


@pytest.fixture
def reader(cluster):
    return ChangeReader([take(cluster)])


def entry(target="sms", **fields):
    return json.dumps([{"target": target, "payload": 1} | fields])


def set_modified(database, moment, where="true", params=()):
    database.owner_execute(
        f"UPDATE leasehold.outbox_pending SET last_modified_at = {moment} WHERE {where}", params
    )


@pytest.mark.every_server
def test_row_of_a_late_committing_writer_is_not_skipped(cluster, database, reader):
    """The cursor of the seed skips the row; it is kept here as a mutant."""
    late = database.session("ingest")
    late.run("BEGIN")
    [first] = late.run(ENQUEUE, [entry()])
    [second] = cluster.enqueue()
    assert reader.refresh() == [second]
    seen = database.execute(SEED_REFRESH, {"at": "-infinity", "id": ZERO_ID})
    late.run("COMMIT")

    cursor = {"at": seen[-1]["last_modified_at"], "id": seen[-1]["intent_id"]}
    assert database.execute(SEED_REFRESH, cursor) == [], "the mutant must lose the late row"
    assert first["intent_id"] in reader.refresh()
    assert reader.refresh() == []


@pytest.mark.every_server
def test_row_committed_behind_the_first_page_while_the_second_is_read_is_not_skipped(
    cluster, database
):
    late = database.session("ingest")
    reader = ChangeReader([take(cluster)], limit=1)
    late.run("BEGIN")
    [hidden] = late.run(ENQUEUE, [entry()])
    first, second = (cluster.enqueue()[0] for _ in range(2))

    def commit_after_the_first_page(after, limit=None, read=reader.page):
        page = read(after, limit)
        if late.connection.info.transaction_status.name == "INTRANS":
            late.run("COMMIT")
        return page

    reader.page = commit_after_the_first_page
    assert reader.refresh() == [first, second]
    # Nobody is open any more, but somebody was before the first page.
    assert hidden["intent_id"] in reader.refresh()


def test_rows_with_equal_times_are_not_skipped_between_pages(cluster, database):
    ids = cluster.enqueue(25)
    set_modified(database, "timestamptz '2020-02-02 02:02:02.000002Z'")
    for limit in (1, 2, 24, 25, 26):
        reader = ChangeReader([take(cluster)], limit)
        assert sorted(reader.refresh()) == sorted(ids)
        assert reader.refresh() == []
        cluster.expire_lease()


def test_row_modified_again_at_the_time_of_the_cursor_is_not_skipped(cluster, database):
    [intent_id] = cluster.enqueue()
    holder = take(cluster)
    reader = ChangeReader([holder])
    # Even if the clock stands still or went back, a later timestamp must be higher.
    set_modified(database, "clock_timestamp() + interval '1 hour'")
    for change in (
        lambda: holder.begin([intent_id]),
        lambda: holder.record([intent_id], "RETRYABLE", retry_after_seconds=0),
        lambda: holder.begin([intent_id]),
        lambda: holder.record([intent_id], "SUBMITTED"),
        lambda: cluster.call("operator", "resolve_intent", intent_id, "RETRYABLE", "ada", "again"),
    ):
        [before] = reader.page(("-infinity", ZERO_ID))
        change()
        [after] = reader.page((before["last_modified_at"], before["intent_id"]))
        assert after["last_modified_at"] > before["last_modified_at"]


@pytest.mark.every_server
def test_row_of_an_open_writer_with_the_time_of_the_cursor_is_not_skipped(
    cluster, database, reader
):
    low, high = sorted(cluster.enqueue(2))
    writer = database.session()
    writer.run("BEGIN")
    [row] = writer.run("SELECT leasehold.announce_change() AS stamp")
    set_modified(database, "%s", "intent_id = %s", [row["stamp"], high])
    writer.run(
        "UPDATE leasehold.outbox_pending SET last_modified_at = %s, attempt_count = 1"
        " WHERE intent_id = %s",
        [row["stamp"], low],
    )
    # The reader is now at (stamp, high), and (stamp, low) becomes visible behind it.
    assert reader.refresh()[-1] == high
    writer.run("COMMIT")
    assert low in reader.refresh()
    assert reader.refresh() == []


def test_thousand_rows_read_seven_at_a_time_are_all_seen_exactly_once(cluster):
    ids = [intent_id for _ in range(10) for intent_id in cluster.enqueue(100)]
    reader = ChangeReader([take(cluster)], limit=7)
    assert Counter(reader.refresh()) == Counter(ids)
    assert reader.refresh() == []
    newest = cluster.enqueue(3)
    assert sorted(reader.refresh()) == sorted(newest)


def test_refresh_changes_nothing_and_may_be_repeated(cluster, database, reader):
    cluster.enqueue(5)
    before = database.execute("SELECT xmin::text, * FROM leasehold.outbox_pending ORDER BY 2")
    pages = [reader.page(("-infinity", ZERO_ID), 3) for _ in range(3)]
    assert pages[0] == pages[1] == pages[2]
    after = database.execute("SELECT xmin::text, * FROM leasehold.outbox_pending ORDER BY 2")
    assert after == before


@pytest.mark.every_server
def test_writer_that_stays_open_blocks_nobody_and_makes_nobody_read_twice(cluster, database):
    writer = database.session("ingest")
    writer.run("BEGIN")
    writer.run(ENQUEUE, [entry()])
    ids = cluster.enqueue(2)
    holder = take(cluster)
    reader = ChangeReader([holder])
    # Meanwhile others work and see the committed rows, once.
    assert holder.begin(ids[:1]) == ["begun"]
    assert holder.record(ids[:1], "RETRYABLE") == ["applied"]
    assert sorted(reader.refresh()) == sorted(ids)
    assert reader.refresh() == reader.refresh() == []
    more = cluster.enqueue(1)
    assert reader.refresh() == more
    writer.run("COMMIT")
    assert len(reader.refresh()) == 4, "what changed since the writer began is read again, once"
    assert reader.refresh() == []


@pytest.mark.every_server
def test_row_of_a_short_writer_is_not_skipped_while_another_stays_open(cluster, database, reader):
    long, short = database.session("ingest"), database.session("ingest")
    for writer in (long, short):
        writer.run("BEGIN")
    long.run(ENQUEUE, [entry()])
    reader.refresh()
    [late] = short.run(ENQUEUE, [entry()])
    [seen] = cluster.enqueue()
    assert reader.refresh() == [seen]
    short.run("COMMIT")
    assert late["intent_id"] in reader.refresh()
    assert reader.refresh() == []
    long.run("COMMIT")
    assert len(reader.refresh()) == 3


@pytest.mark.every_server
def test_writer_that_rolled_back_to_a_savepoint_and_wrote_again_is_not_skipped(
    cluster, database, reader
):
    writer = database.session("ingest")
    writer.run("BEGIN")
    writer.run("SAVEPOINT s")
    writer.run(ENQUEUE, [entry()])
    assert reader.refresh() == []
    writer.run("ROLLBACK TO s")
    assert reader.refresh() == []
    [late] = writer.run(ENQUEUE, [entry()])
    [seen] = cluster.enqueue()
    assert reader.refresh() == [seen]
    writer.run("COMMIT")
    assert late["intent_id"] in reader.refresh()


@pytest.mark.every_server
def test_writer_of_items_is_none_of_the_open_writers(cluster, database, reader):
    cluster.publish("item-target")
    writer = database.session("ingest")
    writer.run("BEGIN")
    writer.run(ENQUEUE, [entry("item-target")])
    cluster.enqueue()
    assert len(reader.refresh()) == 1
    assert reader.refresh() == []


def test_change_made_by_an_operator_is_seen(cluster):
    cluster.publish("careful", scope="cluster", guarantee="blind")
    [held] = cluster.enqueue(target="careful")
    holder = take(cluster)
    reader = ChangeReader([holder])
    holder.begin([held])
    holder.record([held], "IN_DOUBT")
    assert reader.refresh() == [held]
    cluster.call("operator", "resolve_intent", held, "RETRYABLE", "ada", "it had no effect")
    assert reader.refresh() == [held]
    [redriven] = cluster.enqueue(target="careful")
    holder.record([redriven], "FAILED")
    [row] = cluster.call("operator", "redrive_intents", [redriven], "ada", "again")
    assert reader.refresh() == [row["new_intent_id"]]


def test_changes_under_several_leases_come_in_one_order(cluster, database):
    cluster.publish("other", scope="cluster", lease_name="other")
    cluster.publish("unread", scope="cluster", lease_name="unread")
    for _ in range(5):
        for target in ("sms", "other", "unread"):
            cluster.enqueue(target=target)
    reader = ChangeReader([take(cluster), take(cluster, lease_name="other")], limit=4)
    expected = database.execute(
        "SELECT intent_id FROM leasehold.outbox_pending WHERE target <> 'unread'"
        " ORDER BY last_modified_at, intent_id"
    )
    assert reader.refresh() == [row["intent_id"] for row in expected]
    assert len(expected) == 10


def test_window_of_a_cluster_lease_has_the_first_rows_of_each_priority(cluster):
    cluster.publish("item-target")
    cluster.publish("other", scope="cluster", lease_name="other-lease")
    cluster.enqueue(3, "item-target")
    cluster.enqueue(3, "other")
    ids = {}
    for priority in (3, 1, 0):
        for delay in (90, 0, 30, 60):
            fields = {"priority": priority, "delay_seconds": delay}
            [ids[priority, delay]] = cluster.enqueue(**fields)
    rows = take(cluster).window(limit=3)
    expected = [(priority, delay) for priority in (0, 1, 3) for delay in (0, 30, 60)]
    assert [row["intent_id"] for row in rows] == [ids[key] for key in expected]
    assert {row["lease_name"] for row in rows} == {CLUSTER_LEASE}


def test_window_has_rows_of_each_target_and_no_held_ones(cluster):
    cluster.publish("slow", scope="cluster", guarantee="blind")
    cluster.enqueue(10, "slow")
    [late] = cluster.enqueue(1)
    holder = take(cluster)
    found = [row["target"] for row in holder.window(limit=3, targets=["slow", "sms"])]
    assert sorted(found) == ["slow"] * 3 + ["sms"]
    assert [row["intent_id"] for row in holder.window(targets=["sms"])] == [late]
    held = [row["intent_id"] for row in holder.window(limit=2, targets=["slow"])]
    holder.begin(held)
    holder.record(held, "IN_DOUBT", retry_after_seconds=0)
    rest = [row["intent_id"] for row in holder.window(targets=["slow"])]
    assert len(rest) == 8
    assert not {*held} & {*rest}


def test_stale_holder_reads_nothing_even_under_its_other_leases(cluster):
    cluster.publish("other", scope="cluster", lease_name="other")
    cluster.enqueue()
    cluster.enqueue(target="other")
    kept, lost = take(cluster), take(cluster, lease_name="other")
    cluster.expire_lease(lost.lease_name)
    take(cluster, "holder-2", lost.lease_name)
    names, epochs = [kept.lease_name, lost.lease_name], [kept.epoch, lost.epoch]
    with refused("P7002") as caught:
        cluster.call("executor", "refresh_due_rows", "holder-1", names, epochs, [], 10)
    assert caught.value.diag.message_detail == lost.lease_name
    with refused("P7002"):
        ChangeReader([kept, lost]).refresh()
    assert len(ChangeReader([kept]).refresh()) == 1


@pytest.mark.parametrize("cursor", [(None, ZERO_ID), ("-infinity", None)])
def test_incomplete_cursor_is_refused_instead_of_hiding_rows(reader, cursor):
    with refused("22023"):
        reader.page(cursor)

"""The ledger read as events: no row appears behind a reader, in any order of commits.

The naive cursors, by time or by id, lose rows of a transaction that stays open while others commit;
they are kept here as mutants.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from leasehold.domain.errors import InvalidArgument
from leasehold.store.postgres.readers import event_cursor, read_cursor
from leasehold.store.reader_rows import EventCursor
from tests.support.outbox import ZERO_ID

pytestmark = pytest.mark.one_server

CANCEL = "SELECT leasehold.cancel_intent(%s, 'operator', 'a test')"
BEGINNING = event_cursor(0, ZERO_ID, 0)


class Reader:
    """A subscriber that continues from the last event it saw."""

    def __init__(self, outbox, after=BEGINNING, limit=1000):
        self.outbox = outbox
        self.cursor = after
        self.limit = limit

    def read(self):
        """Read one page and return the intents of its events, in order."""
        rows = self.outbox.call("readonly", "read_events", *read_cursor(self.cursor), self.limit)
        found = [
            event_cursor(row["transaction_id"], row["intent_id"], row["attempt_no"]) for row in rows
        ]
        assert found == sorted(found)
        self.cursor = found[-1] if found else self.cursor
        return [row["intent_id"] for row in rows]


@pytest.fixture
def three(outbox):
    outbox.publish()
    return outbox.enqueue(3)


def naive_by_time(database, after):
    return database.execute(
        "SELECT intent_id, finished_at FROM leasehold.outbox_attempts"
        " WHERE finished_at > %s ORDER BY finished_at",
        [after],
    )


def test_transaction_that_stays_open_while_others_commit_loses_no_event(outbox, three):
    slow, quick, third = three
    database = outbox.database
    reader = Reader(outbox)
    late = database.session("operator")
    late.run("BEGIN")
    late.run(CANCEL, [slow])
    outbox.call("operator", "cancel_intent", quick, "operator", "a test")
    [naive] = naive_by_time(database, "-infinity")
    assert reader.read() == [], "events newer than an open transaction are not returned yet"
    late.run("COMMIT")
    assert reader.read() == [slow, quick]
    missed = naive_by_time(database, naive["finished_at"])
    assert naive["intent_id"] == quick
    assert missed == [], "the mutant never sees the slow one's row: it stands behind its cursor"
    outbox.call("operator", "cancel_intent", third, "operator", "a test")
    assert reader.read() == [third]
    assert reader.read() == []


def test_transaction_that_begins_first_and_writes_last_loses_no_event(outbox, three):
    first, second, third = three
    reader = Reader(outbox)
    late = outbox.database.session("operator")
    late.run("BEGIN")
    late.run("SELECT 1")  # it has begun but written nothing, so it delays no event
    outbox.call("operator", "cancel_intent", second, "operator", "a test")
    assert reader.read() == [second]
    late.run(CANCEL, [first])
    outbox.call("operator", "cancel_intent", third, "operator", "a test")
    assert reader.read() == []
    late.run("COMMIT")
    assert reader.read() == [first, third]


def test_open_transaction_delays_newer_events_until_it_ends(outbox, three):
    database = outbox.database
    database.execute("CREATE TABLE elsewhere (id integer)")
    stranger = database.session()
    stranger.run("BEGIN")
    stranger.run("INSERT INTO elsewhere VALUES (1)")
    outbox.call("operator", "cancel_intent", three[0], "operator", "a test")
    reader = Reader(outbox)
    assert reader.read() == []
    stranger.run("ROLLBACK")
    assert reader.read() == [three[0]]


def test_long_read_transaction_delays_no_event(outbox, three):
    looker = outbox.database.session("readonly")
    looker.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
    looker.run("SELECT count(*) FROM leasehold.outbox_attempts")
    outbox.call("operator", "cancel_intent", three[0], "operator", "a test")
    assert Reader(outbox).read() == [three[0]]


def test_event_that_was_rolled_back_is_never_read(outbox, three):
    reader = Reader(outbox)
    session = outbox.database.session("operator")
    session.run("BEGIN")
    session.run(CANCEL, [three[0]])
    session.run("ROLLBACK")
    outbox.call("operator", "cancel_intent", three[1], "operator", "a test")
    assert reader.read() == [three[1]]


def test_row_written_in_a_savepoint_has_the_id_of_its_whole_transaction(outbox, three):
    reader = Reader(outbox)
    session = outbox.database.session("operator")
    session.run("BEGIN")
    session.run("SAVEPOINT inner_one")
    session.run(CANCEL, [three[0]])
    session.run("RELEASE inner_one")
    outbox.call("operator", "cancel_intent", three[1], "operator", "a test")
    assert reader.read() == []
    session.run(CANCEL, [three[2]])
    session.run("COMMIT")
    assert reader.read() == [*sorted([three[0], three[2]]), three[1]]


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_page_may_end_in_the_middle_of_a_transaction(outbox, limit):
    outbox.publish()
    ids = sorted(outbox.enqueue(20))
    outbox.complete(outbox.claim(batch_size=20))
    reader = Reader(outbox, limit=limit)
    seen = []
    while page := reader.read():
        assert len(page) <= limit
        seen += page
    assert seen == ids


def test_two_rows_of_an_intent_in_one_transaction_are_two_events_in_order(outbox):
    outbox.publish()
    [intent_id] = outbox.enqueue(1)
    with outbox.as_role("executor").transaction():
        outbox.complete(outbox.claim(), "RETRYABLE", retry_after_seconds=0)
        outbox.complete(outbox.claim())
    reader = Reader(outbox, limit=1)
    assert reader.read() == [intent_id]
    first = reader.cursor
    assert reader.read() == [intent_id]
    assert read_cursor(reader.cursor) == (*read_cursor(first)[:2], 2)
    assert read_cursor(first)[2] == 1
    assert reader.read() == []


def test_reader_beside_many_writers_misses_no_event(outbox):
    outbox.publish()
    ids = outbox.enqueue(240)
    database = outbox.database
    sessions = [database.connect("operator", autocommit=False) for _ in range(4)]

    def cancel(number):
        session = sessions[number]
        for place, intent_id in enumerate(ids[number::4]):
            session.execute(CANCEL, [intent_id])
            if place % 7 == number:  # transactions of different lengths; some are rolled back
                session.rollback()
                session.execute(CANCEL, [intent_id])
            if place % (number + 1) == 0:
                session.commit()
        session.commit()

    reader = Reader(outbox, limit=5)
    seen = []
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(cancel, number) for number in range(4)]
        while not all(one.done() for one in running):
            seen += reader.read()
        for one in running:
            one.result()
    while page := reader.read():
        seen += page
    written = database.execute("SELECT intent_id FROM leasehold.outbox_attempts")
    assert sorted(seen) == sorted(row["intent_id"] for row in written)
    assert len(seen) > 100


async def test_store_returns_the_events_that_a_reader_may_see(stores, outbox):
    outbox.publish()
    outbox.enqueue(1)
    outbox.complete(outbox.claim(batch_size=1), reference="r-1", code="202")
    [event] = await stores.readonly.read_events(None, 10)
    [attempt] = await stores.readonly.read_ledger([event.attempt.intent_id])
    assert event.attempt == attempt
    assert event.target == "sms"
    assert read_cursor(event.cursor)[1:] == (attempt.intent_id, attempt.attempt_no)
    assert await stores.readonly.read_events(event.cursor, 10) == []


async def test_newest_event_separates_final_events_from_later_ones(stores, outbox, three):
    old, open_one, new = three
    outbox.call("operator", "cancel_intent", old, "operator", "a test")
    late = outbox.database.session("operator")
    late.run("BEGIN")
    late.run(CANCEL, [open_one])
    newest = await stores.readonly.newest_event()
    outbox.call("operator", "cancel_intent", new, "operator", "a test")
    assert await stores.readonly.read_events(newest, 10) == []
    late.run("COMMIT")
    events = await stores.readonly.read_events(newest, 10)
    assert [one.attempt.intent_id for one in events] == [open_one, new]


async def test_cursor_of_another_database_is_refused_instead_of_waiting_forever(stores):
    transaction, intent_id, _ = read_cursor(await stores.readonly.newest_event())
    ahead = event_cursor(transaction + 10**6, intent_id, 0)
    with pytest.raises(InvalidArgument, match=r"ahead of every transaction .*Start again"):
        await stores.readonly.read_events(ahead, 10)


async def test_event_of_a_pruned_intent_has_no_target(stores, outbox, three):
    outbox.call("operator", "cancel_intent", three[0], "operator", "a test")
    outbox.database.owner_execute("DELETE FROM leasehold.intents WHERE intent_id = %s", [three[0]])
    [event] = await stores.readonly.read_events(None, 10)
    assert event.target is None


def test_row_that_moves_to_another_partition_stays_the_same_event(outbox, three, database):
    before = Reader(outbox)
    outbox.call("operator", "cancel_intent", three[0], "operator", "a test")
    before.read()
    month = database.execute(
        "SELECT tableoid::regclass::text AS name FROM leasehold.outbox_attempts"
    )[0]["name"]
    database.execute(f"ALTER TABLE leasehold.outbox_attempts DETACH PARTITION {month}")
    database.execute(f"INSERT INTO leasehold.outbox_attempts SELECT * FROM {month}")
    database.execute(f"DROP TABLE {month}")
    outbox.call("executor", "create_ledger_partitions", 0)
    after = Reader(outbox)
    assert after.read() == [three[0]]
    assert after.cursor == before.cursor


AN_ID = UUID(int=5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1-2-3",
        f"1-{AN_ID}-1",
        f"-{1:018}-{AN_ID}-{1:09}",
        f"{1:018}-{AN_ID}",
        f"{1:018}-{AN_ID}-{1:09}\n",
        f"{1:018}-{AN_ID.hex}-{1:09}",
        f"{10**18}-{AN_ID}-{1:09}",
        f"{1:018}-{AN_ID}-{10**9}",
        "\u0661" * 18 + f"-{AN_ID}-{1:09}",
    ],
)
async def test_malformed_cursor_is_refused(stores, text):
    with pytest.raises(InvalidArgument, match="must be the cursor of an event"):
        await stores.readonly.read_events(EventCursor(text), 1)


def test_later_cursors_are_greater_as_texts():
    parts = [
        (9, AN_ID, 9),
        (9, AN_ID, 10),
        (9, UUID(int=11), 1),
        (10, AN_ID, 1),
        (10**17, AN_ID, 1),
    ]
    cursors = [event_cursor(*one) for one in parts]
    assert cursors == sorted(cursors)
    assert [read_cursor(one) for one in cursors] == parts

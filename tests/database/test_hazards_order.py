"""Hazards of DESIGN.md, each with its naive form as a mutant: cursors, limits, backlog, order."""

from __future__ import annotations

import json
from datetime import timedelta

import psycopg
import pytest

from tests.support.lease_holder import ChangeReader, Holder
from tests.support.outbox import CLUSTER_LEASE, ZERO_ID

ENQUEUE = "SELECT * FROM leasehold.enqueue_intents(%s)"


def entries(*given):
    return json.dumps([{"target": "sms", "payload": 1} | one for one in given])


# 3. Cursors skip.


@pytest.fixture
def cluster(outbox):
    outbox.publish(scope="cluster")
    outbox.acquire()
    return outbox


class NaiveReader:
    """A naive reader: it advances to the last row that it saw."""

    def __init__(self, outbox):
        self.outbox = outbox
        self.cursor = ("-infinity", ZERO_ID)

    def advance(self, position):
        if self.cursor[0] == "-infinity" or position > self.cursor:
            self.cursor = position

    def refresh(self, limit=100):
        page = self.outbox.database.execute(
            "SELECT intent_id, last_modified_at FROM leasehold.outbox_pending"
            " WHERE (last_modified_at, intent_id) > (%s, %s) ORDER BY 1, 2 LIMIT %s",
            [*self.cursor, limit],
        )
        page.sort(key=lambda row: (row["last_modified_at"], row["intent_id"]))
        if page:
            self.advance((page[-1]["last_modified_at"], page[-1]["intent_id"]))
        return [row["intent_id"] for row in page]


class TimestampReader(NaiveReader):
    """A naive reader: its cursor is only a timestamp."""

    def refresh(self, limit=100):
        page = self.outbox.database.execute(
            "SELECT intent_id, last_modified_at FROM leasehold.outbox_pending"
            " WHERE last_modified_at > %s ORDER BY last_modified_at, intent_id LIMIT %s",
            [self.cursor[0], limit],
        )
        if page:
            self.advance((page[-1]["last_modified_at"], page[-1]["intent_id"]))
        return [row["intent_id"] for row in page]


def reader_of(cluster, limit=100):
    return ChangeReader([Holder(cluster, "holder-1", CLUSTER_LEASE, 1)], limit)


@pytest.mark.parametrize("write", ["enqueue", "record"])
def test_3_late_committing_writer_is_missed_by_a_naive_cursor_and_not_by_ours(
    cluster, database, write
):
    [late] = cluster.enqueue()
    readers = naive, ours = NaiveReader(cluster), reader_of(cluster)
    if write == "record":
        for reader in readers:
            assert reader.refresh() == [late]
    writer = database.session(None)
    writer.run("BEGIN")
    if write == "enqueue":
        [row] = writer.run(ENQUEUE, [entries({})])
        late = row["intent_id"]
    else:
        result = [{"intent_id": str(late), "state": "RETRYABLE", "retry_after_seconds": 9}]
        writer.run(
            "SELECT * FROM leasehold.record_attempts(%s, 'holder-1', 1, %s)",
            [CLUSTER_LEASE, json.dumps(result)],
        )
    [early] = cluster.enqueue()
    for reader in readers:
        page = reader.refresh()
        assert early in page
        assert write == "record" or late not in page
    writer.run("COMMIT")
    assert late not in naive.refresh(), "the naive cursor never sees it"
    assert late in ours.refresh()


def test_3_open_writer_makes_nobody_read_twice_until_it_ends(cluster, database):
    reader = reader_of(cluster)
    writer = database.session("ingest")
    writer.run("BEGIN")
    [row] = writer.run(ENQUEUE, [entries({})])
    [early] = cluster.enqueue()
    assert reader.refresh() == [early]
    assert reader.refresh() == []
    writer.run("COMMIT")
    assert sorted(reader.refresh()) == sorted([early, row["intent_id"]])
    assert reader.refresh() == []


def test_3_writer_of_items_does_not_delay_cursors(cluster, database):
    cluster.publish("mail")
    writer = database.session("ingest")
    writer.run("BEGIN")
    writer.run(ENQUEUE, [entries({"target": "mail"})])
    [intent] = cluster.enqueue()
    reader = reader_of(cluster)
    assert reader.refresh() == [intent]
    assert reader.refresh() == []
    writer.run("ROLLBACK")


def test_3_rows_with_equal_times_are_lost_by_a_timestamp_cursor_but_not_by_ours(cluster):
    ids = cluster.enqueue(5)
    moments = {cluster.pending(intent)["last_modified_at"] for intent in ids}
    assert len(moments) == 1
    naive, ours = TimestampReader(cluster), reader_of(cluster, limit=2)
    seen_naively = [intent for _ in range(6) for intent in naive.refresh(limit=2)]
    seen = [intent for _ in range(6) for intent in ours.refresh()]
    assert len(seen_naively) < 5
    assert seen == sorted(ids)


def test_3_row_changed_again_at_the_cursors_time_is_missed_by_a_naive_cursor_only(cluster):
    """If the clock stands still or is set back, the timestamp must still increase."""
    naive_row, our_row = cluster.enqueue(2)
    cluster.database.owner_execute(
        "UPDATE leasehold.outbox_pending"
        "   SET last_modified_at = date_trunc('second', clock_timestamp()) + interval '1 hour'"
    )
    naive, ours = NaiveReader(cluster), reader_of(cluster)
    stamp = cluster.pending(our_row)["last_modified_at"]
    naive.cursor = position = (stamp, max(naive_row, our_row))
    assert naive.refresh() == ours.page(position) == []
    cluster.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET last_modified_at = clock_timestamp(), priority = 0"
        " WHERE intent_id = %s",
        [naive_row],
    )
    result = [{"intent_id": str(our_row), "state": "RETRYABLE", "retry_after_seconds": 9}]
    cluster.call("executor", "record_attempts", CLUSTER_LEASE, "holder-1", 1, result)
    assert cluster.pending(our_row)["last_modified_at"] == stamp + timedelta(microseconds=1)
    assert naive.refresh() == [row["intent_id"] for row in ours.page(position)] == [our_row]


# 4. SKIP LOCKED with LIMIT goes in a MATERIALIZED CTE.

NAIVE_CLAIM = """
UPDATE leasehold.outbox_pending
   SET claimed_by = 'naive', lease_token = gen_random_uuid(), lease_expires_at = 'infinity',
       lease_seconds = 60
 WHERE intent_id IN (
   SELECT intent_id FROM leasehold.outbox_pending
    WHERE scope = 'item' AND target = 'sms' AND claimed_by IS NULL AND due_at <= clock_timestamp()
    ORDER BY priority, due_at, intent_id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING intent_id"""
# A plan that bad statistics can cause: a loop that runs the subselect again for every row.
BAD_PLAN = ["hashjoin", "mergejoin", "hashagg", "material", "sort", "memoize", "bitmapscan"]


def test_4_limit_1_claims_60_rows_in_a_naive_query_and_1_in_ours(outbox):
    outbox.publish()
    outbox.enqueue(60)
    superuser = outbox.database.connect()
    superuser.execute("CLUSTER leasehold.outbox_pending USING outbox_pending_pkey")
    for name in BAD_PLAN:
        superuser.execute(f"SET enable_{name} = off")
    with superuser.transaction(force_rollback=True):
        assert len(superuser.execute(NAIVE_CLAIM).fetchall()) == 60
    claim = "SELECT * FROM leasehold.claim_outbox_batch(1, 'ours', 30, '{sms}')"
    assert len(superuser.execute(claim).fetchall()) == 1
    outbox.expire_claims()
    repair = "SELECT * FROM leasehold.repair_expired_leases(1, 'reaper')"
    assert len(superuser.execute(repair).fetchall()) == 1
    assert len(superuser.execute(claim).fetchall()) == 1


# 18. The backlog of other targets costs nothing.

NAIVE_WALK = """
SELECT intent_id FROM leasehold.outbox_pending
 WHERE scope = 'item' AND claimed_by IS NULL AND due_at <= clock_timestamp()
   AND target = ANY ('{wanted}')
 ORDER BY due_at LIMIT 10 FOR UPDATE SKIP LOCKED"""
BACKLOG = """
INSERT INTO leasehold.outbox_pending
       (intent_id, scope, target, contract_version, priority, due_at, deadline_at, claimed_by,
        lease_token, lease_expires_at, lease_seconds, last_modified_at)
SELECT leasehold.new_intent_id(), 'item', {target}, 1, {priority}, {due_at}, NULL, {claim}, now()
  FROM generate_series(1, 20000)"""
UNWANTED = {
    "of a target not asked for": {"target": "'unwanted'"},
    "claimed by others": {"claim": "'other', gen_random_uuid(), 'infinity', 60"},
    "not due yet": {"due_at": "now() + interval '1 hour'"},
    "of a lower priority": {"priority": "3"},
}


def pages_read(connection, statement):
    """Return the number of pages that a statement reads, including its functions."""
    explain = "EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) "
    with connection.transaction(force_rollback=True):
        plan = connection.execute(explain + statement).fetchone()["QUERY PLAN"][0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def naive_pages_read(connection):
    """Return the pages that a claim reads with one index over all targets and a filter."""
    with connection.transaction(force_rollback=True):
        connection.execute(
            "CREATE INDEX naive_due ON leasehold.outbox_pending (due_at)"
            " WHERE scope = 'item' AND claimed_by IS NULL"
        )
        connection.execute("DROP INDEX leasehold.outbox_pending_due")
        for setting in ("seqscan", "bitmapscan", "sort"):
            connection.execute(f"SET LOCAL enable_{setting} = off")
        return pages_read(connection, NAIVE_WALK)


def test_18_backlog_of_other_targets_is_read_by_a_naive_claim_but_not_by_ours(outbox):
    database = outbox.database
    outbox.publish("wanted")
    outbox.publish("unwanted")
    database.execute("ALTER TABLE leasehold.outbox_pending SET (autovacuum_enabled = false)")
    outbox.enqueue(20, target="wanted")
    superuser = database.connect()
    # From where the last claim ended: rows that others have claimed are due before that.
    claim = (
        "SELECT * FROM leasehold.claim_outbox_batch(10, 'worker', 30, '{wanted}', NULL,"
        " array_fill(clock_timestamp() - interval '1 minute', '{4}'))"
    )
    pages_read(superuser, claim)  # the first call also reads the catalogs
    common = {
        "target": "'wanted'",
        "priority": "0",
        "due_at": "now() - random() * interval '1 day'",
        "claim": "NULL, NULL, NULL::timestamptz, NULL",
    }
    cost, naive_cost = {}, None
    for name, unwanted in UNWANTED.items():
        database.owner_execute(BACKLOG.format(**common | unwanted))
        database.execute("ANALYZE leasehold.outbox_pending")
        naive_cost = naive_cost or naive_pages_read(superuser)
        cost[name] = pages_read(superuser, claim)
    # Due times are random, so the pages of the naive claim vary a little.
    assert naive_cost > 10_000
    assert max(cost.values()) < 1000, cost


# 19. Order inside a stream is commit order.


@pytest.fixture
def streams(outbox):
    outbox.publish(scope="stream")
    return outbox


def test_19_naive_sequence_shows_a_later_number_before_an_earlier_one(database):
    database.execute("CREATE TABLE public.item (stream text, seq bigint)")
    database.execute("CREATE SEQUENCE public.seq")
    insert = "INSERT INTO public.item VALUES ('a', nextval('public.seq'))"
    slow, quick = database.session(), database.session()
    slow.run("BEGIN")
    slow.run(insert)
    quick.run(insert)
    first_sight = quick.run("SELECT seq FROM public.item ORDER BY seq")
    slow.run("COMMIT")
    second_sight = quick.run("SELECT seq FROM public.item ORDER BY seq")
    assert first_sight == [{"seq": 2}]
    assert second_sight == [{"seq": 1}, {"seq": 2}], "1 appears behind a reader that acted on 2"


def test_19_later_enqueuer_of_a_stream_waits_and_other_streams_do_not(streams, database):
    slow, same, other = (database.session("ingest") for _ in range(3))
    slow.run("BEGIN")
    [first] = slow.run(ENQUEUE, [entries({"stream": "a"})])
    waiting = same.start(ENQUEUE, [entries({"stream": "a"})])
    waiting.assert_blocked()
    [elsewhere] = other.run(ENQUEUE, [entries({"stream": "b"})])
    assert elsewhere["verdict"] == "accepted"
    slow.run("COMMIT")
    [second] = waiting.result()
    numbers = [streams.pending(row["intent_id"])["stream_seq"] for row in (first, second)]
    assert numbers == [1, 2]
    assert streams.pending(elsewhere["intent_id"])["stream_seq"] == 1


def test_19_number_of_a_rolled_back_enqueue_goes_to_the_next_one(streams, database):
    slow, same = database.session("ingest"), database.session("ingest")
    slow.run("BEGIN")
    slow.run(ENQUEUE, [entries({"stream": "new"})])
    waiting = same.start(ENQUEUE, [entries({"stream": "new"}, {"stream": "new"})])
    waiting.assert_blocked()
    slow.run("ROLLBACK")
    numbers = [streams.pending(row["intent_id"])["stream_seq"] for row in waiting.result()]
    assert numbers == [1, 2]


NAIVE_LOCKS = """
CREATE FUNCTION leasehold.naive_lock(p_streams text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_stream text;
BEGIN
  FOREACH v_stream IN ARRAY p_streams LOOP
    PERFORM FROM leasehold.streams WHERE stream = v_stream FOR UPDATE;
  END LOOP;
END $$"""


def opposite_batches(database, start_up, start_down):
    """Let both batches wait for a lock on stream a, then release it; return both results."""
    blocker, up, down = (database.session() for _ in range(3))
    for session in (up, down):
        session.run("SET deadlock_timeout = '50ms'")
    blocker.run("BEGIN")
    blocker.run("SELECT FROM leasehold.streams WHERE stream = 'a' FOR UPDATE")
    both = [start_up(up)]
    both[0].assert_blocked()
    both.append(start_down(down))
    both[1].assert_blocked()
    blocker.run("COMMIT")
    outcomes = []
    for one in both:
        try:
            outcomes.append([row.get("verdict") for row in one.result()])
        except psycopg.errors.DeadlockDetected:
            outcomes.append("deadlock")
    return outcomes


def test_19_batches_over_two_streams_in_opposite_order_deadlock_only_naively(streams, database):
    streams.enqueue(stream="a")
    streams.enqueue(stream="b")
    database.owner_execute(NAIVE_LOCKS)
    naive = "SELECT leasehold.naive_lock(%s)"
    outcomes = opposite_batches(
        database,
        lambda up: up.start(naive, [["a", "b"]]),
        lambda down: down.start(naive, [["b", "a"]]),
    )
    assert outcomes.count("deadlock") == 1
    outcomes = opposite_batches(
        database,
        lambda up: up.start(ENQUEUE, [entries({"stream": "a"}, {"stream": "b"})]),
        lambda down: down.start(ENQUEUE, [entries({"stream": "b"}, {"stream": "a"})]),
    )
    assert outcomes == [["accepted", "accepted"]] * 2
    numbers = database.execute(
        "SELECT stream, array_agg(stream_seq ORDER BY stream_seq) AS numbers"
        "  FROM leasehold.outbox_pending GROUP BY 1 ORDER BY 1"
    )
    assert [row["numbers"] for row in numbers] == [[1, 2, 3], [1, 2, 3]]

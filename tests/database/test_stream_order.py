"""Order inside a stream is commit order, and nothing overtakes its head."""

from __future__ import annotations

import json

import pytest

from tests.support.lease_holder import claim_streams

ENQUEUE = "SELECT * FROM leasehold.enqueue_intents(%s)"
SLACK_BLOCKS = 40
CLAIM = "SELECT * FROM leasehold.claim_streams(100, 'holder-1', 30, 150, %s)"


@pytest.fixture
def streams(outbox):
    outbox.publish("pay", scope="stream", batch_max=3)
    return outbox


def entry(stream, payload=1):
    return json.dumps([{"target": "pay", "payload": payload, "stream": stream}])


def order_of(database):
    rows = database.execute(
        "SELECT payload FROM leasehold.intents ORDER BY target, stream, stream_seq"
    )
    return [row["payload"] for row in rows]


def test_item_that_is_not_the_head_cannot_begin(streams):
    first, second, third = streams.enqueue(3, "pay", stream="a")
    [elsewhere] = streams.enqueue(target="pay", stream="b")
    holders = {holder.lease_name: holder for holder in claim_streams(streams)}
    holder = holders["stream/pay/a"]
    assert holder.begin([second]) == ["out_of_order"]
    assert holder.begin([first, third]) == ["begun", "out_of_order"]
    # The head has begun, but is not finished.
    assert holder.begin([second]) == ["out_of_order"]
    assert holders["stream/pay/b"].begin([elsewhere]) == ["begun"]
    holder.record([first], "DISPATCHED")
    assert holder.begin([third]) == ["out_of_order"]
    assert holder.begin([second]) == ["begun"]


def test_items_of_one_call_are_one_ordered_batch_however_they_are_listed(streams):
    ids = streams.enqueue(4, "pay", stream="a")
    [holder] = claim_streams(streams)
    assert holder.begin([ids[2], ids[0], ids[1]]) == ["begun", "begun", "begun"]
    assert holder.begin([ids[3]]) == ["out_of_order"]
    # The results may be reported in any order.
    assert holder.record([ids[1]], "DISPATCHED") == ["applied"]
    assert holder.record([ids[2], ids[0]], "DISPATCHED") == ["applied", "applied"]
    assert holder.begin([ids[3]]) == ["begun"]


@pytest.mark.parametrize("trouble", ["in_doubt", "held", "confirming", "retry", "not_due", "spent"])
def test_nothing_overtakes_a_head_that_cannot_begin_now(streams, database, trouble):
    guarantee = {"in_doubt": "lookup", "held": "blind"}.get(trouble, "keyed")
    streams.publish("pay", scope="stream", guarantee=guarantee, batch_max=3)
    [head] = streams.enqueue(target="pay", stream="a")
    following = streams.enqueue(2, "pay", stream="a")
    [holder] = claim_streams(streams)
    if trouble == "not_due":
        database.owner_execute(
            "UPDATE leasehold.outbox_pending SET due_at = now() + interval '1 minute'"
            " WHERE intent_id = %s",
            [head],
        )
    state = {"in_doubt": "IN_DOUBT", "held": "IN_DOUBT", "confirming": "SUBMITTED"}
    if trouble in (*state, "retry"):
        assert holder.begin([head]) == ["begun"]
        holder.record([head], state.get(trouble, "RETRYABLE"))
    if trouble == "spent":
        database.owner_execute(
            "UPDATE leasehold.outbox_pending SET attempt_count = 20 WHERE intent_id = %s", [head]
        )
    assert streams.status(head) == (trouble if trouble in state else "pending")
    refusal = "ceiling_reached" if trouble == "spent" else "not_due"
    # Neither alone nor in a batch with the head.
    assert holder.begin(following) == ["out_of_order", "out_of_order"]
    assert holder.begin([head, *following]) == [refusal, "out_of_order", "out_of_order"]
    [row] = holder.look()
    assert (row["stream_state"], row["intent_id"]) == (
        ("ready", head) if trouble == "spent" else ("waiting", None)
    )


def test_result_of_a_call_that_was_never_begun_is_refused_in_every_stream(streams):
    [head] = streams.enqueue(target="pay", stream="a")
    [holder] = claim_streams(streams)
    with pytest.raises(Exception, match="never begun") as caught:
        holder.record([head], "DISPATCHED")
    assert caught.value.sqlstate == "P7003"


@pytest.mark.parametrize("is_known", [True, False])
def test_second_enqueue_of_a_stream_waits_and_gets_the_later_number(streams, database, is_known):
    if is_known:
        streams.enqueue_entries(json.loads(entry("a", "first")))
    early, late, elsewhere = (database.session("ingest") for _ in range(3))
    early.run("BEGIN")
    early.run(ENQUEUE, [entry("a", "early")])
    waiting = late.start(ENQUEUE, [entry("a", "late")])
    waiting.assert_blocked()
    # Only enqueuers of the same stream wait for one another.
    elsewhere.run(ENQUEUE, [entry("b", "elsewhere")])
    early.run(ENQUEUE, [entry("a", "early again")])
    early.run("COMMIT")
    waiting.result()
    first = ["first"] if is_known else []
    assert order_of(database) == [*first, "early", "early again", "late", "elsewhere"]


@pytest.mark.usefixtures("streams")
def test_rolled_back_enqueue_does_not_affect_the_order(database):
    early, late = database.session("ingest"), database.session("ingest")
    early.run("BEGIN")
    early.run(ENQUEUE, [entry("a", "early")])
    waiting = late.start(ENQUEUE, [entry("a", "late")])
    waiting.assert_blocked()
    early.run("ROLLBACK")
    waiting.result()
    assert order_of(database) == ["late"]


def test_numbers_from_a_sequence_would_let_a_later_commit_show_an_earlier_number(empty_database):
    """In the naive form the second to take a number commits first, and its item is called first."""
    empty_database.execute("CREATE TABLE item (seq bigserial, payload text)")
    early, late = empty_database.session(), empty_database.session()
    early.run("BEGIN")
    early.run("INSERT INTO item (payload) VALUES ('early')")
    late.run("INSERT INTO item (payload) VALUES ('late')")
    acted_on = late.run("SELECT payload FROM item ORDER BY seq LIMIT 1")
    early.run("COMMIT")
    assert acted_on == [{"payload": "late"}]
    assert late.run("SELECT payload FROM item ORDER BY seq LIMIT 1") == [{"payload": "early"}]


@pytest.mark.usefixtures("streams")
def test_two_batches_over_the_same_streams_do_not_deadlock(database):
    first, second = database.session("ingest"), database.session("ingest")
    batch = [{"target": "pay", "payload": 1, "stream": name} for name in "abc"]
    first.run("BEGIN")
    first.run(ENQUEUE, [entry("b")])
    waiting = second.start(ENQUEUE, [json.dumps(batch[::-1])])
    waiting.assert_blocked()
    # `second` must not hold c yet, or this would wait for it.
    first.run(ENQUEUE, [entry("c")])
    first.run("COMMIT")
    assert {row["verdict"] for row in waiting.result()} == {"accepted"}


def test_cost_of_a_claim_depends_on_streams_and_not_on_rows(streams, database):
    streams.publish("small", scope="stream")
    add_rows(database, "small", 100)
    alone = claim_blocks(database, "small")
    add_rows(database, "pay", 20_000)
    [table] = database.execute("SELECT pg_relation_size('leasehold.outbox_pending') / 8192 AS n")
    assert table["n"] > 10 * SLACK_BLOCKS, (
        "the table is too small to tell a sequential scan from an index scan"
    )
    # With stale statistics first, then with fresh ones. A big stream must be as cheap as a small
    # one, and must cost nothing for a claim of another target.
    for _ in range(2):
        blocks = {target: claim_blocks(database, target) for target in ("small", "pay")}
        assert max(blocks.values()) <= alone + SLACK_BLOCKS, (alone, blocks)
        database.execute("ANALYZE leasehold.outbox_pending")


@pytest.mark.parametrize("state", ["DISPATCHED", "FAILED", "RETRYABLE", "SUBMITTED"])
def test_cost_of_a_record_does_not_depend_on_what_waits(streams, database, state):
    """The session plans its statements while the table is small, and runs them on a large one."""
    ids = streams.enqueue(3, "pay", stream="b")
    [holder] = claim_streams(streams)
    holder.begin(ids)
    session = database.connect("executor")

    def rows_read():
        result = {"intent_id": str(ids[0]), "state": state, "retry_after_seconds": 1}
        result |= {"reference": "r"}
        session.execute(
            "SELECT FROM leasehold.record_stream_attempts(%s, %s, %s, %s)",
            [*holder.fences, json.dumps([result])],
        )
        row = session.execute(
            "SELECT idx_tup_fetch + seq_tup_read AS rows FROM pg_stat_xact_user_tables"
            " WHERE relname = 'outbox_pending'"
        ).fetchone()
        session.rollback()
        return row["rows"]

    add_rows(database, "some", 300)
    assert rows_read() < 50
    add_rows(database, "pay", 5000)
    assert rows_read() < 50


def add_rows(database, target, count):
    database.owner_execute(
        "INSERT INTO leasehold.outbox_pending (intent_id, scope, target, contract_version,"
        " lease_name, stream, stream_seq, priority, due_at, last_modified_at, is_claimable)"
        " SELECT gen_random_uuid(), 'stream', %(target)s, 1, 'stream/' || %(target)s || '/a',"
        "        'a', n, 1, now(), now(), n = 1 FROM generate_series(1, %(count)s) AS n",
        {"target": target, "count": count},
    )
    database.owner_execute("SELECT leasehold.create_stream(%s, 'a')", [target])


def claim_blocks(database, target):
    """Return the blocks that a claim of this target reads, without those of its first call."""
    session = database.session("executor")
    for _ in range(2):
        session.run("BEGIN")
        [row] = session.run(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) {CLAIM}", [[target]])
        session.run("ROLLBACK")
    plan = row["QUERY PLAN"][0]["Plan"]
    assert plan["Actual Rows"] == (3 if target == "pay" else 1)
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

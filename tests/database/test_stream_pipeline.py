"""Pipelines (`pipeline_max`): an intent starts when the one before it is SUBMITTED."""

from __future__ import annotations

import json

import pytest

from tests.support.lease_holder import claim_streams
from tests.support.mutants import mutate
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server


@pytest.fixture
def streams(outbox):
    outbox.publish("pay", scope="stream", guarantee="lookup", pipeline_max=3)
    return outbox


def heads_of(rows):
    return [row["intent_id"] for row in rows if row["intent_id"]]


def claim_one(outbox, name="holder-1"):
    """Claim the one stream that can be claimed."""
    [holder] = claim_streams(outbox, name)
    return holder


def submit_head(holder, rows=None):
    """Call the one head and record that the gateway accepted it; return what is next."""
    [head] = heads_of(holder.heads if rows is None else rows)
    assert holder.begin([head]) == ["begun"]
    return holder.record_next([head], "SUBMITTED", retry_after_seconds=60)


def marked(database):
    """The rows that lead a claim to their stream."""
    rows = database.execute("SELECT intent_id FROM leasehold.outbox_pending WHERE is_claimable")
    return {row["intent_id"] for row in rows}


def make_due(database, *ids):
    database.execute(
        "UPDATE leasehold.outbox_pending SET due_at = clock_timestamp() - interval '1 second'"
        " WHERE intent_id = ANY (%s)",
        [list(ids)],
    )


def test_next_intent_starts_when_the_one_before_is_submitted(streams):
    ids = streams.enqueue(3, "pay", stream="s")
    holder = claim_one(streams)
    assert heads_of(holder.heads) == ids[:1]
    rows = submit_head(holder)
    assert (rows[0]["stream_state"], heads_of(rows)) == ("ready", ids[1:2])


def test_next_intent_waits_for_the_confirmation_without_a_pipeline(outbox):
    outbox.publish("pay", scope="stream", guarantee="lookup")
    outbox.enqueue(2, "pay", stream="s")
    [row] = submit_head(claim_one(outbox))
    assert (row["stream_state"], row["intent_id"]) == ("waiting", None)


def test_full_pipeline_starts_nothing_until_one_is_confirmed(streams, database):
    ids = streams.enqueue(5, "pay", stream="s")
    holder = claim_one(streams)
    rows = list(holder.heads)
    for _ in range(3):
        rows = submit_head(holder, rows)
    [row] = rows
    assert (row["stream_state"], row["is_held"]) == ("waiting", False)
    assert row["wait_seconds"] == pytest.approx(60, abs=5)
    assert claim_streams(streams) == []

    make_due(database, *ids[:2])
    holder = claim_one(streams)
    assert heads_of(holder.heads) == ids[:2]  # asked about together
    rows = holder.record_next([ids[0]], "DISPATCHED")
    assert heads_of(rows) == ids[1:2]  # due for longer than the next head
    rows = holder.record_next([ids[1]], "SUBMITTED", retry_after_seconds=60)
    assert heads_of(rows) == ids[3:4]


def test_intent_that_is_in_doubt_blocks_the_calls_behind_it(streams, database):
    ids = streams.enqueue(3, "pay", stream="s")
    holder = claim_one(streams)
    rows = submit_head(holder)
    rows = submit_head(holder, rows)
    assert heads_of(rows) == ids[2:]
    holder.release()
    make_due(database, ids[0])
    holder = claim_one(streams)
    # The due time of a freed head is moved to the end of the line, so the question comes first.
    assert heads_of(holder.heads) == ids[:1]
    [row] = holder.record_next([ids[0]], "IN_DOUBT")
    assert (row["stream_state"], row["is_held"]) == ("waiting", False)
    [blocked] = database.execute(
        "SELECT head, state, waiting, submitted FROM leasehold.blocked_streams"
    )
    assert blocked == {"head": ids[0], "state": "in_doubt", "waiting": 1, "submitted": 1}

    make_due(database, ids[1])
    holder = claim_one(streams)
    assert heads_of(holder.heads) == ids[1:2]  # it is asked about all the same
    [row] = holder.record_next([ids[1]], "DISPATCHED")
    assert row["stream_state"] == "waiting"
    make_due(database, ids[0])
    assert heads_of(claim_one(streams).heads) == ids[:1]


def test_pipeline_that_awaits_confirmations_blocks_nothing(streams, database):
    streams.enqueue(2, "pay", stream="s")
    holder = claim_one(streams)
    submit_head(holder, submit_head(holder))
    assert database.execute("SELECT FROM leasehold.blocked_streams") == []
    assert streams.call("operator", "read_blocked_streams", 10) == []


@pytest.mark.parametrize(
    ("state", "is_awaited"),
    [
        ("SUBMITTED", True),
        ("DEFERRED", True),
        ("IN_DOUBT", False),
        ("RETRYABLE", False),
        ("held", False),
        ("resolved", False),
    ],
)
def test_only_a_submitted_intent_that_is_not_held_awaits_its_confirmation(
    streams, database, state, is_awaited
):
    [intent_id] = streams.enqueue(1, "pay", stream="s")
    holder = claim_one(streams)
    submit_head(holder)
    assert streams.pending(intent_id)["awaits_confirmation"]
    make_due(database, intent_id)
    holder = claim_one(streams)
    if state == "resolved":
        streams.call("operator", "resolve_intent", intent_id, "RETRYABLE", "ann", "lost")
    elif state == "held":
        database.owner_execute(
            "INSERT INTO leasehold.outbox_attempts (intent_id, attempt_no, state, holder,"
            "  started_at, finished_at)"
            " SELECT %s, n, 'RETRYABLE', 'x', now(), now() FROM generate_series(2, 19) AS n",
            [intent_id],
        )
        database.owner_execute(
            "UPDATE leasehold.outbox_pending SET attempt_count = 19, begun_at = now()"
        )
        holder.record([intent_id], "SUBMITTED")
        assert streams.status(intent_id) == "held"
    else:
        holder.record([intent_id], state)
    assert streams.pending(intent_id)["awaits_confirmation"] == is_awaited


def test_intent_enqueued_behind_submitted_ones_is_claimed_at_once(streams, database):
    [first] = streams.enqueue(target="pay", stream="s")
    [row] = submit_head(claim_one(streams))
    assert (row["stream_state"], row["is_held"]) == ("waiting", False)
    [second] = streams.enqueue(target="pay", stream="s")
    assert marked(database) == {first, second}
    holder = claim_one(streams)
    assert heads_of(holder.heads) == [second]
    [row] = submit_head(holder)
    assert row["stream_state"] == "waiting"
    assert marked(database) == {first}


def test_holder_that_asks_is_not_given_the_same_stream_again(streams, database):
    [first] = streams.enqueue(target="pay", stream="s")
    submit_head(claim_one(streams))
    make_due(database, first)
    holder = claim_one(streams)
    assert heads_of(holder.heads) == [first]
    [second] = streams.enqueue(target="pay", stream="s")
    assert second in marked(database)
    assert claim_streams(streams) == []
    assert heads_of(holder.record_next([first], "DISPATCHED")) == [second]


def test_intent_enqueued_behind_a_full_pipeline_is_claimed_once_in_vain(streams, database):
    streams.enqueue(3, "pay", stream="s")
    holder = claim_one(streams)
    rows = list(holder.heads)
    for _ in range(3):
        rows = submit_head(holder, rows)
    [late] = streams.enqueue(target="pay", stream="s")
    assert late in marked(database)
    assert claim_streams(streams) == []
    assert late not in marked(database)


def head_behind_a_full_pipeline(streams, database, *, is_late):
    """Return the heads of the next claim after the deadline of a head, and that head."""
    submitted = streams.enqueue(3, "pay", stream="s")
    [row] = database.execute("SELECT (clock_timestamp() + interval '20 seconds')::text AS deadline")
    late = {"deadline_at": row["deadline"], "stream": "s"}
    waiting = [] if is_late else streams.enqueue(1, "pay", **late)
    holder = claim_one(streams)
    rows = list(holder.heads)
    for _ in range(3):
        rows = submit_head(holder, rows)
    assert rows[0]["stream_state"] == "waiting"
    if is_late:
        waiting = streams.enqueue(1, "pay", **late)
    assert claim_streams(streams) == []
    assert marked(database) == {submitted[0]}
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = due_at - interval '20 seconds',"
        "  deadline_at = deadline_at - interval '20 seconds' WHERE due_at < 'infinity'"
    )
    return [head for one in claim_streams(streams) for head in heads_of(one.heads)], waiting


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_head_behind_a_full_pipeline_ends_at_its_deadline(streams, database, is_late):
    """Nobody looked at the stream before it was time to ask about a submitted intent."""
    found, waiting = head_behind_a_full_pipeline(streams, database, is_late=is_late)
    assert found == waiting


def test_mutant_that_forgets_the_deadline_leaves_that_head_waiting(streams, database):
    by_deadline = r"WHEN head_action = 'call' THEN least\(awaited_due_at, head_deadline_at\)"
    mutate(database, "decide_streams", by_deadline, "")
    assert head_behind_a_full_pipeline(streams, database, is_late=False)[0] == []


@pytest.mark.every_server
def test_finisher_looks_again_if_an_enqueuer_saw_the_head_before_it_was_submitted(
    streams, database
):
    streams.enqueue(target="pay", stream="s")
    holder = claim_one(streams)
    [head] = heads_of(holder.heads)
    holder.begin([head])
    enqueuer = database.session("ingest")
    enqueuer.run("BEGIN")
    entries = json.dumps([{"target": "pay", "payload": 1, "stream": "s"}])
    enqueuer.run("SELECT * FROM leasehold.enqueue_intents(%s)", [entries])
    [row] = holder.record_next([head], "SUBMITTED", retry_after_seconds=60)
    assert (row["stream_state"], row["is_held"]) == ("recheck", True)
    enqueuer.run("COMMIT")
    [row] = holder.look()
    assert row["stream_state"] == "ready"


def test_takeover_puts_the_call_behind_submitted_ones_in_doubt(streams, database):
    ids = streams.enqueue(3, "pay", stream="s")
    holder = claim_one(streams)
    rows = submit_head(holder)
    assert holder.begin(heads_of(rows)) == ["begun"]
    database.execute(
        "UPDATE leasehold.leases SET expires_at = clock_timestamp() - interval '2 seconds',"
        " grace_expires_at = clock_timestamp() + interval '1 minute'"
    )
    assert claim_streams(streams, "holder-2") == []  # a call is in flight
    database.execute(
        "UPDATE leasehold.leases SET grace_expires_at = clock_timestamp() - interval '1 second'"
    )
    claim_streams(streams, "holder-2")
    states = database.execute(
        "SELECT intent_id, last_state FROM leasehold.outbox_pending ORDER BY stream_seq"
    )
    assert [tuple(row.values()) for row in states] == [
        (ids[0], "SUBMITTED"),
        (ids[1], "IN_DOUBT"),
        (ids[2], None),
    ]


def test_begin_behind_an_unconfirmed_call_is_out_of_order_without_a_pipeline(outbox):
    outbox.publish("pay", scope="stream", guarantee="lookup")
    ids = outbox.enqueue(2, "pay", stream="s")
    holder = claim_one(outbox)
    holder.begin(ids[:1])
    assert holder.record(ids[:1], "SUBMITTED") == ["applied"]
    assert holder.begin(ids[1:]) == ["out_of_order"]


def test_row_that_awaits_its_confirmation_is_not_called_again(streams):
    ids = streams.enqueue(2, "pay", stream="s")
    holder = claim_one(streams)
    holder.begin(ids[:1])
    assert holder.record(ids[:1], "SUBMITTED", retry_after_seconds=0) == ["applied"]
    assert holder.begin(ids[:1]) == ["out_of_order"]
    assert holder.begin(ids[1:]) == ["begun"]


def begin_in_a_full_pipeline(streams):
    """Try to begin one row more than the pipeline takes; return the verdict."""
    ids = streams.enqueue(4, "pay", stream="s")
    holder = claim_one(streams)
    for one in ids[:3]:
        assert holder.begin([one]) == ["begun"]
        assert holder.record([one], "SUBMITTED", retry_after_seconds=60) == ["applied"]
    return holder.begin(ids[3:])


def test_holder_cannot_begin_more_than_the_pipeline_takes(streams):
    assert begin_in_a_full_pipeline(streams) == ["out_of_order"]


def begin_before_a_call_in_flight(streams):
    """An operator sends the first row back while the second is called; try to begin the first."""
    ids = streams.enqueue(2, "pay", stream="s")
    holder = claim_one(streams)
    [row] = submit_head(holder)
    assert holder.begin([row["intent_id"]]) == ["begun"]
    resolve = (ids[0], "RETRYABLE", "ops", "the gateway lost it")
    assert streams.call("operator", "resolve_intent", *resolve) == [{"resolve_intent": "resolved"}]
    return holder.begin(ids[:1])


def test_holder_cannot_begin_a_row_while_a_later_one_is_in_flight(streams):
    assert begin_before_a_call_in_flight(streams) == ["out_of_order"]


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("naive", "begin"),
    [
        ((r"ELSE c\.pipeline_max - awaited\.rows END", "ELSE 100 END"), begin_in_a_full_pipeline),
        ((r"OR leasehold\.is_stream_begun\(.*? END\)", ""), begin_before_a_call_in_flight),
    ],
    ids=["ignores pipeline_max", "ignores a call in flight"],
)
def test_mutant_that_ignores_the_other_calls_of_a_pipeline_begins(streams, database, naive, begin):
    mutate(database, "begin_stream_attempts", *naive)
    assert begin(streams) == ["begun"]


def resumed_early(streams):
    """Pause a stream for an hour, let an operator change it, resume it; return what is next."""
    ids = streams.enqueue(3, "pay", stream="s")
    holder = claim_one(streams)
    submit_head(holder, submit_head(holder))
    holder.release()
    streams.call("operator", "pause_stream", "pay", "s", "ops", "wait", 3600)
    streams.call("operator", "resolve_intent", ids[0], "DISPATCHED", "ops", "saw it")
    streams.call("operator", "resume_stream", "pay", "s", "ops", "go on")
    holder = claim_one(streams)
    assert heads_of(holder.heads) == ids[1:2]
    return heads_of(holder.record_next(ids[1:2], "DISPATCHED")), ids[2:]


def test_resumed_pipeline_does_not_wait_for_the_end_of_its_pause(streams):
    found, following = resumed_early(streams)
    assert found == following


@pytest.mark.one_server
def test_mutant_that_undoes_a_pause_for_claimable_rows_only_lets_the_head_wait(streams, database):
    found = r"WHERE p\.due_at > p_now"
    mutate(database, "end_stream_pauses", found, "WHERE p.is_claimable AND p.due_at > p_now")
    assert resumed_early(streams)[0] == []


def test_rejected_confirmation_pauses_the_stream_and_is_asked_no_further(streams, database):
    ids = streams.enqueue(3, "pay", stream="s")
    holder = claim_one(streams)
    submit_head(holder, submit_head(holder))
    holder.release()
    make_due(database, ids[0])
    holder = claim_one(streams)
    [row] = holder.record_next([ids[0]], "FAILED", reason="invalid")
    assert (row["stream_state"], row["is_held"]) == ("paused", False)
    make_due(database, ids[1])
    assert claim_streams(streams) == []
    streams.call("operator", "resume_stream", "pay", "s", "ops", "mended", None, ids[0])
    assert heads_of(claim_one(streams).heads) == ids[2:]  # due for longer than the question


def test_operator_skips_the_head_behind_submitted_intents(streams):
    ids = streams.enqueue(3, "pay", stream="s")
    holder = claim_one(streams)
    submit_head(holder)
    holder.release()
    skip = ("pay", "s", ids[1], "ops", "not wanted")
    assert streams.call("operator", "skip_stream_head", *skip) == [{"skip_stream_head": "skipped"}]
    assert heads_of(claim_one(streams).heads) == ids[2:]


@pytest.mark.parametrize(
    ("terms", "constraint"),
    [
        ({"scope": "item", "guarantee": "lookup"}, "contracts_pipelines_are_confirmed"),
        ({"scope": "stream", "guarantee": "keyed"}, "contracts_pipelines_are_confirmed"),
        (
            {"scope": "stream", "guarantee": "lookup", "pipeline_max": 101},
            "contracts_pipeline_bounded",
        ),
    ],
)
def test_pipeline_that_cannot_be_confirmed_is_refused(outbox, terms, constraint):
    with refused("22023") as caught:
        outbox.publish("pay", **{"pipeline_max": 3} | terms)
    assert constraint in str(caught.value)


@pytest.mark.every_server
def test_pipeline_of_one_target_costs_the_streams_of_others_nothing(outbox, database):
    outbox.publish("plain", scope="stream")
    head, *_ = outbox.enqueue(300, "plain", stream="a")
    [holder] = claim_streams(outbox, targets=["plain"])
    holder.begin([head])
    session = database.connect("executor")

    def rows_read():
        session.execute(
            "SELECT FROM leasehold.record_stream_attempts(%s, %s, %s, %s)",
            [*holder.fences, json.dumps([{"intent_id": str(head), "state": "DISPATCHED"}])],
        )
        [row] = session.execute(
            "SELECT idx_tup_fetch AS rows FROM pg_stat_xact_user_tables"
            " WHERE relname = 'outbox_pending'"
        ).fetchall()
        session.rollback()
        return row["rows"]

    assert rows_read() < 50
    outbox.publish("piped", scope="stream", guarantee="lookup", pipeline_max=2)
    assert rows_read() < 50

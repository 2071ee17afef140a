"""Streams that were empty for long are deleted; no epoch and no number of theirs goes back."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from leasehold.cli.main import app
from tests.support.lease_holder import claim_streams
from tests.support.sqlstates import refused

ENQUEUE = "SELECT * FROM leasehold.enqueue_intents(%s)"
PRUNE = "SELECT leasehold.prune_streams(now() - interval '2 days', 100)"
WEEK = "interval '7 days'"


@pytest.fixture
def streams(outbox):
    outbox.publish("pay", scope="stream")
    return outbox


def use(outbox, stream, times=1):
    """Execute some intents of a stream, each under a claim of its own; return the last epoch."""
    for _ in range(times):
        [head] = outbox.enqueue(target="pay", stream=stream)
        [holder] = claim_streams(outbox)
        holder.begin([head])
        holder.record_next([head], "DISPATCHED")
    return holder.epoch


def let_a_week_pass(database):
    database.owner_execute(f"UPDATE leasehold.streams SET created_at = created_at - {WEEK}")
    database.owner_execute(f"UPDATE leasehold.leases SET renewed_at = renewed_at - {WEEK}")


def prune(database):
    [row] = database.owner_execute(PRUNE)
    return row["prune_streams"]


def names(database):
    rows = database.execute(
        "SELECT s.stream, l.stream IS NOT NULL AS has_lease"
        "  FROM leasehold.streams s FULL JOIN leasehold.leases l USING (target, stream)"
    )
    assert all(row["has_lease"] for row in rows)
    return {row["stream"] for row in rows}


def test_pruned_stream_that_comes_back_continues_above_its_old_numbers(streams, database):
    assert use(streams, "long", times=5) == 5
    assert use(streams, "short") == 1
    assert prune(database) == 0
    let_a_week_pass(database)
    assert prune(database) == 2
    assert names(database) == set()
    for stream in ("short", "new", "long"):
        [head] = streams.enqueue(target="pay", stream=stream)
        assert streams.pending(head)["stream_seq"] == 6
        [holder] = claim_streams(streams)
        assert (holder.stream, holder.epoch) == (stream, 6)


@pytest.mark.parametrize("trouble", ["pending", "held", "paused", "expired", "young"])
def test_stream_that_somebody_needs_is_kept(streams, database, trouble):
    use(streams, "s")
    if trouble != "young":
        let_a_week_pass(database)
    if trouble in ("pending", "held", "expired"):
        streams.enqueue(target="pay", stream="s")
    if trouble in ("held", "expired"):
        [holder] = claim_streams(streams)
        let_a_week_pass(database)
        if trouble == "expired":
            streams.expire_lease(holder.lease_name)
    if trouble == "paused":
        streams.call("operator", "pause_stream", "pay", "s", "ada", "wait")
    assert prune(database) == 0
    assert names(database) == {"s"}


def test_stream_that_was_never_claimed_and_is_empty_is_pruned(streams, database):
    [only] = streams.enqueue(target="pay", stream="s")
    streams.call("operator", "cancel_intent", only, "ada", "not wanted")
    let_a_week_pass(database)
    assert prune(database) == 1


def test_stream_of_an_open_enqueuer_is_kept(streams, database):
    use(streams, "s")
    let_a_week_pass(database)
    enqueuer = database.session("ingest")
    enqueuer.run("BEGIN")
    enqueuer.run(ENQUEUE, [json.dumps([{"target": "pay", "payload": 1, "stream": "s"}])])
    assert prune(database) == 0
    enqueuer.run("COMMIT")
    assert len(claim_streams(streams)) == 1


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_enqueuer_that_meets_a_prune_does_not_start_below_it(streams, database, level):
    use(streams, "s", times=3)
    let_a_week_pass(database)
    pruner, enqueuer = database.session("owner"), database.session("ingest")
    enqueuer.run(f"BEGIN ISOLATION LEVEL {level}")
    enqueuer.run("SELECT count(*) FROM leasehold.contracts")
    pruner.run("BEGIN")
    pruner.run(PRUNE)
    entry = [json.dumps([{"target": "pay", "payload": 1, "stream": "s"}])]
    waiting = enqueuer.start(ENQUEUE, entry)
    waiting.assert_blocked()
    pruner.run("COMMIT")
    if level == "REPEATABLE READ":
        # Its snapshot is too old; a repetition of the transaction succeeds.
        with refused("40001"):
            waiting.result()
        enqueuer.run("ROLLBACK")
        enqueuer.run(ENQUEUE, entry)
    else:
        waiting.result()
        enqueuer.run("COMMIT")
    [holder] = claim_streams(streams)
    assert holder.epoch == 4
    [head] = holder.heads
    assert streams.pending(head["intent_id"])["stream_seq"] == 4


def test_lease_of_a_cluster_or_of_a_held_stream_cannot_be_deleted(streams, database):
    streams.acquire()
    streams.enqueue(target="pay", stream="s")
    claim_streams(streams)
    with refused("P0001"):
        database.owner_execute("DELETE FROM leasehold.leases WHERE stream IS NULL")
    with refused("P0001"):
        database.owner_execute("DELETE FROM leasehold.leases WHERE stream IS NOT NULL")


@pytest.mark.parametrize(
    ("before", "batch_size"),
    [("NULL", 10), ("now()", 10), ("'infinity'", 10), ("now() - interval '2 days'", 0)],
)
def test_prune_of_recent_streams_or_without_a_size_is_refused(database, before, batch_size):
    with refused("22023"):
        database.owner_execute(f"SELECT leasehold.prune_streams({before}, {batch_size})")


@pytest.mark.one_server
def test_prune_command_deletes_empty_streams_in_batches(streams, database):
    for number in range(5):
        use(streams, f"s{number}")
    let_a_week_pass(database)
    streams.enqueue(target="pay", stream="s0")
    arguments = ["prune", "--keep-days", "3", "--batch-size", "2", "--database-url", database.url]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "Deleted 4 empty streams.\n" in result.stdout
    assert names(database) == {"s0"}

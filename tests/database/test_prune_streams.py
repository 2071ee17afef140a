"""Streams that were empty for long are deleted; no epoch and no number of theirs goes back."""

from __future__ import annotations

import json

import pytest

from leasehold.coordination import reaper as reapers
from leasehold.domain.timing import Timings
from leasehold.observe.metrics import Metrics
from tests.support.lease_holder import claim_streams
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

ENQUEUE = "SELECT * FROM leasehold.enqueue_intents(%s)"
PRUNE = "SELECT * FROM leasehold.prune_streams(now() - interval '2 days', 100)"
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
    assert row["walked_to"] is None
    return row["pruned"]


def names(database):
    rows = database.execute(
        "SELECT s.stream, l.stream IS NOT NULL AS has_lease"
        "  FROM leasehold.streams s"
        "  FULL JOIN (SELECT * FROM leasehold.leases WHERE stream IS NOT NULL) l"
        "       USING (target, stream)"
    )
    assert all(row["has_lease"] for row in rows)
    return {row["stream"] for row in rows}


def end_pause(database, stream):
    """Let the pause of a stream be over."""
    for table in ("leases", "stream_pauses"):
        database.execute(
            f"UPDATE leasehold.{table} SET paused_until = paused_since"
            " WHERE lease_name = leasehold.stream_lease_name('pay', %s)",
            [stream],
        )


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


def test_pause_that_is_over_is_forgotten_and_others_are_not(streams, database):
    """Else it would be read again with each page of blocked streams while its stream is empty."""
    for stream, seconds in (("over", 1), ("not over", 3600), ("for a person", None)):
        use(streams, stream)
        streams.call("operator", "pause_stream", "pay", stream, "ada", "wait", seconds)
    end_pause(database, "over")
    assert prune(database) == 0
    paused = database.execute("SELECT stream FROM leasehold.leases WHERE paused_since IS NOT NULL")
    assert {row["stream"] for row in paused} == {"not over", "for a person"}
    [left] = database.execute("SELECT count(*) FROM leasehold.stream_pauses")
    assert left["count"] == 2


@pytest.mark.every_server
def test_pause_of_a_stream_that_somebody_has_locked_is_left_alone(streams, database):
    use(streams, "s")
    streams.call("operator", "pause_stream", "pay", "s", "ada", "wait", 1)
    end_pause(database, "s")
    other = database.session()
    other.run("BEGIN")
    other.run("SELECT FROM leasehold.leases FOR UPDATE")
    assert prune(database) == 0
    other.run("COMMIT")
    [left] = database.execute("SELECT name FROM leasehold.stream_pauses")
    assert left["name"] == "ada"


def test_stream_that_was_never_claimed_and_is_empty_is_pruned(streams, database):
    [only] = streams.enqueue(target="pay", stream="s")
    streams.call("operator", "cancel_intent", only, "ada", "not wanted")
    let_a_week_pass(database)
    assert prune(database) == 1


@pytest.mark.every_server
def test_stream_of_an_open_enqueuer_is_kept(streams, database):
    use(streams, "s")
    let_a_week_pass(database)
    enqueuer = database.session("ingest")
    enqueuer.run("BEGIN")
    enqueuer.run(ENQUEUE, [json.dumps([{"target": "pay", "payload": 1, "stream": "s"}])])
    assert prune(database) == 0
    enqueuer.run("COMMIT")
    assert len(claim_streams(streams)) == 1


@pytest.mark.every_server
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
    "arguments",
    [
        "NULL, 10",
        "now(), 10",
        "'infinity', 10",
        "now() - interval '50 seconds', 10",
        "now() - interval '2 days', 0",
        "now() - interval '2 days', 10, ''",
    ],
)
def test_prune_of_recent_streams_or_without_a_size_is_refused(database, arguments):
    with refused("22023"):
        database.owner_execute(f"SELECT leasehold.prune_streams({arguments})")


def test_walk_looks_at_each_stream_once_whatever_it_deletes(streams, database):
    streams.acquire()
    for number in range(7):
        use(streams, f"s{number}")
    let_a_week_pass(database)
    for stream in ("s0", "s4"):
        streams.enqueue(target="pay", stream=stream)
    after, steps = None, []
    for _ in range(4):
        [row] = database.owner_execute(
            "SELECT * FROM leasehold.prune_streams(now() - interval '2 days', 3, %s)", [after]
        )
        steps.append(row["pruned"])
        after = row["walked_to"]
        if after is None:
            break
    assert steps == [2, 2, 1]
    assert names(database) == {"s0", "s4"}


@pytest.mark.every_server
def test_prune_does_not_wait_for_an_enqueuer_that_creates_streams(streams, database):
    """It locks the floors, and would wait for the stream that the prune deletes: a deadlock."""
    use(streams, "s")
    let_a_week_pass(database)
    enqueuer = database.session("ingest")
    enqueuer.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
    enqueuer.run(ENQUEUE, [json.dumps([{"target": "pay", "payload": 1, "stream": "new"}])])
    assert prune(database) == 0
    enqueuer.run(ENQUEUE, [json.dumps([{"target": "pay", "payload": 1, "stream": "s"}])])
    enqueuer.run("COMMIT")
    assert {one.stream for one in claim_streams(streams)} == {"s", "new"}


def test_former_holder_of_a_pruned_stream_has_lost_its_lease(streams, database):
    [head] = streams.enqueue(target="pay", stream="s")
    [former] = claim_streams(streams)
    former.begin([head])
    former.record_next([head], "DISPATCHED")
    let_a_week_pass(database)
    assert prune(database) == 1
    assert [row["stream_state"] for row in former.look()] == ["lease_lost"]
    [again] = streams.enqueue(target="pay", stream="s")
    assert former.begin([again]) == ["lease_lost"]


def linger(seconds):
    return lambda: Timings(stream_linger_seconds=seconds)


async def test_reaper_deletes_streams_that_were_empty_for_long(streams, stores, database):
    use(streams, "old")
    let_a_week_pass(database)
    use(streams, "young")
    patient = reapers.Reaper(stores.executor, "one", linger(8 * 86400), Metrics("one"))
    await patient.step()
    await patient.release()
    assert names(database) == {"old", "young"}
    reaper = reapers.Reaper(stores.executor, "two", linger(6 * 86400), Metrics("two"))
    await reaper.step()
    assert names(database) == {"young"}


@pytest.mark.one_server
async def test_reaper_walks_in_steps_and_rests_between_two_walks(streams, stores, monkeypatch):
    monkeypatch.setattr(reapers, "PRUNE_BATCH", 2)
    for number in range(3):
        use(streams, f"s{number}")
    now = 0.0
    asked = []
    prune_streams = stores.executor.prune_streams

    async def pruned(seconds, batch_size, after):
        asked.append((now, after))
        return await prune_streams(seconds, batch_size, after)

    monkeypatch.setattr(stores.executor, "prune_streams", pruned)
    reaper = reapers.Reaper(
        stores.executor, "reaper-1", linger(86400), Metrics("reaper-1"), lambda: now
    )
    for _ in range(int(reapers.PRUNE_SECONDS / 10) + 2):
        await reaper.step()
        now += 10.0
    assert asked == [
        (0.0, None),
        (10.0, "stream/pay/s1"),
        (10.0 + reapers.PRUNE_SECONDS, None),
    ]

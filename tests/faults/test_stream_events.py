"""The table PASS, DELAY, FAIL of decision 20: a holder stops or dies after each event.

Paused past the first expiry, past the second, or killed: what the table says is what the ledger,
the gateway's record and the lease show.
"""

from __future__ import annotations

from signal import SIGCONT, SIGKILL, SIGTERM

import pytest

from tests.support.engine import until
from tests.support.stream_orders import (
    TARGET,
    all_of,
    effects_by_stream,
    enqueue_rounds,
    requests_for,
)

# After which event, with its fault point.
EVENTS = {
    "claim requested": "during_claim",
    "claimed and begun": "after_claim",
    "request begun": "during_call",
    "response received": "after_call_before_complete",
    "result recorded": "after_complete",
    "renewal requested": "during_renewal",
}
UNSENT = {"claim requested", "claimed and begun"}
PAUSED = ["paused past the first expiry", "paused past the second expiry"]
# The first expiry comes soon. The second never comes, or soon too.
LONG = {"stream_claim_seconds": "1.5", "stream_grace_seconds": "600"}
SHORT = {"stream_claim_seconds": "1.5", "stream_grace_seconds": "0.5"}
# The call outlives the pause.
PATIENT = {"lease_seconds": 60, "call_timeout_seconds": 50}
# What a holder says that wakes too late.
TOO_LATE = {"call_skipped", "late_result_discarded", "lease_lost", "result_dropped"}


def lease_of(engine, stream="s0"):
    [lease] = engine.database.execute(
        "SELECT *, clock_timestamp() - expires_at > interval '1.2 seconds' AS is_long_expired"
        "  FROM leasehold.leases WHERE stream = %s",
        [stream],
    )
    return lease


def history(engine, intent_id):
    return [(row["state"], row["lease_epoch"]) for row in engine.outbox.ledger(intent_id)]


async def has_stopped(engine, event, how, settings):
    """Start a holder that stops or dies after the event; return it with its id."""
    engine.sandbox.set_faults(latency_ms=1000 if event == "renewal requested" else 300)
    action = "kill" if how == "killed" else "stop"
    holder = engine.worker(fault=f"{EVENTS[event]}:{action}", **settings)
    holder_id = await holder.started()
    await holder.logged("fault")
    if how == "killed":
        assert await holder.ended() == -SIGKILL
    lease = await until(lambda: lease_of(engine)["lease_epoch"] and lease_of(engine))
    assert (lease["holder_id"], lease["lease_epoch"]) == (holder_id, 1)
    engine.sandbox.set_faults()
    return holder, holder_id


@pytest.mark.parametrize("how", [*PAUSED, "killed"])
@pytest.mark.parametrize("event", EVENTS)
async def test_holder_that_stops_after_an_event_has_the_documented_consequence(engine, event, how):
    is_first = how == PAUSED[0]
    settings = LONG if is_first else SHORT
    engine.publish(TARGET, scope="stream", **(PATIENT if is_first else {}))
    ids = enqueue_rounds(engine, streams=1, rounds=3)
    holder, holder_id = await has_stopped(engine, event, how, settings)
    lease = lease_of(engine)
    head = ids["s0"][1 if event == "result recorded" else 0]
    assert engine.outbox.pending(head)["begun_at"], "the head counts as in flight"
    other = engine.worker(**settings)
    other_id = await other.started()

    if is_first:
        # The other one leaves the stream alone although it looks for expired ones.
        await until(lambda: lease_of(engine)["is_long_expired"])
        assert (lease_of(engine)["holder_id"], lease_of(engine)["lease_epoch"]) == (holder_id, 1)
        holder.send(SIGCONT)
        await engine.until_status(all_of(ids))
        [(state, epoch)] = history(engine, head)
        assert state == "DISPATCHED", "nothing is in doubt"
        if event in UNSENT:
            assert epoch > 1, "the stream was given back"
        elif event != "result recorded":
            assert epoch == 1, "the result was written"
        assert requests_for(engine, head) == 1
    else:
        await engine.until_status(all_of(ids))
        [doubted, sent] = engine.outbox.ledger(head)
        assert (doubted["state"], doubted["lease_epoch"]) == ("IN_DOUBT", 1)
        assert doubted["reason"] == "lease_taken_over"
        # The takeover has epoch 2. The head waits a second, so it is claimed once more.
        assert (sent["state"], sent["lease_epoch"]) == ("DISPATCHED", 3)
        assert doubted["finished_at"] >= lease["grace_expires_at"]
        assert (doubted["holder"], sent["holder"]) == (holder_id, other_id)
        if event != "result recorded":  # then it is a race whether the next head was sent
            assert requests_for(engine, head) == (1 if event in UNSENT else 2)
        if how != "killed":
            holder.send(SIGCONT)
            await until(lambda: TOO_LATE & {line["event"] for line in holder.lines()})

    for stream, later in enqueue_rounds(engine, streams=1, rounds=2).items():
        ids[stream] += later
    await engine.until_status(all_of(ids))
    assert effects_by_stream(engine, ids) == ids, "in order, and once each"
    assert len(history(engine, head)) == (1 if is_first else 2), "a late holder writes nothing"
    for one in set(ids["s0"]) - {head}:
        assert [state for state, _ in history(engine, one)] == ["DISPATCHED"]


async def test_claim_that_was_not_committed_makes_nobody_wait(engine):
    engine.publish(TARGET, scope="stream")
    ids = enqueue_rounds(engine, streams=1, rounds=1)
    writer = engine.database.session()
    writer.run("BEGIN")
    writer.run("LOCK TABLE leasehold.leases IN SHARE MODE")
    dead = engine.worker(fault="during_claim:kill", **LONG)
    assert await dead.ended() == -SIGKILL
    # It dies while its statement waits, which then ends by its lock timeout.
    waits = "SELECT 1 FROM pg_locks WHERE relation = 'leasehold.leases'::regclass AND NOT granted"
    await until(lambda: not engine.database.execute(waits))
    writer.run("COMMIT")
    assert lease_of(engine)["lease_epoch"] == 0
    engine.worker(**LONG)
    await engine.until_status(all_of(ids))
    assert history(engine, ids["s0"][0]) == [("DISPATCHED", 1)]


async def test_holder_killed_after_it_recorded_the_last_head_makes_nobody_wait(engine):
    engine.publish(TARGET, scope="stream")
    [first] = enqueue_rounds(engine, streams=1, rounds=1)["s0"]
    dead = engine.worker(fault="after_complete:kill", **LONG)
    assert await dead.ended() == -SIGKILL
    assert history(engine, first) == [("DISPATCHED", 1)]
    [second] = enqueue_rounds(engine, streams=1, rounds=1)["s0"]
    engine.worker(**LONG)
    await engine.until_status([second])
    assert history(engine, second) == [("DISPATCHED", 2)]


@pytest.mark.parametrize("how", ["killed", pytest.param("paused", marks=pytest.mark.thorough)])
async def test_holder_without_a_call_in_flight_loses_its_stream_at_the_first_expiry(engine, how):
    """An enqueuer is open, so the holder keeps a stream in which it sees nothing."""
    engine.publish(TARGET, scope="stream")
    ids = enqueue_rounds(engine, streams=1, rounds=1)
    open_one = engine.database.session("ingest")
    open_one.run("BEGIN")
    [row] = open_one.run(
        "SELECT leasehold.enqueue_intent(%s, '{}', NULL, %s::jsonb) AS intent_id",
        [TARGET, '{"stream": "s0"}'],
    )
    action = "kill" if how == "killed" else "stop"
    # The first renewal is after the head, which takes no time.
    holder = engine.worker(fault=f"during_renewal:{action}", **LONG)
    holder_id = await holder.started()
    await holder.logged("fault")
    await engine.until_status(all_of(ids))
    assert (lease_of(engine)["holder_id"], lease_of(engine)["lease_epoch"]) == (holder_id, 1)
    other_id = await engine.worker(**LONG).started()
    await until(lambda: lease_of(engine)["holder_id"] == other_id)
    lease = lease_of(engine)
    assert lease["lease_epoch"] == 2
    assert lease["acquired_at"] < lease["grace_expires_at"]
    if how == "paused":
        holder.send(SIGCONT)
        await holder.logged("lease_lost")
    open_one.run("COMMIT")
    await engine.until_status([row["intent_id"]])
    assert history(engine, row["intent_id"]) == [("DISPATCHED", 2)]
    if how == "paused":
        holder.send(SIGTERM)
        assert await holder.ended() == 0

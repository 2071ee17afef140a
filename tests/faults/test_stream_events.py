"""The table PASS, DELAY, FAIL of decision 20: a holder stops or dies after each event.

Paused past the first expiry, past the second, or killed: what the table says is what the ledger,
the gateway's record and the lease show.
"""

from __future__ import annotations

from signal import SIGCONT, SIGKILL, SIGTERM

import pytest

from tests.support.engine import LEASE_SECONDS, until
from tests.support.expiring_streams import (
    TWO_PHASES,
    add_ghost,
    first_expiry_takes_nothing,
    lease_of,
)
from tests.support.stream_orders import (
    TARGET,
    all_of,
    effects_by_stream,
    enqueue_rounds,
    submissions_of,
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
# What happens to a holder. One that is paused finds on waking that so many seconds have passed.
HOW = {PAUSED[0]: "stop:40", PAUSED[1]: "stop:3600", "killed": "kill"}
# What a holder says that wakes too late.
TOO_LATE = {"call_skipped", "late_result_discarded", "lease_lost", "result_dropped"}
QUARANTINE_SECONDS = 2 * LEASE_SECONDS
# The cells that always run also where a call must not be repeated blindly.
LOOKUP_OR_BLIND = {
    ("claim requested", PAUSED[1]),
    ("claimed and begun", PAUSED[0]),
    ("claimed and begun", "killed"),
    ("request begun", PAUSED[1]),
    ("response received", "killed"),
}


def history(engine, intent_id):
    return [(row["state"], row["lease_epoch"]) for row in engine.outbox.ledger(intent_id)]


def arrivals(engine, guarantee):
    """A list that grows with each request that arrives; the log has those that were answered."""
    injector, arrived = engine.sandbox._injectors[guarantee], []
    draw = injector.draw
    injector.draw = lambda: arrived.append(guarantee) or draw()
    return arrived


async def has_stopped(engine, event, how, guarantee):
    """Start a holder that stops or dies after the event; return it with its id."""
    # A call that is answered after the fault; at the other points nobody hears the answer.
    engine.sandbox.set_faults(latency_ms=5000 if event == "renewal requested" else 0)
    arrived = arrivals(engine, guarantee)
    holder = engine.worker(fault=f"{EVENTS[event]}:{HOW[how]}", **TWO_PHASES)
    holder_id = await holder.started()
    if event == "claim requested":
        await holder.fault_after(lambda: lease_of(engine)["lease_epoch"])
    elif event in {"request begun", "renewal requested"}:
        await holder.fault_after(lambda: arrived)
    await holder.logged("fault")
    if how == "killed":
        assert await holder.ended() == -SIGKILL
    lease = lease_of(engine)
    assert (lease["holder_id"], lease["lease_epoch"]) == (holder_id, 1)
    # The gateway goes on with what has arrived, and logs it when it is done.
    await until(lambda: len(submissions(engine)) >= len(arrived))
    engine.sandbox.set_faults()
    return holder, holder_id


def submissions(engine):
    return [one for one in engine.sandbox.requests() if one.kind == "submission"]


def cells():
    for guarantee in ("keyed", "lookup", "blind"):
        for event in EVENTS:
            for how in HOW:
                always = guarantee == "keyed" or (event, how) in LOOKUP_OR_BLIND
                marks = [] if always else [pytest.mark.thorough]
                yield pytest.param(event, how, guarantee, marks=marks)


@pytest.mark.parametrize(("event", "how", "guarantee"), list(cells()))
async def test_holder_that_stops_after_an_event_has_the_documented_consequence(
    engine, event, how, guarantee
):
    engine.publish(TARGET, guarantee, scope="stream", quarantine_seconds=QUARANTINE_SECONDS)
    add_ghost(engine)
    ids = enqueue_rounds(engine, streams=1, rounds=3)
    holder, holder_id = await has_stopped(engine, event, how, guarantee)
    head = ids["s0"][1 if event == "result recorded" else 0]
    assert engine.outbox.pending(head)["begun_at"], "the head counts as in flight"
    other_id = await engine.worker(**TWO_PHASES).started()
    await first_expiry_takes_nothing(engine, holder_id, other_id)

    if how == PAUSED[0]:
        holder.send(SIGCONT)
        await engine.until_status(all_of(ids))
        [(state, epoch)] = history(engine, head)
        assert state == "DISPATCHED", "nothing is in doubt"
        if event in UNSENT:
            assert epoch > 1, "the stream was given back"
        elif event != "result recorded":
            assert epoch == 1, "the result was written"
        assert submissions_of(engine, head) == 1
        in_order = ids
    else:
        engine.expire_held(holder_id)
        expired_at = lease_of(engine)["grace_expires_at"]
        doubted = (await until(lambda: engine.outbox.ledger(head)))[0]
        assert (doubted["state"], doubted["lease_epoch"]) == ("IN_DOUBT", 1)
        assert (doubted["reason"], doubted["holder"]) == ("lease_taken_over", holder_id)
        assert doubted["finished_at"] >= expired_at
        # After a result was recorded, it is a race whether the next head was sent.
        sent = submissions_of(engine, head) if event == "result recorded" else event not in UNSENT
        after_doubt = {"keyed": is_sent_again, "lookup": is_asked_about, "blind": is_held}
        in_order = await after_doubt[guarantee](engine, ids, head, sent, other_id)
        if how != "killed":
            before = submissions_of(engine, head)
            holder.send(SIGCONT)
            await until(lambda: TOO_LATE & {line["event"] for line in holder.lines()})
            assert submissions_of(engine, head) == before

    for stream, later in enqueue_rounds(engine, streams=1, rounds=2).items():
        ids[stream] += later
        in_order[stream] += later if in_order is not ids else []
    await engine.until_status(all_of(ids))
    assert effects_by_stream(engine, in_order) == in_order, "in order, and once each"
    rows = {"lookup": 3, "keyed": 2, "blind": 2}[guarantee]
    assert len(history(engine, head)) <= (1 if how == PAUSED[0] else rows), "nothing came late"
    for one in set(ids["s0"]) - {head}:
        assert [state for state, _ in history(engine, one)] == ["DISPATCHED"]


async def is_sent_again(engine, ids, head, sent, other_id):
    await engine.until_status(all_of(ids))
    [_, row] = engine.outbox.ledger(head)
    # The takeover has epoch 2. The head waits a second, so it is claimed once more.
    assert (row["state"], row["lease_epoch"], row["holder"]) == ("DISPATCHED", 3, other_id)
    assert submissions_of(engine, head) == (2 if sent else 1)
    return ids


async def is_asked_about(engine, ids, head, sent, other_id):
    """After the quarantine the gateway says whether it knows the key."""
    [doubted] = engine.outbox.ledger(head)
    row = engine.outbox.pending(head)
    assert (row["due_at"] - doubted["finished_at"]).total_seconds() == QUARANTINE_SECONDS
    assert lookups_of(engine, head) == 0, "nobody asks before"
    assert set(engine.statuses(ids["s0"][-1:])) == {"pending"}, "the stream waits for it"
    engine.outbox.make_due()
    await engine.until_status(all_of(ids))
    found = [] if sent else ["RETRYABLE"]
    assert engine.outbox.states(head) == ["IN_DOUBT", *found, "DISPATCHED"]
    assert {row["holder"] for row in engine.outbox.ledger(head)[1:]} == {other_id}
    assert (submissions_of(engine, head), lookups_of(engine, head)) == (1, 1)
    return ids


async def is_held(engine, ids, head, sent, _other_id):
    """A person decides, and the stream waits for that."""
    await engine.until_status([head], "held")
    assert engine.statuses(ids["s0"][-1:]) == ["pending"]
    resolved = ("DISPATCHED", "ann", "asked the bank")
    [row] = engine.outbox.call("operator", "resolve_intent", head, *resolved)
    assert row["resolve_intent"] == "resolved"
    await engine.until_status(all_of(ids))
    assert engine.outbox.states(head) == ["IN_DOUBT", "DISPATCHED"]
    assert submissions_of(engine, head) == (1 if sent else 0), "nothing was resent"
    return {"s0": [one for one in ids["s0"] if sent or one != head]}


def lookups_of(engine, key):
    return sum(one.key == key and one.kind == "lookup" for one in engine.sandbox.requests())


async def test_claim_that_was_not_committed_makes_nobody_wait(engine):
    engine.publish(TARGET, scope="stream")
    ids = enqueue_rounds(engine, streams=1, rounds=1)
    writer = engine.database.session()
    writer.run("BEGIN")
    writer.run("LOCK TABLE leasehold.leases IN SHARE MODE")
    dead = engine.worker(fault="during_claim:kill", lock_seconds="1", **TWO_PHASES)
    waits = "SELECT 1 FROM pg_locks WHERE relation = 'leasehold.leases'::regclass AND NOT granted"
    await dead.fault_after(lambda: engine.database.execute(waits))
    assert await dead.ended() == -SIGKILL
    # It died while its statement waited, which then ends by its lock timeout.
    await until(lambda: not engine.database.execute(waits))
    writer.run("COMMIT")
    assert lease_of(engine)["lease_epoch"] == 0
    engine.worker(**TWO_PHASES)
    await engine.until_status(all_of(ids))
    assert history(engine, ids["s0"][0]) == [("DISPATCHED", 1)]


async def test_holder_killed_after_it_recorded_the_last_head_makes_nobody_wait(engine):
    engine.publish(TARGET, scope="stream")
    [first] = enqueue_rounds(engine, streams=1, rounds=1)["s0"]
    dead = engine.worker(fault="after_complete:kill", **TWO_PHASES)
    assert await dead.ended() == -SIGKILL
    assert history(engine, first) == [("DISPATCHED", 1)]
    [second] = enqueue_rounds(engine, streams=1, rounds=1)["s0"]
    engine.worker(**TWO_PHASES)
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
    action = "kill" if how == "killed" else "stop:40"
    holder = engine.worker(fault=f"during_renewal:{action}", **TWO_PHASES)
    holder_id = await holder.started()
    await holder.fault_after(lambda: engine.statuses(all_of(ids)) == ["accepted"])
    assert (lease_of(engine)["holder_id"], lease_of(engine)["lease_epoch"]) == (holder_id, 1)
    engine.expire_held(holder_id, grace=False)
    other_id = await engine.worker(**TWO_PHASES).started()
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

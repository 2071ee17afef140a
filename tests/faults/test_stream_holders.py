"""Holders of streams that are killed, paused or slow, and enqueuers that stay open or roll back."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import signal
from functools import partial

import pytest

from leasehold import Instance
from tests.engine.test_groups import settings_of
from tests.support.engine import FAST, SHORT_CALLS, SHORT_LEASE, until
from tests.support.expiring_streams import TWO_PHASES, add_ghost, first_expiry_takes_nothing
from tests.support.held_gateway import HeldGateway
from tests.support.http_gateways import batch_id
from tests.support.lease_log import LeaseLog
from tests.support.stream_orders import (
    SHORT_STREAMS,
    TARGET,
    all_of,
    effects_by_stream,
    enqueue_rounds,
)

# How often an instance is killed and another one paused; 8 in the thorough suite.
ROUNDS = int(os.environ.get("TEST_PAUSES", "2"))

# Long leases: whoever waits for an expiry waits too long.
PATIENT = {"stream_claim_seconds": "600", "stream_grace_seconds": "600"}


def held_by(engine, worker_id):
    return engine.database.execute(
        "SELECT lease_name FROM leasehold.leases WHERE holder_id = %s"
        "   AND lease_name LIKE 'stream/%%' AND expires_at > clock_timestamp()",
        [worker_id],
    )


async def test_order_survives_kills_pauses_and_enqueuers_that_stay_open(engine, request):
    """Four instances, 200 streams; the gateway's record is exactly the accepted sequence."""
    seed = random.randrange(10**6)
    request.node.user_properties.append(("seed", seed))
    chance = random.Random(seed)
    engine.publish(TARGET, scope="stream", retry={"first_seconds": 0.05}, **SHORT_LEASE)
    engine.sandbox.set_faults(latency_ms=5, jitter=1, lost_response_rate=0.02, seed=seed)
    workers = [engine.worker(**SHORT_CALLS, **SHORT_STREAMS) for _ in range(4)]
    ids = enqueue_rounds(engine, streams=200, rounds=2)
    # Transactions that enqueued: some stay open across all takeovers, others roll back in between.
    open_ones = {stream: open_enqueuer(engine, stream) for stream in ("s0", "s1", "s2")}
    for _ in range(ROUNDS):
        rolled_back = [open_enqueuer(engine, f"s{number}")[0] for number in range(3, 6)]
        victim, paused = chance.sample(workers, 2)
        victim.send(signal.SIGKILL)
        workers.remove(victim)
        paused.send(signal.SIGSTOP)
        for session in rolled_back:
            session.run("ROLLBACK")
        # Not into those that an open enqueuer holds.
        for stream, keys in enqueue_entries_of(engine, range(3, 200)).items():
            ids[stream] += keys
        workers.append(engine.worker(**SHORT_CALLS, **SHORT_STREAMS))
        await asyncio.sleep(chance.uniform(0.5, 6))  # within the lease, or past both expiries
        paused.send(signal.SIGCONT)
    for stream, (session, intent_id) in open_ones.items():
        session.run("COMMIT")
        ids[stream].append(intent_id)
    await engine.until_status(all_of(ids))
    assert effects_by_stream(engine, ids) == ids, f"seed {seed}"


def open_enqueuer(engine, stream):
    """Enqueue in a transaction that stays open; return its session and the id."""
    session = engine.database.session("ingest")
    session.run("BEGIN")
    [row] = session.run(
        "SELECT leasehold.enqueue_intent(%s, '{}', NULL, %s::jsonb) AS intent_id",
        [TARGET, json.dumps({"stream": stream})],
    )
    return session, str(row["intent_id"])


def enqueue_entries_of(engine, numbers):
    entries = [{"target": TARGET, "payload": {}, "stream": f"s{number}"} for number in numbers]
    rows = engine.outbox.enqueue_entries(entries)
    return {
        entry["stream"]: [str(row["intent_id"])] for entry, row in zip(entries, rows, strict=True)
    }


async def test_dead_holder_with_a_call_in_flight_loses_its_stream_at_the_second_expiry(engine):
    engine.publish(TARGET, scope="stream")
    engine.sandbox.set_faults(latency_ms=600_000)
    [intent_id] = enqueue_rounds(engine, streams=1, rounds=1)["s0"]
    dead = engine.worker(**PATIENT)
    await until(lambda: engine.outbox.pending(intent_id)["begun_at"])
    dead.send(signal.SIGKILL)
    await dead.ended()
    engine.sandbox.set_faults()
    engine.expire_held(await dead.started())
    engine.worker(**PATIENT)
    [lease] = engine.database.execute(
        "SELECT grace_expires_at FROM leasehold.leases WHERE lease_name LIKE 'stream/%'"
    )
    await engine.until_status([intent_id])
    [doubted, sent] = engine.outbox.ledger(intent_id)
    assert (doubted["state"], doubted["lease_epoch"]) == ("IN_DOUBT", 1)
    assert sent["state"] == "DISPATCHED"
    assert sent["lease_epoch"] > 1
    assert doubted["finished_at"] >= lease["grace_expires_at"]


async def test_holder_without_grace_loses_its_stream_at_its_only_expiry(engine):
    engine.publish(TARGET, scope="stream")
    engine.sandbox.set_faults(latency_ms=600_000)
    ids = enqueue_rounds(engine, streams=1, rounds=3)
    simple = PATIENT | {"stream_grace_seconds": "0"}
    dead = engine.worker(**simple)
    dead_id = await dead.started()
    await until(lambda: engine.outbox.pending(ids["s0"][0])["begun_at"])
    dead.send(signal.SIGKILL)
    await dead.ended()
    [lease] = engine.database.execute(
        "SELECT expires_at, grace_expires_at FROM leasehold.leases WHERE stream = 's0'"
    )
    assert lease["grace_expires_at"] == lease["expires_at"]
    engine.sandbox.set_faults()
    engine.expire_held(dead_id)
    engine.worker(**simple)
    await engine.until_status(ids["s0"])
    doubted, sent = engine.outbox.ledger(ids["s0"][0])
    assert (doubted["state"], doubted["reason"]) == ("IN_DOUBT", "lease_taken_over")
    assert doubted["holder"] == dead_id
    assert sent["state"] == "DISPATCHED"
    assert effects_by_stream(engine, ids) == ids


async def test_holder_killed_while_it_asks_loses_its_stream_at_the_first_expiry(engine):
    """A question is no submission in flight: nobody waits for the second expiry."""
    engine.publish(
        TARGET, "lookup", scope="stream", gateway=ledger_of(engine), quarantine_seconds=120
    )
    entry = {"target": TARGET, "stream": "s0", "content_type": "application/octet-stream"}
    entries = [
        entry
        | {
            "body": base64.b64encode(name.encode()).decode(),
            "metadata": {"batch_id": batch_id(name)},
        }
        for name in ("a", "b")
    ]
    ids = [row["intent_id"] for row in engine.outbox.enqueue_entries(entries)]
    dead = engine.worker(fault="before_lookup:kill", **TWO_PHASES)
    assert await dead.ended() == -signal.SIGKILL
    assert dead.lines("fault")
    engine.expire_held(await dead.started(), grace=False)
    engine.worker(**TWO_PHASES)
    await engine.until_status(ids)
    assert [engine.outbox.states(one) for one in ids] == [["SUBMITTED", "DISPATCHED"]] * 2
    assert engine.sandbox.accepted() == {"s0": [batch_id("a"), batch_id("b")]}


def ledger_of(engine):
    return {
        "kind": "ledger",
        "url": f"{engine.sandbox.url}/ledger",
        "allow_private": True,
        "ask_after_seconds": 0.1,
        "stream_header": "Leasehold-Stream",
    }


async def test_slow_holder_keeps_its_stream_past_the_first_expiry(engine):
    """The call outlasts the first expiry while the holder's heartbeat is paused with it."""
    async with HeldGateway().running() as gateway:
        engine.publish(TARGET, scope="stream", gateway=gateway.terms("keyed"))
        add_ghost(engine)
        [intent_id] = enqueue_rounds(engine, streams=1, rounds=1)["s0"]
        slow = engine.worker(fault="none:stop:40", **TWO_PHASES)
        await until(lambda: gateway.received)
        slow.send(signal.SIGSTOP)
        other = engine.worker(**TWO_PHASES)
        await first_expiry_takes_nothing(engine, await slow.started(), await other.started())
        slow.wake_later()
        gateway.may_answer.set()
        await engine.until_status([intent_id])
    assert engine.outbox.states(intent_id) == ["DISPATCHED"]
    assert gateway.received == {intent_id: 1}


async def test_call_of_many_claim_times_is_not_given_up(engine):
    engine.publish(TARGET, scope="stream")
    engine.sandbox.set_faults(latency_ms=4500)
    ids = enqueue_rounds(engine, streams=1, rounds=1)
    engine.worker(stream_claim_seconds="1.4", stream_grace_seconds="60")
    await engine.until_status(ids["s0"])
    assert engine.outbox.states(ids["s0"][0]) == ["DISPATCHED"]


async def test_stopped_worker_gives_up_streams_without_a_call_before_its_last_call_ends(engine):
    """Nothing of one stream is visible, because its enqueuer is open; another has a long call."""
    async with HeldGateway().running() as gateway:
        gateway.may_answer.set()
        engine.publish(TARGET, scope="stream", gateway=gateway.terms("keyed"))
        first = enqueue_rounds(engine, streams=1, rounds=1)["s0"]
        enqueuer, _ = open_enqueuer(engine, "s0")
        worker = engine.worker(**PATIENT)
        await engine.until_status(first)
        gateway.may_answer.clear()
        [slow] = enqueue_entries_of(engine, [1]).values()
        worker_id = await worker.started()
        await until(lambda: slow[0] in gateway.received)
        worker.send(signal.SIGTERM)
        await until(lambda: held_by(engine, worker_id) == [{"lease_name": f"stream/{TARGET}/s1"}])
        assert worker.process.poll() is None
        enqueuer.run("COMMIT")
        gateway.may_answer.set()
        await engine.until_status(slow)


async def test_worker_stopped_while_it_looks_at_a_stream_leaves_nothing_in_doubt(engine):
    engine.publish(TARGET, scope="stream", lease_seconds=60, call_timeout_seconds=50)
    first = enqueue_rounds(engine, streams=1, rounds=1)["s0"]
    enqueuer, intent_id = open_enqueuer(engine, "s0")
    async with Instance(settings_of(engine)) as instance:
        await engine.until_status(first)
        store, looking, may_go_on = instance._store, asyncio.Event(), asyncio.Event()
        look = store.refresh_streams

        async def look_slowly(*arguments, **more):
            found = await look(*arguments, **more)
            if any(one.heads for one in found):
                looking.set()
                await may_go_on.wait()
            return found

        store.refresh_streams = look_slowly
        enqueuer.run("COMMIT")
        await looking.wait()
        asyncio.get_running_loop().call_later(1, may_go_on.set)
    assert engine.outbox.pending(intent_id)["begun_at"] is None
    assert engine.outbox.states(intent_id) == []
    assert engine.database.execute("SELECT 1 FROM leasehold.leases WHERE expires_at = '-infinity'")


# Shares. A claim period is the time of the first expiry. Until two of them have passed, a holder
# renews its leases so often, or more rarely if the machine is busy.
SHARING = {"stream_claim_seconds": "4", "stream_grace_seconds": "600"}
RENEWALS_PER_PERIOD = float(SHARING["stream_claim_seconds"]) / float(
    FAST["LEASEHOLD_HEARTBEAT_SECONDS"]
)
STREAMS = 48


async def start_sharing(engine, call_timeout_seconds=50):
    """Give the streams work for long; return the log of their leases, and the ids."""
    # No call ends by a timeout, and then by a retry, because the machine is busy.
    patient = {"call_timeout_seconds": call_timeout_seconds, "connect_timeout_seconds": 5}
    engine.publish(TARGET, scope="stream", concurrency=STREAMS, **patient)
    engine.sandbox.set_faults(latency_ms=500)
    log = LeaseLog(engine.database)
    return log, enqueue_rounds(engine, streams=STREAMS, rounds=200)


def sharer(engine, slots=STREAMS, **settings):
    return engine.worker("--concurrency", str(slots), **SHARING | settings)


async def assert_shared(log, names, after=0, periods=None):
    """Wait until each of these instances has its share, and no stream changes hands any more for
    a whole claim period.

    At the last hand-over after a place in the log, no holder had renewed its leases so often that
    the claim periods were over.
    """
    often = int(RENEWALS_PER_PERIOD)
    settled = await until(lambda: log.settled(names, often, after), context=log.held)
    assert log.held() == dict.fromkeys(names, STREAMS // len(names))
    if periods is not None:
        renewals = {name: log.renewals(name, after, settled) for name in names}
        assert max(renewals.values()) <= periods * RENEWALS_PER_PERIOD, renewals


def assert_in_order(engine, ids):
    for stream, effects in effects_by_stream(engine, ids).items():
        assert effects == ids[stream][: len(effects)]


async def test_joining_instance_has_its_share_within_two_claim_periods(engine):
    """A lone one takes everything, and whoever joins gets a share from those before it."""
    log, ids = await start_sharing(engine)
    names = [await sharer(engine).started()]
    await assert_shared(log, names)
    names += [await sharer(engine).started() for _ in range(2)]
    await assert_shared(log, names)
    names.append(await sharer(engine).started())
    joined = await until(partial(log.joined, names[-1]))
    await assert_shared(log, names, joined, periods=2)
    assert log.events("lost") == [], "streams are handed over, not taken"
    assert_in_order(engine, ids)


async def test_streams_of_a_stopped_instance_are_shared_within_two_claim_periods(engine):
    log, ids = await start_sharing(engine)
    workers = [sharer(engine) for _ in range(4)]
    names = [await worker.started() for worker in workers]
    await assert_shared(log, names)
    leaving = workers.pop()
    leaving.send(signal.SIGTERM)
    assert await leaving.ended() == 0
    stopped = log.last(names.pop(), "freed")
    await assert_shared(log, names, stopped, periods=2)
    assert log.events("lost") == [], "streams are freed, not left to expire"
    assert_in_order(engine, ids)


async def test_streams_of_a_dead_instance_are_shared_within_two_claim_periods(engine):
    """Counted from the second expiry, which is two claim periods after its last renewal."""
    log, ids = await start_sharing(engine, call_timeout_seconds=7.5)
    grace = SHARING["stream_claim_seconds"]
    workers = [sharer(engine, stream_grace_seconds=grace, **SHORT_CALLS) for _ in range(4)]
    names = [await worker.started() for worker in workers]
    await assert_shared(log, names)
    workers.pop().send(signal.SIGKILL)
    dead = names.pop()
    await assert_shared(log, names, log.last(dead, "held", "renewed"), periods=2 + 2)
    assert {one["instance_id"] for one in log.events("lost")} == {dead}
    assert_in_order(engine, ids)


async def test_full_instances_keep_their_streams_while_no_other_stream_waits(engine):
    log, ids = await start_sharing(engine)
    names = [await sharer(engine, slots=STREAMS // 2).started() for _ in range(2)]
    await assert_shared(log, names)
    assert_in_order(engine, ids)


async def test_each_of_more_streams_than_slots_gets_its_turn(engine):
    """All of them always have work; a claim alone would never come to those that wait."""
    _, ids = await start_sharing(engine)
    for _ in range(2):
        sharer(engine, slots=STREAMS // 3)
    firsts = [intents[0] for intents in ids.values()]
    await engine.until_status(firsts)
    lasts = [intents[-1] for intents in ids.values()]
    assert set(engine.statuses(lasts)) == {"pending"}, "no stream was drained to make room"
    assert_in_order(engine, ids)


async def test_poisoned_head_blocks_its_own_stream_only_and_ends_by_its_budget(engine):
    engine.publish(
        TARGET,
        scope="stream",
        attempts_max=5,
        gateway={"kind": "python", "function": "tests.support.python_gateways:poison"},
    )
    entry = {"target": TARGET, "payload": "poison", "stream": "s0"}
    [poisoned] = engine.outbox.enqueue_entries([entry])
    ids = enqueue_rounds(engine, streams=20, rounds=5)
    engine.worker(**PATIENT)
    behind = ids.pop("s0")
    await engine.until_status(all_of(ids))
    await engine.until_status([poisoned["intent_id"]], "exhausted")
    assert engine.outbox.states(poisoned["intent_id"]) == ["RETRYABLE"] * 4 + ["FAILED"]
    assert [engine.outbox.ledger(one) for one in behind] == [[]] * 5
    assert set(engine.statuses(behind)) == {"pending"}
    reason = (None, poisoned["intent_id"])
    engine.outbox.call("operator", "resume_stream", TARGET, "s0", "ada", "go on", *reason)
    await engine.until_status(behind)


@pytest.mark.parametrize("how", ["commit", "rollback"])
async def test_open_enqueuer_keeps_nobody_waiting(engine, how):
    engine.publish(TARGET, scope="stream")
    engine.worker(**PATIENT)
    ids = enqueue_rounds(engine, streams=3, rounds=1)
    open_one, intent_id = open_enqueuer(engine, "s0")
    await engine.until_status(all_of(ids))
    more = enqueue_entries_of(engine, [1, 2])
    await engine.until_status(all_of(more))
    open_one.run(how)
    if how == "commit":
        await engine.until_status([intent_id])
    await engine.until_status(all_of(enqueue_entries_of(engine, [0])))

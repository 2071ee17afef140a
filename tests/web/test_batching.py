"""Group commit: callers share commits, and neither wait for a timer nor suffer for one another."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from leasehold.domain.errors import DatabaseUnavailable, IntakeFull
from leasehold.domain.intent import NewIntent
from leasehold.intake.group_commit import Batching
from leasehold.store.postgres.pool import PoolSettings
from leasehold.store.postgres.store import PostgresStore
from tests.support.tcp_proxy import TcpProxy

# A lock that is held is noticed soon, and every other limit of a call stays far away.
POOL = PoolSettings(lock_seconds=0.3, wait_seconds=2.0)


@pytest.fixture(autouse=True)
def published(outbox):
    outbox.publish("sms")
    outbox.publish("ledger", scope="stream")


@pytest.fixture
async def store(database):
    async with PostgresStore(database.url_as("ingest"), POOL) as store:
        yield store


@pytest.fixture
async def batching(store):
    batching = Batching(store)
    yield batching
    await batching.close()


@pytest.fixture
def commits(database):
    """How many intents each transaction wrote that wrote any, oldest first."""
    return lambda: [
        row["n"]
        for row in database.execute(
            "SELECT count(*) AS n FROM leasehold.intents GROUP BY xmin ORDER BY min(created_at)"
        )
    ]


def new(key=None, **more):
    return NewIntent(**{"target": "sms", "payload": {"to": "+41"}, "idempotency_key": key} | more)


def on_stream(stream):
    return new(target="ledger", stream=stream)


async def in_turn(batching, intents):
    """Hand them in so that all of them wait when the first call begins."""
    return await asyncio.gather(*[batching.enqueue(one) for one in intents])


async def test_lonely_intent_goes_at_once_and_is_committed_when_the_call_returns(
    batching, commits, outbox
):
    answer = await batching.enqueue(new("a"))
    assert answer.verdict == "accepted"
    assert outbox.status(answer.intent_id) == "pending"
    assert commits() == [1]


async def test_whoever_comes_while_a_call_is_under_way_shares_the_next_commit(
    batching, commits, database
):
    # The first call waits for a key that is being written; nobody else's does.
    batching._patience_seconds = 60
    holder = database.session()
    holder.run("BEGIN")
    holder.run("LOCK TABLE leasehold.outbox_pending IN EXCLUSIVE MODE")
    first = asyncio.create_task(batching.enqueue(new("first")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [asyncio.create_task(batching.enqueue(new(str(number)))) for number in range(200)]
    await asyncio.sleep(0.05)
    assert not any(one.done() for one in [first, *others])
    assert commits() == []
    holder.run("ROLLBACK")
    answers = await asyncio.gather(first, *others)
    assert {one.verdict for one in answers} == {"accepted"}
    assert commits() == [1, 200]


async def test_each_caller_gets_the_answer_to_its_own_intent(batching, database):
    intents = [new(str(number), payload={"number": number}) for number in range(50)]
    answers = await in_turn(batching, intents)
    rows = database.execute(
        "SELECT intent_id, payload ->> 'number' AS number FROM leasehold.intents"
    )
    written = {row["intent_id"]: int(row["number"]) for row in rows}
    assert [written[one.intent_id] for one in answers] == list(range(50))


async def test_callers_of_one_key_get_one_intent(batching, commits):
    answers = await in_turn(batching, [new("same")] * 200)
    assert len({one.intent_id for one in answers}) == 1
    assert sorted(one.verdict for one in answers) == ["accepted"] + ["duplicate"] * 199
    assert commits() == [1]


async def test_a_batch_is_bounded(store, commits):
    batching = Batching(store, batch_max=10)
    await in_turn(batching, [new(str(number)) for number in range(25)])
    assert commits() == [10, 10, 5]
    await batching.close()


async def test_refused_neighbours_hurt_nobody(batching, commits):
    intents = [
        new("good"),
        new("bad text", payload={"x": "\0"}),
        new("bad type", payload={"x": object()}),
        new(target="nowhere"),
        new("bad number", priority=70_000),
        new("bad word", priority=9),
        new("good too"),
    ]
    answers = await in_turn(batching, intents)
    assert [one.verdict for one in answers] == [
        *("accepted", "invalid", "invalid", "unknown_target", "invalid", "invalid", "accepted"),
    ]
    assert all(one.problem for one in answers if one.verdict != "accepted")
    assert sum(commits()) == 2


async def test_full_queue_refuses_and_takes_again_when_there_is_room(store, commits):
    batching = Batching(store, waiting_max=3)
    waiting = [asyncio.create_task(batching.enqueue(new())) for _ in range(3)]
    await asyncio.sleep(0)
    assert batching.waiting == 3
    with pytest.raises(IntakeFull, match="3 intents wait already"):
        await batching.enqueue(new())
    await asyncio.gather(*waiting)
    assert batching.waiting == 0
    assert (await batching.enqueue(new())).verdict == "accepted"
    assert sum(commits()) == 4
    await batching.close()


async def test_full_queue_is_one_of_too_many_bytes_too(store):
    batching = Batching(store, bytes_max=100)
    waiting = asyncio.create_task(batching.enqueue(new(), size=60))
    await asyncio.sleep(0)
    with pytest.raises(IntakeFull, match="60 bytes wait already"):
        await batching.enqueue(new(), size=60)
    await waiting
    assert (await batching.enqueue(new(), size=60)).verdict == "accepted"
    await batching.close()


async def test_database_that_is_away_is_told_to_every_caller_and_its_return_needs_nobody(database):
    address = database.url_as("ingest")
    async with TcpProxy(address) as proxy, PostgresStore(proxy.through(address), POOL) as store:
        batching = Batching(store)
        assert (await batching.enqueue(new("before"))).verdict == "accepted"
        proxy.cut()
        told = await asyncio.gather(
            *[batching.enqueue(new(str(number))) for number in range(20)], return_exceptions=True
        )
        assert {type(one) for one in told} == {DatabaseUnavailable}
        assert len({id(one) for one in told}) == 20
        assert batching.waiting == 0
        proxy.heal()
        answers = await asyncio.gather(
            *[_until_accepted(batching, new(str(number))) for number in range(20)]
        )
        assert {one.verdict for one in answers} <= {"accepted", "duplicate"}
        await batching.close()


async def _until_accepted(batching, intent):
    while True:
        try:
            return await batching.enqueue(intent)
        except DatabaseUnavailable:
            await asyncio.sleep(0.05)


async def test_caller_that_goes_away_does_no_harm(batching, commits):
    callers = [asyncio.create_task(batching.enqueue(new(str(number)))) for number in range(10)]
    await asyncio.sleep(0)  # all of them wait, and the call has not begun
    for caller in callers[::2]:
        caller.cancel()
    told = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(one) is asyncio.CancelledError for one in told] == [True, False] * 5
    assert commits() == [5]  # what nobody waits for any more is not even sent
    assert batching.waiting == batching._bytes == 0


async def test_caller_that_goes_away_during_its_call_leaves_the_others_theirs(
    batching, commits, database
):
    holder = database.session()
    holder.run("BEGIN")
    holder.run("LOCK TABLE leasehold.outbox_pending IN EXCLUSIVE MODE")
    callers = [asyncio.create_task(batching.enqueue(new(str(number)))) for number in range(3)]
    await asyncio.sleep(0.05)
    callers[1].cancel()
    await asyncio.sleep(0)
    holder.run("ROLLBACK")
    told = await asyncio.gather(*callers, return_exceptions=True)
    assert [getattr(one, "verdict", None) for one in told] == ["accepted", None, "accepted"]
    assert commits() == [3]


async def test_stream_that_somebody_keeps_locked_stops_nobody_else(batching, database, commits):
    await batching.enqueue(on_stream("kept"))
    holder = database.session()
    holder.run("BEGIN")
    holder.run("SELECT FROM leasehold.streams WHERE stream = 'kept' FOR UPDATE")
    stuck = [asyncio.create_task(batching.enqueue(on_stream("kept"))) for _ in range(3)]
    await asyncio.sleep(0.02)
    stuck += [asyncio.create_task(batching.enqueue(on_stream("kept"))) for _ in range(3)]
    free = await in_turn(batching, [new(), on_stream("free")])
    assert {one.verdict for one in free} == {"accepted"}
    assert not any(one.done() for one in stuck)
    holder.run("ROLLBACK")
    assert {one.verdict for one in await asyncio.gather(*stuck)} == {"accepted"}
    # Those that came later waited for the stream beside the call, not in one more.
    assert commits() == [1, 2, 3, 3]


async def test_neighbours_of_a_locked_stream_in_the_same_call_are_accepted_without_it(
    batching, database
):
    await batching.enqueue(on_stream("kept"))
    holder = database.session()
    holder.run("BEGIN")
    holder.run("SELECT FROM leasehold.streams WHERE stream = 'kept' FOR UPDATE")
    told = await asyncio.gather(
        *[batching.enqueue(one) for one in (on_stream("kept"), new(), on_stream("free"))],
        return_exceptions=True,
    )
    holder.run("ROLLBACK")
    assert isinstance(told[0], DatabaseUnavailable)
    assert told[0].sqlstate == "55P03"
    assert [one.verdict for one in told[1:]] == ["accepted", "accepted"]


async def test_intents_of_a_stream_keep_the_order_in_which_they_came(batching, database):
    await in_turn(batching, [replace(on_stream("s"), payload=number) for number in range(20)])
    rows = database.execute("SELECT payload FROM leasehold.intents ORDER BY stream_seq")
    assert [row["payload"] for row in rows] == list(range(20))


async def test_closed_batching_answers_whoever_waits_and_takes_nothing_more(store, commits):
    batching = Batching(store)
    waiting = [asyncio.create_task(batching.enqueue(new())) for _ in range(5)]
    await asyncio.sleep(0)
    await batching.close()
    assert {one.verdict for one in await asyncio.gather(*waiting)} == {"accepted"}
    with pytest.raises(IntakeFull):
        await batching.enqueue(new())
    assert commits() == [5]


async def test_workers_are_woken_after_the_commit_once_for_many(batching, database):
    connection = database.connect()
    connection.execute("LISTEN leasehold_due")
    await in_turn(batching, [new(str(number)) for number in range(100)])
    hints = [one.payload for one in connection.notifies(timeout=5, stop_after=1)]
    hints += [one.payload for one in connection.notifies(timeout=0.1)]
    assert hints == ["sms"]

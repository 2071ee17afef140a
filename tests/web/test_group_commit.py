"""Group commit: callers share commits without a timer, and do not harm one another."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from leasehold.domain.errors import DatabaseUnavailable, IntakeFull, Unavailable
from leasehold.domain.intent import NewIntent
from leasehold.intake.group_commit import GroupCommit
from leasehold.store.pool_settings import PoolSettings
from leasehold.store.postgres.store import PostgresStore
from tests.support.engine import until
from tests.support.tcp_proxy import TcpProxy

# No limit is reached, or the lock timeout.
POOL = PoolSettings(lock_seconds=40, statement_seconds=60, wait_seconds=40)
SHORT = PoolSettings(lock_seconds=0.3, wait_seconds=2.0)
# Only the lock timeout, of a row that somebody keeps.
LOCKED = PoolSettings(lock_seconds=0.3, statement_seconds=60, wait_seconds=40)


@pytest.fixture(autouse=True)
def published(outbox):
    outbox.publish("sms")
    outbox.publish("ledger", scope="stream")


@pytest.fixture
async def store(database):
    async with PostgresStore(database.url_as("ingest"), POOL) as store:
        yield store


@pytest.fixture
async def group_commit(store):
    group_commit = GroupCommit(store)
    yield group_commit
    await group_commit.close()


@pytest.fixture
def commits(database):
    """The number of intents per transaction, oldest first."""
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


async def in_turn(group_commit, intents):
    """Enqueue them so that all are waiting when the first call starts."""
    return await asyncio.gather(*[group_commit.enqueue(one) for one in intents])


async def until_blocked(database):
    """Wait until a call waits for a lock."""
    await until(
        lambda: database.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
            "   AND wait_event_type = 'Lock'"
        )
    )


async def test_single_intent_is_sent_at_once_and_committed_on_return(group_commit, commits, outbox):
    answer = await group_commit.enqueue(new("a"))
    assert answer.verdict == "accepted"
    assert outbox.status(answer.intent_id) == "pending"
    assert commits() == [1]


async def test_intents_that_arrive_during_a_call_share_the_next_commit(
    group_commit, commits, database
):
    # No second call may start beside the first one, which waits for the lock.
    group_commit._slow_seconds = 60
    holder = database.session()
    holder.run("BEGIN")
    holder.run("LOCK TABLE leasehold.outbox_pending IN EXCLUSIVE MODE")
    first = asyncio.create_task(group_commit.enqueue(new("first")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [asyncio.create_task(group_commit.enqueue(new(str(number)))) for number in range(200)]
    await until_blocked(database)
    assert not any(one.done() for one in [first, *others])
    assert commits() == []
    holder.run("ROLLBACK")
    answers = await asyncio.gather(first, *others)
    assert {one.verdict for one in answers} == {"accepted"}
    assert commits() == [1, 200]


async def test_each_caller_gets_the_result_of_its_own_intent(group_commit, database):
    intents = [new(str(number), payload={"number": number}) for number in range(50)]
    answers = await in_turn(group_commit, intents)
    rows = database.execute(
        "SELECT intent_id, payload ->> 'number' AS number FROM leasehold.intents"
    )
    written = {row["intent_id"]: int(row["number"]) for row in rows}
    assert [written[one.intent_id] for one in answers] == list(range(50))


async def test_callers_with_the_same_key_get_one_intent(group_commit, commits):
    answers = await in_turn(group_commit, [new("same")] * 200)
    assert len({one.intent_id for one in answers}) == 1
    assert sorted(one.verdict for one in answers) == ["accepted"] + ["duplicate"] * 199
    assert commits() == [1]


async def test_batch_size_is_bounded(store, commits):
    group_commit = GroupCommit(store, batch_max=10)
    await in_turn(group_commit, [new(str(number)) for number in range(25)])
    assert commits() == [10, 10, 5]
    await group_commit.close()


async def test_invalid_intents_do_not_fail_the_rest_of_their_batch(group_commit, commits):
    intents = [
        new("good"),
        new("bad text", payload={"x": "\0"}),
        new("bad type", payload={"x": object()}),
        new(target="nowhere"),
        new("bad number", priority=70_000),
        new("bad word", priority=9),
        new("good too"),
    ]
    answers = await in_turn(group_commit, intents)
    assert [one.verdict for one in answers] == [
        *("accepted", "invalid", "invalid", "unknown_target", "invalid", "invalid", "accepted"),
    ]
    assert all(one.problem for one in answers if one.verdict != "accepted")
    assert sum(commits()) == 2


async def test_full_queue_rejects_until_there_is_room_again(store, commits):
    group_commit = GroupCommit(store, waiting_max=3)
    waiting = [asyncio.create_task(group_commit.enqueue(new())) for _ in range(3)]
    await asyncio.sleep(0)
    assert group_commit.waiting == 3
    with pytest.raises(IntakeFull, match="3 intents are waiting already"):
        await group_commit.enqueue(new())
    await asyncio.gather(*waiting)
    assert group_commit.waiting == 0
    assert (await group_commit.enqueue(new())).verdict == "accepted"
    assert sum(commits()) == 4
    await group_commit.close()


async def test_queue_is_bounded_in_bytes_too(store):
    group_commit = GroupCommit(store, bytes_max=100)
    waiting = asyncio.create_task(group_commit.enqueue(new(), size=60))
    await asyncio.sleep(0)
    with pytest.raises(IntakeFull, match="60 bytes are waiting already"):
        await group_commit.enqueue(new(), size=60)
    await waiting
    assert (await group_commit.enqueue(new(), size=60)).verdict == "accepted"
    await group_commit.close()


async def test_database_outage_reaches_every_caller_and_ends_by_itself(database):
    address = database.url_as("ingest")
    async with TcpProxy(address) as proxy, PostgresStore(proxy.through(address), SHORT) as store:
        group_commit = GroupCommit(store)
        assert (await group_commit.enqueue(new("before"))).verdict == "accepted"
        proxy.cut()
        told = await asyncio.gather(
            *[group_commit.enqueue(new(str(number))) for number in range(20)],
            return_exceptions=True,
        )
        assert {type(one) for one in told} == {DatabaseUnavailable}
        assert len({id(one) for one in told}) == 20
        assert group_commit.waiting == 0
        proxy.heal()
        answers = await asyncio.gather(
            *[_until_accepted(group_commit, new(str(number))) for number in range(20)]
        )
        assert {one.verdict for one in answers} <= {"accepted", "duplicate"}
        await group_commit.close()


async def _until_accepted(group_commit, intent):
    while True:
        try:
            return await group_commit.enqueue(intent)
        except DatabaseUnavailable:
            await asyncio.sleep(0.05)


async def test_intent_of_a_cancelled_caller_is_not_sent(group_commit, commits):
    callers = [asyncio.create_task(group_commit.enqueue(new(str(number)))) for number in range(10)]
    await asyncio.sleep(0)  # all are queued, and the call has not started
    for caller in callers[::2]:
        caller.cancel()
    told = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(one) is asyncio.CancelledError for one in told] == [True, False] * 5
    assert commits() == [5]
    assert group_commit.waiting == group_commit._bytes == 0


async def test_caller_cancelled_during_its_call_does_not_affect_the_others(
    group_commit, commits, database
):
    holder = database.session()
    holder.run("BEGIN")
    holder.run("LOCK TABLE leasehold.outbox_pending IN EXCLUSIVE MODE")
    callers = [asyncio.create_task(group_commit.enqueue(new(str(number)))) for number in range(3)]
    await until_blocked(database)
    callers[1].cancel()
    await asyncio.sleep(0)
    holder.run("ROLLBACK")
    told = await asyncio.gather(*callers, return_exceptions=True)
    assert [getattr(one, "verdict", None) for one in told] == ["accepted", None, "accepted"]
    assert commits() == [3]


async def test_locked_stream_does_not_stop_other_intents(group_commit, database, commits):
    await group_commit.enqueue(on_stream("kept"))
    holder = database.session()
    holder.run("BEGIN")
    holder.run("SELECT FROM leasehold.streams WHERE stream = 'kept' FOR UPDATE")
    stuck = [asyncio.create_task(group_commit.enqueue(on_stream("kept"))) for _ in range(3)]
    await until_blocked(database)
    stuck += [asyncio.create_task(group_commit.enqueue(on_stream("kept"))) for _ in range(3)]
    free = await in_turn(group_commit, [new(), on_stream("free")])
    assert {one.verdict for one in free} == {"accepted"}
    assert not any(one.done() for one in stuck)
    holder.run("ROLLBACK")
    assert {one.verdict for one in await asyncio.gather(*stuck)} == {"accepted"}
    # The later ones waited for the running call instead of occupying another one.
    assert commits() == [1, 2, 3, 3]


async def test_intents_in_one_call_with_a_locked_stream_are_accepted_without_it(database):
    async with PostgresStore(database.url_as("ingest"), LOCKED) as store:
        group_commit = GroupCommit(store)
        await group_commit.enqueue(on_stream("kept"))
        holder = database.session()
        holder.run("BEGIN")
        holder.run("SELECT FROM leasehold.streams WHERE stream = 'kept' FOR UPDATE")
        told = await asyncio.gather(
            *[group_commit.enqueue(one) for one in (on_stream("kept"), new(), on_stream("free"))],
            return_exceptions=True,
        )
        holder.run("ROLLBACK")
        await group_commit.close()
    assert isinstance(told[0], DatabaseUnavailable)
    assert told[0].reason is Unavailable.LOCKED
    assert [one.verdict for one in told[1:]] == ["accepted", "accepted"]


async def test_intents_of_a_stream_keep_their_order(group_commit, database):
    await in_turn(group_commit, [replace(on_stream("s"), payload=number) for number in range(20)])
    rows = database.execute("SELECT payload FROM leasehold.intents ORDER BY stream_seq")
    assert [row["payload"] for row in rows] == list(range(20))


async def test_close_finishes_waiting_callers_and_rejects_new_ones(store, commits):
    group_commit = GroupCommit(store)
    waiting = [asyncio.create_task(group_commit.enqueue(new())) for _ in range(5)]
    await asyncio.sleep(0)
    await group_commit.close()
    assert {one.verdict for one in await asyncio.gather(*waiting)} == {"accepted"}
    with pytest.raises(IntakeFull):
        await group_commit.enqueue(new())
    assert commits() == [5]


async def test_many_intents_send_one_notification_after_their_commit(group_commit, database):
    connection = database.connect()
    connection.execute("LISTEN leasehold_due")
    await in_turn(group_commit, [new(str(number)) for number in range(100)])
    hints = [one.payload for one in connection.notifies(timeout=30, stop_after=1)]
    hints += [one.payload for one in connection.notifies(timeout=0.1)]
    assert hints == ["sms"]

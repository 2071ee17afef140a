"""Election by advisory lock: who may take over, when, and what a former holder may still do."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import psycopg
import pytest

from leasehold.coordination import advisory_lock
from leasehold.coordination.advisory_lock import AdvisoryLock, lock_key, require_election_by_lock
from leasehold.domain.errors import DatabaseUnavailable, InvalidArgument, LeaseLost
from leasehold.domain.timing import Timings
from leasehold.store.pool_settings import PoolSettings
from leasehold.store.postgres.database_url import with_tls
from leasehold.store.postgres.lock_session import PostgresLockSession
from tests.support.lease_holder import Holder, take
from tests.support.outbox import CLUSTER_LEASE
from tests.support.pooler import run_pooler
from tests.support.race import race
from tests.support.sqlstates import refused
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.one_server

KEY = lock_key(CLUSTER_LEASE)
ACQUIRE = "SELECT * FROM leasehold.acquire_lease_by_lock(%s, %s, %s, 60, 2)"
WAIT_SECONDS = 20.0


def acquire(connection, holder, lease_name=CLUSTER_LEASE):
    return connection.execute(ACQUIRE, [lease_name, holder, lock_key(lease_name)]).fetchone()


def elected(outbox, holder="holder-1"):
    """Return a holder elected by advisory lock, and its session."""
    session = outbox.database.connect("executor")
    row = acquire(session, holder)
    assert row["acquired"], row
    return Holder(outbox, holder, CLUSTER_LEASE, row["lease_epoch"]), session


def let_renewal_age(database, seconds=3):
    """Move the last ping back by this many seconds."""
    database.owner_execute(
        "UPDATE leasehold.leases SET renewed_at = renewed_at - make_interval(secs => %s)",
        [seconds],
    )


def end(database, session):
    """End a session, and wait until its lock is free."""
    pid = session.info.backend_pid
    session.close()
    wait_until(
        lambda: not database.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]),
    )


def wait_until(look):
    ends_at = time.monotonic() + WAIT_SECONDS
    while not look():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def lock_holders(database):
    return [
        row["pid"]
        for row in database.execute(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
            " AND (classid::bigint << 32 | objid::bigint) = %s AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())",
            [KEY],
        )
    ]


def lease_row(database):
    [row] = database.execute("SELECT * FROM leasehold.leases")
    return row


def test_fifteen_of_sixteen_racing_for_the_lock_lose(database):
    answers = race(
        database, 16, lambda caller, n: acquire(caller.as_role("executor"), f"holder-{n}")
    )
    [winner] = [row for row in answers if row["acquired"]]
    assert winner["lease_epoch"] == 1
    assert lease_row(database)["holder_id"] == winner["holder_id"]
    assert len(lock_holders(database)) == 1


def test_acquire_does_not_wait_for_the_lock_of_another_session(outbox, database):
    _, session = elected(outbox)
    let_renewal_age(database)
    answer = acquire(database.connect("executor"), "holder-2")
    assert (answer["acquired"], answer["holder_id"]) == (False, "holder-1")
    assert answer["free_in_seconds"] is None
    assert lock_holders(database) == [session.info.backend_pid]


def test_free_lock_alone_does_not_permit_a_takeover(outbox, database):
    _, session = elected(outbox)
    end(database, session)
    answer = acquire(database.connect("executor"), "holder-2")
    assert (answer["acquired"], answer["lease_epoch"]) == (False, 1)
    assert 0 < answer["free_in_seconds"] <= 2  # not the sixty seconds of the lease
    assert lock_holders(database) == [], "an instance that does not lead must not keep the lock"


def test_lease_is_taken_before_expiry_once_its_holder_begins_no_calls(outbox, database):
    first, session = elected(outbox)
    end(database, session)
    let_renewal_age(database)
    second, _ = elected(outbox, "holder-2")
    assert second.epoch == first.epoch + 1
    for stale in (first.window, first.renew):
        with refused("P7002"):
            stale()
    assert first.release() is False


def test_lock_respects_a_row_holder_until_its_lease_expires(outbox, database):
    take(outbox, "by row")
    let_renewal_age(database, 50)
    follower = database.connect("executor")
    answer = acquire(follower, "by lock")
    assert (answer["acquired"], answer["holder_id"]) == (False, "by row")
    assert answer["free_in_seconds"] > 50
    assert lock_holders(database) == []
    outbox.expire_lease()
    assert acquire(follower, "by lock")["acquired"]


def test_row_respects_a_lock_holder_until_its_lease_expires(outbox, database):
    elected(outbox)
    let_renewal_age(database, 50)
    assert outbox.acquire("by row")["acquired"] is False
    outbox.expire_lease()
    assert outbox.acquire("by row")["acquired"] is True
    assert lease_row(database)["yield_seconds"] is None, "the successor has a full lease"


def test_begun_call_of_the_former_holder_is_in_doubt_after_a_takeover(outbox, database):
    outbox.publish("bank", scope="cluster", guarantee="lookup")
    [intent_id] = outbox.enqueue(target="bank")
    first, session = elected(outbox)
    assert first.begin([intent_id]) == ["begun"]
    end(database, session)
    let_renewal_age(database)
    elected(outbox, "holder-2")
    [row] = outbox.ledger(intent_id)
    assert (row["state"], row["holder"], row["lease_epoch"]) == ("IN_DOUBT", "holder-1", 1)


def test_takeover_by_lock_waits_for_a_fenced_write_in_flight(outbox, database):
    outbox.publish("bank", scope="cluster")
    [intent_id] = outbox.enqueue(target="bank")
    first, lock_session = elected(outbox)
    writer, taker = database.session("executor"), database.session("executor")
    writer.run("BEGIN")
    writer.run("SELECT leasehold.hold_lease(%s, %s, %s)", first.fence)
    end(database, lock_session)
    let_renewal_age(database)
    taking = taker.start(ACQUIRE, [CLUSTER_LEASE, "holder-2", KEY])
    taking.assert_blocked()
    writer.run("COMMIT")
    assert taking.result()[0]["acquired"]
    assert outbox.status(intent_id) == "pending"


def test_ping_postpones_the_earliest_takeover(outbox, database):
    holder, session = elected(outbox)
    let_renewal_age(database)
    session.execute("SELECT leasehold.renew_lease(%s, %s, %s, 60)", holder.fence)
    end(database, session)
    assert not acquire(database.connect("executor"), "holder-2")["acquired"]


SETTINGS = PoolSettings(statement_seconds=1, lock_seconds=0.5, wait_seconds=1, connect_seconds=2)
TIMINGS = Timings(cluster_lease_seconds=60, cluster_ping_seconds=0.2, cluster_acquire_seconds=0.2)


def opener(url, settings=SETTINGS, holder_id="holder"):
    async def open_session(lease_seconds, replaces):
        return await PostgresLockSession.open(
            url, settings, lease_seconds=lease_seconds, holder_id=holder_id, replaces=replaces
        )

    return open_session


@asynccontextmanager
async def elector(stores, url, holder_id, timings=TIMINGS):
    made = AdvisoryLock(
        stores.executor, opener(url, holder_id=holder_id), CLUSTER_LEASE, holder_id, lambda: timings
    )
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
def url(database):
    return database.url_as("executor")


async def test_leader_that_releases_is_replaced_at_once(stores, url):
    async with elector(stores, url, "first") as first, elector(stores, url, "second") as second:
        held = await first.acquire()
        await first.renew(held.lease, first.trust_seconds)
        waits = await second.acquire()
        assert (waits.is_ours, waits.lease.holder_id, waits.seconds_left) == (
            False,
            "first",
            float("inf"),
        )
        await first.release(held.lease)
        assert (await second.acquire()).lease.epoch == held.lease.epoch + 1
        with pytest.raises(LeaseLost):
            await first.renew(held.lease, first.trust_seconds)


async def test_leader_whose_session_was_ended_notices_with_the_next_ping(stores, url, database):
    async with elector(stores, url, "first") as first:
        held = await first.acquire()
        [pid] = lock_holders(database)
        database.execute("SELECT pg_terminate_backend(%s)", [pid])
        with pytest.raises(LeaseLost, match="the session that held the lock has ended"):
            await first.renew(held.lease, first.trust_seconds)
        let_renewal_age(database)
        again = await first.acquire()
        assert (again.is_ours, again.lease.epoch) == (True, 2)


async def test_lease_taken_over_by_row_is_lost_with_the_next_ping(stores, url, outbox):
    async with elector(stores, url, "first") as first:
        held = await first.acquire()
        outbox.expire_lease()
        assert outbox.acquire("usurper")["acquired"]
        with pytest.raises(LeaseLost):
            await first.renew(held.lease, first.trust_seconds)
        assert not (await first.acquire()).is_ours
        assert lock_holders(outbox.database) == []


async def test_server_ends_a_session_that_is_silent_for_the_lease(stores, url, database):
    short = Timings(cluster_lease_seconds=1, cluster_renew_seconds=0.5, cluster_ping_seconds=0.2)
    async with elector(stores, url, "first", short) as first:
        sent_at = time.monotonic()
        held = await first.acquire()
        while lock_holders(database):
            assert time.monotonic() < sent_at + WAIT_SECONDS
            await asyncio.sleep(0.01)
        assert time.monotonic() - sent_at > first.trust_seconds * 0.99, "trust ended before"
        with pytest.raises(LeaseLost):
            await first.renew(held.lease, first.trust_seconds)


async def test_session_limits_are_set_on_the_server(url):
    session = await opener(url)(60, None)
    try:
        cursor = await session._connection.execute(
            "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)",
            [
                [
                    "idle_session_timeout",
                    "tcp_user_timeout",
                    "tcp_keepalives_idle",
                    "tcp_keepalives_interval",
                    "tcp_keepalives_count",
                    "statement_timeout",
                ]
            ],
        )
        assert dict(await cursor.fetchall()) == {
            "idle_session_timeout": "60000",
            "tcp_user_timeout": "60000",
            "tcp_keepalives_idle": "15",
            "tcp_keepalives_interval": "15",
            "tcp_keepalives_count": "4",
            "statement_timeout": "1000",
        }
    finally:
        await session.close()


async def test_leader_cut_off_from_its_session_ends_it_from_a_new_one(stores, url, database):
    """Otherwise nobody could lead until the server ends the session by itself, a minute later."""
    async with TcpProxy(url) as proxy:
        reached = [proxy.through(url), url]

        async def open_session(lease_seconds, replaces):
            return await opener(reached.pop(0))(lease_seconds, replaces)

        lonely = AdvisoryLock(
            stores.executor, open_session, CLUSTER_LEASE, "lonely", lambda: TIMINGS
        )
        held = await lonely.acquire()
        proxy.blackhole()
        with pytest.raises(DatabaseUnavailable, match="the ping did not finish"):
            await lonely.renew(held.lease, lonely.trust_seconds)
        assert len(lock_holders(database)) == 1, "calls that were made may still be finished"
        await lonely.release(held.lease)
        again = await lonely.acquire()
        async with asyncio.timeout(40):
            while not again.is_ours:  # until the server has ended it
                await asyncio.sleep(0.02)
                again = await lonely.acquire()
        assert (again.is_ours, again.lease.epoch) == (True, 2)
        await lonely.close()


async def test_longer_lease_is_not_trusted_before_the_server_applies_it(stores, url):
    timings = [TIMINGS]
    lock = AdvisoryLock(stores.executor, opener(url), CLUSTER_LEASE, "h", lambda: timings[-1])
    try:
        held = await lock.acquire()
        timings.append(Timings(cluster_lease_seconds=600))
        await lock.renew(held.lease, lock.trust_seconds)
        assert lock.trust_seconds == 60
        await lock.release(held.lease)
    finally:
        await lock.close()


@pytest.mark.program("pgbouncer")
@pytest.mark.parametrize("more", ["", "ignore_startup_parameters = options\n"])
async def test_pooler_is_detected_and_refused(database, more):
    with run_pooler(database, more) as pooler:
        with pytest.raises(InvalidArgument, match=r"is of a pooler.*LEASEHOLD_ELECTOR=row"):
            await require_election_by_lock(opener(pooler.url_as("executor")), 60, [])
        assert lock_holders(database) == []


async def test_lease_names_that_share_a_key_are_refused_at_start(stores, url, outbox, monkeypatch):
    take(outbox, lease_name="other")
    await require_election_by_lock(opener(url), 60, [CLUSTER_LEASE])
    monkeypatch.setattr(advisory_lock, "lock_key", lambda _name: 7)
    with pytest.raises(InvalidArgument, match=r"'other' and 'submission-manager-executor' have"):
        await require_election_by_lock(opener(url), 60, [CLUSTER_LEASE])
    async with elector(stores, url, "first") as first:
        with pytest.raises(InvalidArgument, match="the same advisory-lock key"):
            await first.acquire()


async def test_stream_leases_are_not_checked_for_shared_keys(url, outbox, database):
    take(outbox)
    database.owner_execute(
        "INSERT INTO leasehold.leases SELECT 'stream/pay/' || n, 'a', 1, now(), now(), now(), now()"
        "  FROM generate_series(1, 3) AS n"
    )
    session = await opener(url)(60, None)
    try:
        assert await session.read_cluster_lease_names() == [CLUSTER_LEASE]
    finally:
        await session.close()


async def test_error_of_an_unreachable_database_hides_its_password(url):
    away = psycopg.conninfo.make_conninfo(url, port=1)
    with pytest.raises(DatabaseUnavailable, match="cannot connect") as raised:
        await opener(away)(60, None)
    assert psycopg.conninfo.conninfo_to_dict(url)["password"] not in str(raised.value)


async def test_session_uses_the_tls_settings_of_the_pool(url):
    with pytest.raises(DatabaseUnavailable, match="SSL"):
        await opener(with_tls(url, "require", None))(60, None)  # this server has no TLS

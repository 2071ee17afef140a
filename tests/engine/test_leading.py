"""Leadership for anybody's own code: one at a time, and none after it is lost."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from leasehold import leadership, read_settings
from leasehold.domain.errors import LeaseLost
from tests.support.tcp_proxy import TcpProxy

TIMES = {
    "cluster_lease_seconds": 2,
    "cluster_renew_seconds": 0.3,
    "cluster_acquire_seconds": 0.1,
    "pool_wait_seconds": 0.3,
    "statement_seconds": 0.5,
    "lock_seconds": 0.3,
}


def settings(database, url=None):
    return read_settings(database_url=url or database.url_as("executor"), **TIMES)


def take_away(database):
    database.execute(
        "UPDATE leasehold.leases SET holder_id = 'usurper', lease_epoch = lease_epoch + 1,"
        " expires_at = 'infinity', grace_expires_at = 'infinity' WHERE lease_name = 'report'"
    )


async def test_second_block_waits_until_the_first_has_ended(database):
    inside = []

    async def lead(name):
        async with leadership("report", settings=settings(database), holder_id=name) as leader:
            inside.append(name)
            assert len(inside) == 1
            await asyncio.sleep(0.05)
            inside.remove(name)
            return leader.lease.epoch

    epochs = await asyncio.gather(*(lead(f"holder-{number}") for number in range(4)))
    assert sorted(epochs) == [1, 2, 3, 4]


async def test_block_is_cancelled_when_leadership_is_lost(database):
    steps = []

    async def lead():
        async with leadership("report", settings=settings(database)) as leader:
            steps.append(leader)
            take_away(database)
            await asyncio.sleep(30)
            steps.append("went on")

    with pytest.raises(LeaseLost, match="the lease 'report' \\(epoch 1\\) is lost"):
        await lead()
    [leader] = steps
    assert leader.is_over


async def test_block_that_confirms_learns_at_once(database):
    confirmed = 0

    async def lead():
        nonlocal confirmed
        async with leadership("report", settings=settings(database)) as leader:
            await leader.confirm()
            confirmed += 1
            take_away(database)
            await leader.confirm()
            confirmed += 1

    with pytest.raises(LeaseLost):
        await lead()
    assert confirmed == 1


async def test_own_transaction_is_fenced_by_the_lease(database):
    async with leadership("report", settings=settings(database)) as leader:
        connection = database.connect("executor", autocommit=False)
        connection.execute("SELECT leasehold.hold_lease(%s, %s, %s)", leader.fence)
        connection.commit()
        name, holder, epoch = leader.fence
        with pytest.raises(psycopg.DatabaseError, match="is lost") as refusal:
            connection.execute("SELECT leasehold.hold_lease(%s, %s, %s)", [name, holder, epoch + 1])
        assert refusal.value.sqlstate == "P7002"
        connection.rollback()


async def test_block_ends_when_the_database_is_out_of_reach(database):
    url = database.url_as("executor")
    async with TcpProxy(url) as proxy:

        async def lead():
            async with leadership("report", settings=settings(database, proxy.through(url))):
                proxy.blackhole()
                await asyncio.sleep(30)

        with pytest.raises(LeaseLost):
            await lead()


async def test_cancellation_from_outside_stays_a_cancellation(database):
    entered = asyncio.Event()

    async def lead():
        async with leadership("report", settings=settings(database)):
            entered.set()
            await asyncio.sleep(30)

    task = asyncio.create_task(lead())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [row] = database.execute(
        "SELECT expires_at <= clock_timestamp() AS is_free FROM leasehold.leases"
        " WHERE lease_name = 'report'"
    )
    assert row["is_free"]

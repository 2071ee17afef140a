"""`leadership()` for the user's own code: one block at a time, cancelled when the lease is lost."""

from __future__ import annotations

import asyncio
import logging

import psycopg
import pytest

from leasehold import leadership, read_settings
from leasehold.coordination.elector import Elector
from leasehold.coordination.row_lease import RowLease
from leasehold.domain.errors import (
    AccessDenied,
    DatabaseUnavailable,
    InvalidArgument,
    LeaseLost,
    MigrationError,
    NotLeader,
)
from leasehold.observe.metrics import Metrics
from leasehold.runtime.leadership import Leader, _BlockSession
from leasehold.store.postgres.store import PostgresStore
from tests.support.engine import until
from tests.support.suspended_machine import suspend
from tests.support.tcp_proxy import TcpProxy

TIMES = {
    "cluster_lease_seconds": 60,
    "cluster_renew_seconds": 0.3,
    "cluster_acquire_seconds": 0.1,
    "pool_wait_seconds": 8,
    "statement_seconds": 10,
    "lock_seconds": 9,
}
# For a block that must lose its lease because time passes.
SHORT = {
    "cluster_lease_seconds": 4,
    "pool_wait_seconds": 0.5,
    "statement_seconds": 1,
    "lock_seconds": 0.8,
}


def settings(database, url=None, **more):
    return read_settings(database_url=url or database.url_as("executor"), **TIMES | more)


def take_away(database):
    database.execute(
        "UPDATE leasehold.leases SET holder_id = 'usurper', lease_epoch = lease_epoch + 1,"
        " expires_at = 'infinity', grace_expires_at = 'infinity' WHERE lease_name = 'report'"
    )


def let_another_lead(database):
    database.connect("executor").execute("SELECT leasehold.acquire_lease('report', 'other', 3600)")


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


async def test_confirm_raises_at_once_when_the_lease_is_lost(database):
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
            short = settings(database, proxy.through(url), **SHORT)
            async with leadership("report", settings=short):
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


class StallingLog(logging.Handler):
    """A log that accepts `leader_acquired` only after the lease has ended: the machine sleeps."""

    def emit(self, record):
        if "leader_acquired" in record.getMessage():
            suspend(TIMES["cluster_lease_seconds"])


async def test_block_whose_lease_ended_before_it_began_is_not_entered(
    database, caplog, monkeypatch
):
    caplog.set_level("INFO", "leasehold")
    monkeypatch.setattr(logging.getLogger("leasehold"), "handlers", [StallingLog()])
    with pytest.raises(LeaseLost, match="trust ended before a renewal"):
        async with leadership("report", settings=settings(database)):
            pytest.fail("the block was entered after its lease had ended")


async def test_lease_lost_between_election_and_block_is_raised_at_once(database):
    async with PostgresStore(database.url_as("executor")) as store:
        block = _BlockSession()
        backend = RowLease(store, "report", "late", settings(database).timings)
        elector = Elector("report", "late", backend, Metrics("late"), block.begin)
        await elector.step()
        term = await block.term
        take_away(database)
        with pytest.raises(LeaseLost):
            await elector.confirm(term)
        with (
            pytest.raises(LeaseLost, match="the database reports it as lost"),
            block.cancelled_when_lost(Leader(term.lease, elector, term), term),
        ):
            pytest.fail("the block was entered without a lease")
        await elector.resign(0)


@pytest.mark.parametrize("timeout_seconds", [None, 60])
async def test_login_without_the_role_is_refused_instead_of_waiting(database, timeout_seconds):
    denied = settings(database, database.url_as("ingest"))
    with pytest.raises(AccessDenied, match="acquire_lease"):
        async with (
            asyncio.timeout(30),
            leadership("report", settings=denied, timeout_seconds=timeout_seconds),
        ):
            pytest.fail("a login without the role leads")


async def test_role_that_is_revoked_during_the_wait_ends_the_wait(database):
    let_another_lead(database)

    async def lead():
        async with leadership("report", settings=settings(database)):
            pytest.fail("two lead")

    def has_asked():
        return database.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
            "    AND query LIKE '%acquire_lease%' AND pid <> pg_backend_pid()"
        )

    waiting = asyncio.create_task(lead())
    await until(has_asked)
    assert not waiting.done()
    database.execute("REVOKE EXECUTE ON FUNCTION leasehold.acquire_lease FROM leasehold_executor")
    with pytest.raises(AccessDenied, match="acquire_lease"):
        async with asyncio.timeout(30):
            await waiting


async def test_database_without_the_schema_is_refused_instead_of_waiting(empty_database):
    with pytest.raises(MigrationError, match="leasehold migrate"):
        async with asyncio.timeout(30), leadership("report", settings=settings(empty_database)):
            pytest.fail("elected without a lease table")


async def test_impossible_lease_name_is_refused_instead_of_waiting(database):
    with pytest.raises(InvalidArgument):
        async with asyncio.timeout(30), leadership("", settings=settings(database)):
            pytest.fail("elected without a name")


async def test_wait_ends_after_its_timeout_and_names_the_leader(database):
    let_another_lead(database)
    with pytest.raises(NotLeader, match=r"not elected within 3 seconds: other leads") as refusal:
        async with (
            asyncio.timeout(30),
            leadership("report", settings=settings(database), timeout_seconds=3),
        ):
            pytest.fail("two lead")
    assert (refusal.value.lease_name, refusal.value.holder_id) == ("report", "other")


async def test_wait_that_timed_out_leaves_no_lease_behind(database):
    """A lease that it may have acquired at the last moment is released."""
    let_another_lead(database)
    with pytest.raises(NotLeader):
        async with leadership("report", settings=settings(database), timeout_seconds=0.3):
            pytest.fail("two lead")
    database.execute(
        "UPDATE leasehold.leases SET expires_at = clock_timestamp(),"
        " grace_expires_at = clock_timestamp() WHERE holder_id = 'other'"
    )
    async with asyncio.timeout(30), leadership("report", settings=settings(database)) as leader:
        assert leader.lease.epoch == 2


async def test_timeout_does_not_bound_the_block(database):
    async with leadership("report", settings=settings(database), timeout_seconds=5) as leader:
        await asyncio.sleep(0)
    async with leadership("report", settings=settings(database), timeout_seconds=3) as leader:
        await asyncio.sleep(3.1)
        await leader.confirm()


async def test_timeout_says_that_the_database_did_not_answer(database):
    url = database.url_as("executor")
    let_another_lead(database)
    async with TcpProxy(url) as proxy:

        async def lead():
            async with leadership(
                "report",
                settings=settings(database, proxy.through(url), **SHORT),
                timeout_seconds=6,
            ):
                pytest.fail("elected without an answer")

        waiting = asyncio.create_task(lead())
        async with asyncio.timeout(30):
            await asyncio.sleep(0.5)
            proxy.blackhole()
            with pytest.raises(NotLeader, match="did not answer") as refusal:
                await waiting
        assert isinstance(refusal.value.__cause__, DatabaseUnavailable)


@pytest.mark.parametrize("timeout_seconds", [0, -1, float("nan")])
async def test_timeout_that_permits_no_election_is_refused(database, timeout_seconds):
    with pytest.raises(InvalidArgument, match="timeout_seconds"):
        async with leadership(
            "report", settings=settings(database), timeout_seconds=timeout_seconds
        ):
            pytest.fail("elected")

"""Leaders elected by advisory lock: a dead one is replaced within about a second, a slow one keeps
its lease, and never do two begin calls, even if a session ends without its holder noticing.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import pytest
from psycopg.conninfo import make_conninfo

from leasehold import Instance, read_settings
from leasehold.coordination.advisory_lock import lock_key
from leasehold.domain.errors import NotLeader
from tests.support import elections as support
from tests.support.elections import ROW_LEASE_SETTINGS, constant_work, fences, holders, lease
from tests.support.engine import SHORT_CALLS, until
from tests.support.outbox import CLUSTER_LEASE
from tests.support.restartable_engine import restartable_engine
from tests.support.tcp_proxy import TcpProxy

# The lease is a minute: a leader that is replaced sooner was not replaced by expiry.
ADVISORY_LOCK_SETTINGS = {"elector": "advisory", "schedule_refresh_seconds": "0.2"}
# The server also ends a silent session after this time.
SHORT = SHORT_CALLS | {"cluster_lease_seconds": "4", "cluster_renew_seconds": "0.4"}
SHORT_TERMS = {"scope": "cluster", "call_timeout_seconds": 3, "connect_timeout_seconds": 2}
ELECTIONS = int(os.environ.get("TEST_ELECTIONS", "4"))
ALL, OF_THE_LOCK = "all connections", "only the lock's connection"


@pytest.fixture
def cluster(engine):
    engine.publish("ledger", scope="cluster")
    return engine


def member(engine, *arguments, **more):
    return engine.worker(*arguments, **(ADVISORY_LOCK_SETTINGS | more))


async def start_leader(engine, **more):
    return await support.start_leader(engine, **(ADVISORY_LOCK_SETTINGS | more))


def end_lock_sessions(engine):
    """End the session that holds the lock; a stopped process does not notice."""
    key = lock_key(CLUSTER_LEASE)
    engine.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND (classid::bigint << 32 | objid::bigint) = %s AND database ="
        " (SELECT oid FROM pg_database WHERE datname = current_database())",
        [key],
    )


async def test_login_that_squats_on_the_lock_is_named_and_counted_until_it_ends(cluster):
    squatter = cluster.database.connect("readonly")
    squatter.execute("SELECT pg_advisory_lock(%s)", [lock_key(CLUSTER_LEASE)])
    worker = member(cluster, "--metrics-port", "0")
    line = await worker.logged("lock_squatted")
    assert (line["lock"], line["lease_name"]) == ("election", CLUSTER_LEASE)
    assert (line["pid"], line["login"]) == (squatter.info.backend_pid, squatter.info.user)
    assert "LEASEHOLD_ELECTOR=row" in line["advice"]
    # By row, the same lock stops nobody.
    by_row = cluster.worker(elector="row", schedule_refresh_seconds="0.2")
    await by_row.logged("leader_acquired")
    squatter.close()


async def test_killed_leader_is_replaced_long_before_its_lease_expires(cluster):
    first = await start_leader(cluster)
    second = member(cluster)
    await second.started()
    async with constant_work(cluster):
        await until(lambda: fences(cluster))
        before = lease(cluster)
        first.send(SIGKILL)
        await until(lambda: fences(cluster)[-1] == 2)
    assert lease(cluster)["acquired_at"] < before["expires_at"] - timedelta(seconds=30)
    assert (lease(cluster)["expires_at"] - lease(cluster)["renewed_at"]).total_seconds() == 60


async def test_leader_that_resigns_is_replaced_at_once(cluster):
    first = await start_leader(cluster)
    second = member(cluster)
    await second.started()
    first.send(SIGTERM)
    assert await first.ended() == 0
    assert (await second.logged("leader_acquired"))["lease_epoch"] == 2
    ids = cluster.outbox.enqueue(3, "ledger")
    await cluster.until_status(ids)
    assert holders(cluster, ids) == {await second.started()}


@pytest.mark.parametrize(
    ("point", "terms"),
    [
        ("after_claim", {}),
        ("after_begin", {"key_window_seconds": 3600}),
        pytest.param("before_begin", {"key_window_seconds": 3600}, marks=pytest.mark.thorough),
    ],
)
async def test_leader_that_was_paused_before_a_call_keeps_its_lease_and_continues(
    engine, point, terms
):
    engine.publish("ledger", scope="cluster", **terms)
    slow = member(engine, fault=f"{point}:stop:10")  # many pings were missed
    await slow.logged("due_queue_built")
    ids = engine.outbox.enqueue(3, "ledger")
    await slow.logged("fault")
    other = member(engine)
    await other.started()
    assert lease(engine)["yield_seconds"] < 10
    slow.send(SIGCONT)
    await engine.until_status(ids)
    assert {state for one in ids for state in engine.outbox.states(one)} == {"DISPATCHED"}
    assert holders(engine, ids) == {await slow.started()}
    assert fences(engine) == [1, 1, 1]
    assert not slow.lines("leader_stepped_down")
    assert not other.lines("leader_acquired")


@pytest.mark.parametrize(
    ("fault", "only"),
    [
        ("cut", ALL),
        ("blackhole", OF_THE_LOCK),
        ("cut_behind", OF_THE_LOCK),
        pytest.param("blackhole", ALL, marks=pytest.mark.thorough),
        pytest.param("cut", OF_THE_LOCK, marks=pytest.mark.thorough),
        pytest.param("cut_behind", ALL, marks=pytest.mark.thorough),
    ],
)
async def test_leader_that_is_cut_off_begins_no_call_once_another_may_lead(cluster, fault, only):
    cluster.publish("ledger", **SHORT_TERMS)
    url = cluster.database.url_as("executor")
    async with TcpProxy(url, b"leasehold lock" if only == OF_THE_LOCK else b"") as proxy:
        lonely = await start_leader(cluster, url=proxy.through(url), **SHORT)
        other = member(cluster, **SHORT)
        await other.started()
        async with constant_work(cluster):
            await until(lambda: fences(cluster))
            getattr(proxy, fault)()
            acquired = await other.logged("leader_acquired")
            lost = await lonely.logged("leader_lost")
            assert (lost["lease_epoch"], acquired["lease_epoch"]) == (1, 2)
            await until(lambda: fences(cluster)[-1] == 2)
            proxy.heal()
        other.send(SIGTERM)
        assert await other.ended() == 0
        await cluster.until_status(cluster.outbox.enqueue(3, "ledger"))  # it is back
        assert lease(cluster)["holder_id"] == await lonely.started()


async def test_paused_leader_whose_session_was_ended_makes_no_call_when_it_wakes(cluster):
    """Its lease is still trusted for most of a minute, and its pool works."""
    sleeper = await start_leader(cluster)
    other = member(cluster)
    await other.started()
    async with constant_work(cluster):
        await until(lambda: fences(cluster))
        sleeper.send(SIGSTOP)
        end_lock_sessions(cluster)
        await other.logged("leader_acquired")
        await until(lambda: fences(cluster)[-1] == 2)
        sleeper.send(SIGCONT)
        await sleeper.logged("leader_lost")


async def test_leader_that_wakes_right_before_a_call_does_not_make_it(cluster):
    ids = cluster.outbox.enqueue(1, "ledger")
    sleeper = member(cluster, fault="after_claim:stop")
    await sleeper.logged("fault")
    other = member(cluster)
    await other.started()
    end_lock_sessions(cluster)
    await cluster.until_status(ids)
    sleeper.send(SIGCONT)
    await sleeper.logged("leader_lost")
    assert sleeper.lines("call_skipped")
    assert fences(cluster) == [2]


async def test_leader_that_wakes_after_its_session_was_ended_writes_nothing(cluster):
    cluster.publish("ledger", **SHORT_TERMS)
    cluster.sandbox.set_faults(latency_ms=600_000)
    sleeper = await start_leader(cluster, **SHORT)
    ids = cluster.outbox.enqueue(4, "ledger")
    await cluster.until_in_flight(await sleeper.started(), 4)
    sleeper.send(SIGSTOP)
    cluster.sandbox.set_faults()
    other = member(cluster, **SHORT)
    acquired = await other.logged("leader_acquired")
    await cluster.until_status(ids)
    more = cluster.outbox.enqueue(4, "ledger")
    sleeper.send(SIGCONT)
    await sleeper.logged("leader_lost")
    await cluster.until_status(more)
    assert holders(cluster, [*ids, *more]) == {acquired["holder_id"]}


async def test_every_epoch_of_many_elections_has_one_holder(cluster):
    workers = [member(cluster) for _ in range(3)]
    for worker in workers:
        await worker.started()
    await until(lambda: [worker for worker in workers if worker.lines("leader_acquired")])
    async with constant_work(cluster):
        for _ in range(ELECTIONS):
            epoch = lease(cluster)["lease_epoch"]
            end_lock_sessions(cluster)
            await until(lambda epoch=epoch: lease(cluster)["lease_epoch"] > epoch)
    acquired = [line for worker in workers for line in worker.lines("leader_acquired")]
    epochs = [line["lease_epoch"] for line in acquired]
    assert len(epochs) == len(set(epochs)) > ELECTIONS


async def test_group_changes_from_row_to_lock_and_back_while_it_works(cluster):
    by_row = cluster.worker(**ROW_LEASE_SETTINGS)
    await by_row.logged("due_queue_built")
    async with constant_work(cluster):
        by_lock = [member(cluster) for _ in range(2)]
        for worker in by_lock:
            await worker.started()
        await until(lambda: len(fences(cluster)) > 20)
        assert not [worker for worker in by_lock if worker.lines("leader_acquired")]
        by_row.send(SIGTERM)
        assert await by_row.ended() == 0
        await until(lambda: 2 in fences(cluster))
        by_row_again = cluster.worker(**ROW_LEASE_SETTINGS)
        await by_row_again.started()
        [now] = [worker for worker in by_lock if worker.lines("leader_acquired")]
        now.send(SIGKILL)
        await until(lambda: 3 in fences(cluster))
        for worker in by_lock:
            if worker is not now:
                worker.send(SIGTERM)
                assert await worker.ended() == 0
        acquired = await by_row_again.logged("leader_acquired")
        await until(lambda: fences(cluster)[-1] == acquired["lease_epoch"])
    assert lease(cluster)["yield_seconds"] is None


@pytest.mark.parametrize("elector", ["row", pytest.param("advisory", marks=pytest.mark.thorough)])
async def test_group_survives_a_restart_of_its_database(sandbox, tmp_path, elector):
    with restartable_engine(sandbox, tmp_path) as engine:
        engine.publish("ledger", scope="cluster")
        settings = ROW_LEASE_SETTINGS if elector == "row" else ADVISORY_LOCK_SETTINGS
        first = await support.start_leader(engine, **settings)
        second = engine.worker(**settings)
        await second.started()
        ids = engine.outbox.enqueue(20, "ledger")
        await until(lambda: fences(engine))
        engine.stop_server()
        lost = await first.logged("leader_lost")
        assert lost["why"] != "shutdown"
        await engine.start_server()
        if elector == "row":
            engine.outbox.expire_lease()
        await engine.until_status([*ids, *engine.outbox.enqueue(5, "ledger")])
        called = fences(engine)
        assert called == sorted(called)
        assert called[-1] > 1
        assert all(worker.process.poll() is None for worker in (first, second))


@pytest.mark.program("pgbouncer")
@pytest.mark.parametrize("through_pooler", ["false", "true"])
async def test_worker_behind_a_pooler_refuses_the_advisory_elector(cluster, pooler, through_pooler):
    url = pooler.url_as("executor")
    worker = member(cluster, url=url, through_pooler=through_pooler)
    assert await worker.ended() != 0
    assert "pooler" in worker.log.read_text()
    assert not worker.lines("worker_started")


def alone(engine, **more):
    return engine.worker("--standalone", **(ROW_LEASE_SETTINGS | more))


async def test_standalone_instance_leads_from_the_start_and_logs_it(cluster):
    worker = alone(cluster)
    worker_id = await worker.started()
    assert lease(cluster)["holder_id"] == worker_id
    await cluster.until_status(cluster.outbox.enqueue(3, "ledger"))
    [row] = cluster.database.execute(
        "SELECT role FROM leasehold.instances WHERE instance_id = %s", [worker_id]
    )
    assert row["role"] == "standalone"


@pytest.mark.parametrize("elector", ["row", "advisory"])
async def test_standalone_instance_refuses_to_start_if_another_leads(cluster, elector):
    leader = await start_leader(cluster, elector=elector)
    refused = alone(cluster, elector=elector)
    assert await refused.ended() != 0
    told = " ".join(refused.log.read_text().split())
    assert "standalone is refused" in told
    assert re.search(r"If it is dead, its lease ends in \d+ seconds", told)
    assert await leader.started() in told
    assert lease(cluster)["lease_epoch"] == 1
    ids = cluster.outbox.enqueue(3, "ledger")
    await until(lambda: cluster.statuses(ids) == ["accepted"] * 3)


async def test_unreachable_database_does_not_make_an_instance_standalone(cluster):
    ids = cluster.outbox.enqueue(3, "ledger")
    away = make_conninfo(cluster.database.url_as("executor"), port=1)
    worker = alone(cluster, url=away, start_seconds="2")
    assert await worker.ended() != 0
    assert cluster.statuses(ids) == ["pending"] * 3
    assert fences(cluster) == []


async def test_follower_names_the_leader_when_asked_for_the_lease(cluster, caplog):
    cluster.outbox.call("executor", "acquire_lease", CLUSTER_LEASE, "the leader", 60)
    settings = read_settings(
        database_url=cluster.database.url_as("executor"),
        lease_seconds=60,
        listen=False,
        contracts_seconds=0.1,
    )
    async with Instance(settings) as instance:
        await until(lambda: [one for one in instance.elections.electors if one.seen])
        with pytest.raises(NotLeader, match="last known leader: the leader") as raised:
            instance.require_lease(CLUSTER_LEASE)
        assert (raised.value.lease_name, raised.value.holder_id) == (CLUSTER_LEASE, "the leader")
        assert "leader_call_refused" in caplog.text

"""A worker that loses its database loses its leases at once; it recovers by itself."""

from __future__ import annotations

from signal import SIGTERM

import pytest

from tests.support.engine import CUT_OFF, until
from tests.support.restartable_engine import restartable_engine
from tests.support.stream_orders import TARGET, effects_by_stream, enqueue_rounds
from tests.support.tcp_proxy import TcpProxy

# Long enough for a call to be in flight when a busy machine gets to the fault.
SLOW = {"latency_ms": 6000}


@pytest.mark.parametrize("fault", ["cut", "blackhole"])
async def test_worker_that_is_cut_off_stops_at_once_and_recovers_by_itself(engine, fault):
    engine.publish("sms")
    engine.sandbox.set_faults(**SLOW)
    [intent_id] = engine.outbox.enqueue(1)
    url = engine.database.url_as("executor")
    async with TcpProxy(url) as proxy:
        cut_off = engine.worker(url=proxy.through(url), **CUT_OFF)
        cut_off_id = await cut_off.started()
        await engine.until_in_flight(cut_off_id, 1)
        getattr(proxy, fault)()
        await cut_off.logged("lease_lost")
        assert engine.outbox.states(intent_id) == []
        engine.sandbox.set_faults()
        engine.outbox.expire_claims()
        other = engine.worker()
        await engine.until_status([intent_id])
        assert [row["holder"] for row in engine.outbox.ledger(intent_id)] == [
            cut_off_id,
            await other.started(),
        ]
        assert engine.outbox.states(intent_id) == ["ZOMBIE_REQUEUE", "DISPATCHED"]
        assert engine.sandbox.effects("keyed").effects == 1
        other.send(SIGTERM)
        assert await other.ended() == 0
        proxy.heal()
        await engine.until_status(engine.outbox.enqueue(3))
        assert engine.outbox.states(intent_id) == ["ZOMBIE_REQUEUE", "DISPATCHED"]


@pytest.mark.parametrize("fault", ["cut", "blackhole"])
async def test_holder_of_a_stream_that_is_cut_off_is_replaced_and_recovers(engine, fault):
    engine.publish(TARGET, scope="stream")
    engine.sandbox.set_faults(**SLOW)
    ids = enqueue_rounds(engine, streams=1, rounds=3)
    head = ids["s0"][0]
    url = engine.database.url_as("executor")
    async with TcpProxy(url) as proxy:
        cut_off = engine.worker(url=proxy.through(url), **CUT_OFF)
        cut_off_id = await cut_off.started()
        await until(lambda: engine.outbox.pending(head)["begun_at"])
        getattr(proxy, fault)()
        other = engine.worker()
        engine.sandbox.set_faults()
        engine.expire_held(cut_off_id)
        await engine.until_status(ids["s0"])
        assert [row["holder"] for row in engine.outbox.ledger(head)] == [
            cut_off_id,
            await other.started(),
        ]
        other.send(SIGTERM)
        assert await other.ended() == 0
        proxy.heal()
        ids["s0"] += enqueue_rounds(engine, streams=1, rounds=2)["s0"]
        await engine.until_status(ids["s0"])
        assert engine.outbox.states(head) == ["IN_DOUBT", "DISPATCHED"]
        assert effects_by_stream(engine, ids) == ids


async def test_workers_survive_a_restart_of_the_database(sandbox, tmp_path):
    with restartable_engine(sandbox, tmp_path) as engine:
        engine.publish("sms")
        engine.sandbox.set_faults(**SLOW)
        workers = [engine.worker(concurrency="3"), engine.worker(concurrency="3")]
        names = [await worker.started() for worker in workers]
        ids = engine.outbox.enqueue(6)
        for name in names:
            await engine.until_in_flight(name, 3)
        engine.stop_server()
        for worker in workers:
            await worker.logged("lease_lost")
        await engine.start_server()
        engine.outbox.expire_claims()
        engine.sandbox.set_faults()
        await engine.until_status(ids)
        assert engine.sandbox.effects("keyed").doubled_keys == 0
        # Both workers are alive and keep working.
        await engine.until_status(engine.outbox.enqueue(4))
        assert all(worker.process.poll() is None for worker in workers)

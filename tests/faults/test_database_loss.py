"""Losing the database is losing every lease: at once, and until it is back."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from signal import SIGINT, SIGTERM

import psycopg
import pytest

from leasehold.embedded.server import EmbeddedPostgres
from tests.support.database import Database
from tests.support.engine import Engine, until
from tests.support.outbox import Outbox
from tests.support.servers import SETTINGS, Server, available_binaries
from tests.support.tcp_proxy import TcpProxy

# A call that is still under way when a busy machine gets to the trouble.
LATENCY_MS = 4500
LONG_CALLS = {"lease_seconds": 6.0, "call_timeout_seconds": 5.0}


@pytest.mark.parametrize("trouble", ["cut", "blackhole"])
async def test_worker_cut_off_stops_at_once_and_comes_back_by_itself(engine, trouble):
    engine.publish("sms", **LONG_CALLS)
    engine.sandbox.set_faults(latency_ms=LATENCY_MS)
    [intent_id] = engine.outbox.enqueue(1)
    url = engine.database.url_as("executor")
    async with TcpProxy(url) as proxy:
        lonely = engine.worker(url=proxy.through(url))
        lonely_id = await lonely.started()
        await engine.until_in_flight(lonely_id, 1)
        getattr(proxy, trouble)()
        await lonely.logged("lease_lost")
        assert engine.outbox.states(intent_id) == []
        engine.sandbox.set_faults()
        engine.outbox.expire_claims()
        other = engine.worker()
        await engine.until_status([intent_id])
        assert [row["holder"] for row in engine.outbox.ledger(intent_id)] == [
            lonely_id,
            await other.started(),
        ]
        assert engine.outbox.states(intent_id) == ["ZOMBIE_REQUEUE", "DISPATCHED"]
        assert engine.sandbox.effects("keyed").effects == 1
        other.send(SIGTERM)
        assert await other.ended() == 0
        proxy.heal()
        await engine.until_status(engine.outbox.enqueue(3))
        assert engine.outbox.states(intent_id) == ["ZOMBIE_REQUEUE", "DISPATCHED"]


async def test_workers_survive_a_restart_of_the_database(sandbox, tmp_path):
    folder = open_folder()
    binaries = next(iter(available_binaries().values()))
    try:
        with EmbeddedPostgres(folder / "data", binaries=binaries, settings=SETTINGS) as postgres:
            server = Server(postgres.url, binaries.version)
            database = Database(server, server.create_database())
            engine = Engine(database, Outbox(database), sandbox, tmp_path)
            try:
                await restart_under(engine, postgres, folder)
            finally:
                engine.close()
                server.close()
                database.server = Server(postgres.url, binaries.version)  # it was restarted
                database.close()
                database.server.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def restart_under(engine: Engine, postgres: EmbeddedPostgres, folder: Path) -> None:
    engine.publish("sms", **LONG_CALLS)
    engine.sandbox.set_faults(latency_ms=LATENCY_MS)
    workers = [engine.worker(concurrency="3"), engine.worker(concurrency="3")]
    names = [await worker.started() for worker in workers]
    ids = engine.outbox.enqueue(6)
    for name in names:
        await engine.until_in_flight(name, 3)
    os.kill(postmaster_of(folder), SIGINT)
    for worker in workers:
        await worker.logged("lease_lost")
    await asyncio.to_thread(postgres.ensure_running)
    engine.outbox = Outbox(engine.database)
    engine.sandbox.set_faults()
    await until(lambda: is_back(engine))
    await engine.until_status(ids)
    assert engine.sandbox.effects("keyed").doubled_keys == 0
    # And they go on working, both of them alive.
    await engine.until_status(engine.outbox.enqueue(4))
    assert all(worker.process.poll() is None for worker in workers)


def open_folder() -> Path:
    """As root the server runs as another user, who must be able to enter this folder."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-restart-"))
    folder.chmod(0o711)
    return folder


def postmaster_of(folder: Path) -> int:
    [written] = folder.rglob("postmaster.pid")
    return int(written.read_text().splitlines()[0])


def is_back(engine: Engine) -> bool:
    try:
        engine.database.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True

"""Workers with Python gateways: plain functions, functions that block, and where they come from."""

from __future__ import annotations

from signal import SIGTERM

import pytest

from leasehold import Instance, read_settings
from tests.support.elections import ROW_LEASE_SETTINGS
from tests.support.engine import PATIENT_CALLS, until

GATEWAYS = "tests.support.python_gateways"


def publish(engine, function, **terms):
    gateway = {"kind": "python", "function": f"{GATEWAYS}:{function}"}
    engine.publish("own", gateway=gateway, **terms)


def settings_of(engine, **more):
    quick = {"heartbeat_seconds": 0.4, "reaper_seconds": 0.3, "shutdown_seconds": 2}
    url = engine.database.url_as("executor")
    return read_settings(database_url=url, **(quick | PATIENT_CALLS | more))


@pytest.mark.parametrize("scope", ["item", "cluster"])
async def test_thread_that_outlives_its_timeout_keeps_its_slot_until_it_ends(
    engine, scope, tmp_path, monkeypatch
):
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    publish(engine, "occupy", scope=scope, call_timeout_seconds=0.3, connect_timeout_seconds=0.1)
    [hanging] = engine.outbox.enqueue(1, "own")
    async with Instance(settings_of(engine, concurrency=1)) as instance:

        def stuck_calls():
            labels = {"worker_id": instance.worker_id}
            return instance.metrics.registry.get_sample_value("leasehold_stuck_calls", labels)

        await until(lambda: engine.outbox.states(hanging))
        [row] = engine.outbox.ledger(hanging)
        assert (row["state"], row["reason"]) == ("IN_DOUBT", "timeout")
        assert stuck_calls() == instance.stuck_calls == 1
        # It has the only slot, so nothing else is called.
        assert engine.statuses([hanging]) == ["in_doubt"]
        (tmp_path / "unblock").touch()
        await engine.until_status([hanging])
        assert stuck_calls() == 0


async def test_worker_does_not_wait_for_a_thread_that_does_not_end(engine, tmp_path):
    publish(engine, "occupy", call_timeout_seconds=0.3, connect_timeout_seconds=0.1)
    [hanging] = engine.outbox.enqueue(1, "own")
    worker = engine.worker(test_folder=str(tmp_path), shutdown_seconds="0.5")
    await engine.until_status([hanging])
    worker.send(SIGTERM)
    assert await worker.ended() == 0
    assert worker.lines("calls_abandoned")[0]["calls"] == 1


@pytest.mark.parametrize("scope", ["item", "cluster"])
async def test_function_that_exits_does_not_end_its_worker(engine, scope, tmp_path):
    publish(engine, "leave", scope=scope)
    [intent_id] = engine.outbox.enqueue(1, "own")
    worker = engine.worker(test_folder=str(tmp_path), **ROW_LEASE_SETTINGS)
    await engine.until_status([intent_id])
    assert engine.outbox.states(intent_id) == ["IN_DOUBT", "DISPATCHED"]
    [doubted, _] = engine.outbox.ledger(intent_id)
    assert (doubted["reason"], doubted["detail"]) == ("exception", "SystemExit: 3")
    worker.send(SIGTERM)
    assert await worker.ended() == 0


async def test_async_function_that_blocks_the_loop_is_named(engine):
    publish(engine, "stall", lease_seconds=30, call_timeout_seconds=20)
    worker = engine.worker()
    [intent_id] = engine.outbox.enqueue(1, "own")
    blocked = await worker.logged("loop_blocked")
    assert (blocked["level"], blocked["function"]) == ("warning", f"{GATEWAYS}:stall")
    assert blocked["place"].startswith("python_gateways.py:")
    await engine.until_status([intent_id])
    assert len(worker.lines("loop_blocked")) == 1


async def test_blocked_loop_is_counted(engine):
    publish(engine, "stall", lease_seconds=30, call_timeout_seconds=20)
    async with Instance(settings_of(engine)) as instance:
        await engine.until_status(engine.outbox.enqueue(1, "own"))
        labels = {"worker_id": instance.worker_id}
        value = instance.metrics.registry.get_sample_value
        assert value("leasehold_loop_blocked_total", labels) >= 1


@pytest.mark.parametrize("is_named", [True, False])
async def test_function_is_imported_from_the_app_dir_or_the_working_directory(
    engine, tmp_path, is_named
):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "own_gateways.py").write_text("def send(submission): ...")
    engine.publish("own", gateway={"kind": "python", "function": "own_gateways:send"})
    [intent_id] = engine.outbox.enqueue(1, "own")
    given = ["--app-dir", str(folder)] if is_named else []
    worker = engine.worker(*given, folder=tmp_path if is_named else folder)
    await engine.until_status([intent_id])
    worker.send(SIGTERM)
    assert await worker.ended() == 0

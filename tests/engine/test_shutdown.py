"""How a worker stops: in order, at the second signal, and what it leaves behind."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from signal import SIGHUP, SIGINT, SIGTERM

import pytest

from tests.support.engine import until

# A process with a task that swallows every cancellation.
ENDLESS = """
import asyncio
from leasehold.observe.logs import configure_logs
from leasehold.runtime.process import before_exit, on_signals

async def cling():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue

async def main():
    configure_logs("json", "info")
    task, stop = asyncio.create_task(cling()), asyncio.Event()
    with on_signals(stop.set, lambda: None, lambda: 0.3):
        print("ready", flush=True)
        await stop.wait()

with before_exit(lambda: print("cleaned up", flush=True)):
    asyncio.run(main())
"""


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
async def test_stopped_worker_finishes_what_is_in_flight_and_claims_nothing_more(engine, number):
    engine.publish("sms")
    engine.sandbox.set_faults(latency_ms=600)
    ids = engine.outbox.enqueue(30)
    worker = engine.worker(concurrency="4")
    await until(lambda: [row for row in map(engine.outbox.pending, ids) if row["claimed_by"]])
    worker.send(number)
    assert await worker.ended() == 0
    stopped = worker.lines("worker_stopped")
    assert stopped[0]["left_to_the_reaper"] == 0
    statuses = engine.statuses(ids)
    assert 1 <= statuses.count("accepted") <= 4
    assert statuses.count("pending") == 30 - statuses.count("accepted")
    assert not [row for row in map(engine.outbox.pending, ids) if row and row["claimed_by"]]
    assert engine.sandbox.effects("keyed").effects == statuses.count("accepted")


async def test_claims_that_were_not_begun_are_given_back_at_once(engine):
    engine.publish("bank", "lookup", lease_seconds=60)
    ids = engine.outbox.enqueue(3, "bank")
    worker = engine.worker(fault="before_begin:wait")
    await worker.logged("fault")
    assert engine.outbox.pending(ids[0])["claimed_by"]
    worker.send(SIGTERM)
    assert await worker.ended() == 0
    for intent_id in ids:
        row = engine.outbox.pending(intent_id)
        assert (row["claimed_by"], row["attempt_count"]) == (None, 0)
    assert engine.outbox.states(ids[0]) == []


async def test_call_that_outlasts_the_shutdown_is_recorded_as_in_doubt(engine):
    engine.publish("sms", call_timeout_seconds=25, lease_seconds=30)
    engine.sandbox.set_faults(latency_ms=60_000)
    [intent_id] = engine.outbox.enqueue(1)
    worker = engine.worker(shutdown_seconds="0.2")
    await engine.until_claimed(intent_id)
    worker.send(SIGTERM)
    assert await worker.ended() == 0
    [row] = engine.outbox.ledger(intent_id)
    assert (row["state"], row["reason"]) == ("IN_DOUBT", "shutdown")


async def test_second_signal_is_immediate_and_leaves_the_rest_to_the_reaper(engine):
    engine.publish("sms", call_timeout_seconds=25, lease_seconds=30)
    engine.sandbox.set_faults(latency_ms=60_000)
    [intent_id] = engine.outbox.enqueue(1)
    worker = engine.worker(shutdown_seconds="20")
    await engine.until_claimed(intent_id)
    worker.send(SIGTERM)
    await worker.logged("stop_requested")
    worker.send(SIGTERM)
    assert await worker.ended() == 128 + SIGTERM
    assert engine.outbox.pending(intent_id)["claimed_by"]
    assert engine.outbox.states(intent_id) == []


async def test_process_that_does_not_end_after_a_signal_is_ended_when_its_time_is_over():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ENDLESS, stdout=PIPE, stderr=STDOUT
    )
    assert await process.stdout.readline() == b"ready\n"
    process.send_signal(SIGTERM)
    output, _ = await process.communicate()
    assert process.returncode == 1
    assert b"stop_overdue" in output
    assert output.splitlines()[-1] == b"cleaned up"


async def test_sighup_reloads_settings_and_refuses_invalid_ones(engine, tmp_path):
    engine.publish("sms")
    settings = tmp_path / "settings"
    settings.write_text("LEASEHOLD_CONCURRENCY=1\n")
    worker = engine.worker("--settings-file", str(settings))
    worker_id = await worker.started()

    def concurrency():
        [row] = engine.database.execute(
            "SELECT detail FROM leasehold.instances WHERE instance_id = %s", [worker_id]
        ) or [{"detail": {}}]
        return row["detail"].get("concurrency")

    await until(lambda: concurrency() == 1)
    settings.write_text("LEASEHOLD_CONCURRENCY=7\n")
    worker.send(SIGHUP)
    await until(lambda: concurrency() == 7)
    settings.write_text("LEASEHOLD_CONCURRENCY=0\n")
    worker.send(SIGHUP)
    await worker.logged("settings_refused")
    assert concurrency() == 7

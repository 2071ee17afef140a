"""How an instance learns of work: by notifications and by polling, behind a pooler by polling."""

from __future__ import annotations

import asyncio
from urllib.request import urlopen

import pytest

from leasehold import Instance, read_settings
from leasehold.executor import claim_loop
from leasehold.executor.leader.executor import LeaderExecutor
from leasehold.store.postgres.claims import PostgresClaims
from leasehold.store.postgres.leased_items import PostgresLeasedItems
from tests.support.engine import until


async def test_hint_wakes_an_instance_that_would_poll_in_a_minute(engine, monkeypatch):
    monkeypatch.setattr(claim_loop, "POLL_SECONDS_MIN", 60.0)
    # Long timeouts: a call that timed out would be retried only at the next poll.
    engine.publish("sms", lease_seconds=30, call_timeout_seconds=25, connect_timeout_seconds=20)
    settings = read_settings(database_url=engine.database.url_as("executor"), poll_seconds=60)
    async with Instance(settings):
        await until(
            lambda: engine.database.execute(
                "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND state = 'idle'"
            )
        )
        # The poll after LISTEN may find the first; only a hint leads to the others.
        for _ in range(3):
            ids = engine.outbox.enqueue(1)
            engine.outbox.call("ingest", "notify_targets", ["sms"])
            await engine.until_status(ids)


def heard_while(monkeypatch, engine, reading, hearing):
    """Deliver a hint after a read, but before its answer is used. Returns a list that will hold
    the id of the intent that the read could not see.
    """
    [store, read], [executor, hear] = reading, hearing
    really_read, really_hear = getattr(store, read), getattr(executor, hear)
    heard, hidden = asyncio.Event(), []

    def hear_it(self, *arguments):
        really_hear(self, *arguments)
        heard.set()

    async def read_before(self, *arguments):
        found = await really_read(self, *arguments)
        if not hidden:
            hidden.extend(engine.outbox.enqueue(1))
            heard.clear()
            engine.outbox.call("ingest", "notify_targets", ["sms"])
            await heard.wait()
        return found

    monkeypatch.setattr(executor, hear, hear_it)
    monkeypatch.setattr(store, read, read_before)
    return hidden


async def test_hint_that_comes_while_a_worker_claims_is_not_lost(engine, monkeypatch):
    monkeypatch.setattr(claim_loop, "POLL_SECONDS_MIN", 60.0)
    engine.publish("sms", lease_seconds=30, call_timeout_seconds=25, connect_timeout_seconds=20)
    hidden = heard_while(
        monkeypatch,
        engine,
        (PostgresClaims, "claim_outbox_batch"),
        (claim_loop.ClaimLoop, "work_is_due"),
    )
    settings = read_settings(database_url=engine.database.url_as("executor"), poll_seconds=60)
    async with Instance(settings):
        await until(lambda: hidden)
        await engine.until_status(hidden)


@pytest.mark.parametrize("reading", ["refresh_due_rows", "refresh_schedule"])
async def test_hint_that_comes_while_a_leader_reads_is_not_lost(engine, monkeypatch, reading):
    engine.publish("sms", scope="cluster")
    hidden = heard_while(
        monkeypatch, engine, (PostgresLeasedItems, reading), (LeaderExecutor, "hint")
    )
    settings = read_settings(
        database_url=engine.database.url_as("executor"),
        cluster_lease_seconds=60,
        schedule_refresh_seconds=50,
    )

    def provoked():
        if not hidden:  # only a hint causes the first refresh
            engine.outbox.call("ingest", "notify_targets", ["sms"])
        return hidden

    async with Instance(settings):
        await until(provoked)
        await engine.until_status(hidden)


@pytest.mark.program("pgbouncer")
async def test_worker_behind_a_transaction_pooler_finds_work_by_polling(engine, pooler):
    engine.publish("sms")
    engine.publish("bank", "lookup")
    worker = engine.worker(url=pooler.url_as("executor"), through_pooler="true")
    await worker.started()
    await engine.until_status(engine.outbox.enqueue(20) + engine.outbox.enqueue(5, "bank"))


async def test_metrics_are_served_with_the_state_of_the_queue(engine):
    engine.publish("sms")
    held = engine.outbox.enqueue(2, delay_seconds=3600)
    worker = engine.worker("--metrics-port", "0")
    await worker.started()
    port = (await worker.logged("metrics_served"))["port"]

    def exposition() -> str:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return answer.read().decode()

    await until(lambda: f"leasehold_queue_depth {len(held)}.0" in exposition())
    await engine.until_status(engine.outbox.enqueue(3))
    # The worker counts a result right after the database has it.
    dispatched = 'leasehold_attempts_total{state="DISPATCHED",target="sms",worker_id='
    await until(lambda: dispatched in exposition())
    assert "leasehold_reaper_runs_total" in exposition()

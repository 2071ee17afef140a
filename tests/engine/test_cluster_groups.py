"""A group of targets and its leader: what it serves, what it reports, how it is configured."""

from __future__ import annotations

import asyncio
import json
from signal import SIGTERM

import pytest

from leasehold import Instance, read_settings
from leasehold.coordination.row_lease import RowLease
from leasehold.domain.timing import Timings
from leasehold.executor.leader import reader
from leasehold.runtime import notifier
from leasehold.store.postgres import notifications
from leasehold.store.postgres.store import PostgresStore
from tests.support.elections import ROW_LEASE_SETTINGS, fences, lease, logged_lines, start_leader
from tests.support.engine import until
from tests.support.outbox import CLUSTER_LEASE
from tests.support.serve_process import Serving
from tests.support.tcp_proxy import TcpProxy

BAD_GATEWAY = {"kind": "python", "function": "no_such_module:submit"}


@pytest.fixture
def group(engine):
    """Two targets under one lease."""
    for target in ("ledger", "book"):
        engine.publish(target, scope="cluster")
    return engine


def settings_of(engine, url=None, **more):
    given = {"cluster_lease_seconds": 60, "schedule_refresh_seconds": 0.1, "contracts_seconds": 0.1}
    url = url or engine.database.url_as("executor")
    return read_settings(database_url=url, lease_seconds=60, **(given | more))


async def test_worker_that_serves_only_part_of_a_group_does_not_start(group):
    group.publish("sms")
    worker = group.worker(targets='["ledger", "sms"]', **ROW_LEASE_SETTINGS)
    assert await worker.ended() != 0
    said = " ".join(worker.log.read_text().split())
    assert f"only part of the group '{CLUSTER_LEASE}': while it leads, nobody executes book" in said
    assert not worker.lines("leader_acquired")


async def test_leader_of_named_targets_reports_later_ones_that_it_does_not_execute(group):
    leader = await start_leader(group, targets='["ledger", "book"]', **ROW_LEASE_SETTINGS)
    assert not leader.lines("group_served_in_part")
    group.publish("annex", scope="cluster")
    said = await leader.logged("group_served_in_part")
    assert said["level"] == "error"
    assert (said["lease_name"], said["not_executed"]) == (CLUSTER_LEASE, ["annex"])
    await group.until_status(group.outbox.enqueue(2, "book"))
    assert len(leader.lines("group_served_in_part")) == 1


async def test_leader_that_cannot_open_one_gateway_executes_the_other_targets(group):
    group.publish("book", scope="cluster", gateway=BAD_GATEWAY)
    leader = await start_leader(group, **ROW_LEASE_SETTINGS)
    [said] = logged_lines(leader, "target_refused", target="book")
    assert said["level"] == "error"
    [stuck] = group.outbox.enqueue(1, "book")
    await group.until_status(group.outbox.enqueue(2, "ledger"))
    assert group.statuses([stuck]) == ["pending"]
    assert not leader.lines("leader_stepped_down")


async def test_call_that_was_given_back_is_unmarked_and_can_be_cancelled(group):
    """The leader cannot open the contract version of the intent. It removes the mark, although
    another call of the same batch goes on.
    """
    group.publish("book", scope="cluster", gateway=BAD_GATEWAY)
    [stuck] = group.outbox.enqueue(1, "book")
    group.publish("book", scope="cluster")
    [slow] = group.outbox.enqueue(1, "ledger")
    group.sandbox.set_faults(latency_ms=700)
    leader = await start_leader(group, **ROW_LEASE_SETTINGS)
    await leader.logged("contract_refused")
    group.outbox.enqueue(1, "ledger")

    def cancelled():
        [row] = group.outbox.call("operator", "cancel_intent", stuck, "ann", "a test")
        return row["cancel_intent"] == "cancelled"

    await until(cancelled)
    await group.until_status([slow])


async def test_leader_uses_the_configured_holder_id(group):
    await start_leader(group, holder_id="sm-01", **ROW_LEASE_SETTINGS)
    assert lease(group)["holder_id"] == "sm-01"

    def heartbeat():
        return group.database.execute("SELECT * FROM leasehold.leader_heartbeat")

    [first] = await until(heartbeat)
    assert (first["lease_name"], first["instance_id"], first["lease_epoch"]) == (
        CLUSTER_LEASE,
        "sm-01",
        1,
    )
    assert first["detail"] == {"in_flight": 0, "slots": 10}
    await until(lambda: heartbeat()[0]["last_seen_at"] > first["last_seen_at"])


async def test_leader_measures_how_long_intents_had_been_due(group):
    async with Instance(settings_of(group)) as instance:
        await group.until_status(group.outbox.enqueue(3, "ledger"))
        labels = {"worker_id": instance.worker_id, "target": "ledger"}
        value = instance.metrics.registry.get_sample_value
        assert value("leasehold_queue_delay_seconds_count", labels) == 3
        assert value("leasehold_queue_delay_seconds_sum", labels) > 0


async def test_row_that_the_cursor_missed_is_found_by_the_reconcile_and_counted(group, monkeypatch):
    monkeypatch.setattr(reader, "RECONCILE_SECONDS", 0.3)
    async with Instance(settings_of(group)) as instance:

        def missed():
            labels = {"worker_id": instance.worker_id, "lease_name": CLUSTER_LEASE}
            return instance.metrics.registry.get_sample_value(
                "leasehold_schedule_missed_total", labels
            )

        await group.until_status(group.outbox.enqueue(2, "ledger"))
        assert missed() == 0
        # No real writer can do this: commit a row with a time before it began.
        with group.database.connect(autocommit=False) as writer:
            entries = json.dumps([{"target": "ledger", "payload": 1}])
            [row] = writer.execute(
                "SELECT intent_id FROM leasehold.enqueue_intents(%s)", [entries]
            ).fetchall()
            writer.execute(
                "UPDATE leasehold.outbox_pending SET last_modified_at = last_modified_at"
                " - interval '1 hour' WHERE intent_id = %s",
                [row["intent_id"]],
            )
        await group.until_status([row["intent_id"]])
        assert missed() == 1


async def test_leader_adopts_a_new_concurrency_while_it_runs(group):
    settings = settings_of(group, concurrency=2)
    async with Instance(settings) as instance:
        await group.until_status(group.outbox.enqueue(1, "ledger"))
        group.sandbox.set_faults(latency_ms=300)
        instance.apply(settings.model_copy(update={"concurrency": 10}))
        ids = group.outbox.enqueue(10, "ledger")
        await until(lambda: instance.elections.in_flight > 2)
        await group.until_status(ids)


async def test_intent_enqueued_at_a_follower_is_executed_at_the_next_refresh_of_the_leader(
    group, tmp_path
):
    """There is no notification, and the next reconcile comes too late for any test."""
    leader = await start_leader(
        group, listen="false", **(ROW_LEASE_SETTINGS | {"schedule_refresh_seconds": "1"})
    )
    follower = Serving(group.database, tmp_path / "serving.log", **ROW_LEASE_SETTINGS)
    try:
        async with await follower.client() as client:
            intent = {"target": "ledger", "payload": {"amount": "1"}, "idempotency_key": "order"}
            answer = await client.post("/v1/intents", json=intent)
            ready = (await client.get("/readyz")).json()
        assert answer.status_code == 201, answer.text
        assert ready["scopes"][f"cluster/{CLUSTER_LEASE}"]["mode"] == "follower"
        intent_id = answer.json()["intent_id"]
        await group.until_status([intent_id])
        [row] = group.outbox.ledger(intent_id)
        assert row["holder"] == await leader.started()
        assert fences(group) == [1]
    finally:
        follower.close()


@pytest.mark.parametrize("trouble", ["cut", "blackhole"])
async def test_follower_that_lost_its_notifications_reports_what_is_stale(
    group, caplog, monkeypatch, trouble
):
    monkeypatch.setattr(notifier, "LISTEN_SECONDS", 0.2)
    monkeypatch.setattr(notifications, "_ANSWER_SECONDS", 0.3)
    group.outbox.call("executor", "acquire_lease", CLUSTER_LEASE, "the leader", 60)
    url = group.database.url_as("executor")
    async with (
        TcpProxy(url, b"leasehold notifier") as proxy,
        Instance(settings_of(group, proxy.through(url))) as instance,
    ):
        await until(
            lambda: group.database.execute(
                "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'leasehold notifier%%'"
                " AND state = 'idle' AND datname = current_database()"
            )
        )
        await until(lambda: [one for one in instance.elections.electors if one.seen])
        getattr(proxy, trouble)()
        await until(lambda: "notifications_lost" in caplog.text)
        [said] = [
            record for record in caplog.records if "notifications_lost" in record.getMessage()
        ]
        assert said.levelname == "ERROR"
        assert "role=follower" in said.getMessage()
        assert "which work is due and which leases are free" in said.getMessage()


async def test_renewal_is_trusted_for_the_time_it_asked_for_although_settings_changed(group):
    timings = [Timings(cluster_lease_seconds=30)]
    settings = settings_of(group)
    async with PostgresStore(settings.required_database_url(), settings.pool()) as store:
        elector = RowLease(store, CLUSTER_LEASE, "holder", lambda: timings[-1])
        answer = await elector.acquire()
        with group.database.connect(autocommit=False) as other:
            other.execute("SELECT 1 FROM leasehold.leases FOR UPDATE")
            renewal = asyncio.create_task(elector.renew(answer.lease, elector.renewal_seconds))
            await until(
                lambda: group.database.execute(
                    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                    " AND query LIKE '%renew_lease%' AND datname = current_database()"
                )
            )
            timings.append(Timings(cluster_lease_seconds=600))
        renewed = await renewal
    assert (renewed.trust_seconds, renewed.start_seconds) == (30, 30)
    assert renewed.expires_at == lease(group)["expires_at"]
    assert (renewed.expires_at - lease(group)["renewed_at"]).total_seconds() == 30


async def test_calls_that_a_leader_did_not_make_before_it_resigned_are_not_in_doubt(group):
    first = group.worker(fault="after_claim:wait", **ROW_LEASE_SETTINGS)
    await first.logged("due_queue_built")
    # Started before the fault: the leader aborts calls that wait for longer than three leases.
    second = group.worker(**ROW_LEASE_SETTINGS)
    await second.started()
    ids = group.outbox.enqueue(3, "ledger")
    await first.logged("fault")
    first.send(SIGTERM)
    assert await first.ended() == 0
    await second.logged("due_queue_built")
    await group.until_status(ids)
    assert [group.outbox.states(one) for one in ids] == [["DISPATCHED"]] * 3
    assert fences(group) == [2, 2, 2]


async def test_leader_goes_on_as_soon_as_a_rate_allows_the_next_call(engine):
    engine.publish("ledger", scope="cluster", rate_per_second=10)
    ids = engine.outbox.enqueue(30, "ledger")
    # Nothing else would have it look again before everybody's patience is over.
    engine.worker(**ROW_LEASE_SETTINGS | {"schedule_refresh_seconds": "30"})
    await engine.until_status(ids)
    received = [entry.received_at for entry in engine.sandbox.requests()]
    assert received[-1] - received[0] >= 29 / 10 - 1  # the first may arrive late

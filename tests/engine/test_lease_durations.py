"""A lease changes its duration while somebody holds it: nobody trusts it for longer than granted.

The duration of a claim comes from the contract, that of a leader's lease from the settings. Both
can change while the process runs.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from leasehold import Instance, read_settings
from leasehold.domain.errors import DatabaseUnavailable
from tests.support.elections import ROW_LEASE_SETTINGS, lease
from tests.support.engine import SHORT_CALLS, SHORT_LEASE, SHORT_LEASE_SECONDS, until
from tests.support.tcp_proxy import TcpProxy

HANGS = {"latency_ms": 600_000}
PATIENT = {"lease_seconds": 3600, "call_timeout_seconds": 3500, "quarantine_seconds": 7200}


def settings_of(engine, **given):
    short = {"heartbeat_seconds": 0.2, "contracts_seconds": 0.1, "shutdown_seconds": 0.1}
    url = given.pop("url", engine.database.url_as("executor"))
    return read_settings(database_url=url, **(short | {"reaper_seconds": 1} | given))


def granted(engine, intent_id):
    """For how long the claim of an intent was last granted, and until when."""
    row = engine.outbox.pending(intent_id)
    return row["lease_seconds"], row["lease_expires_at"]


def current_lease(instance):
    served = instance._items.targets.current.get("sms")
    return served and served.lease_seconds


async def renewed(engine, intent_id):
    """Wait for the next renewal of a claim; return how long it lasts."""
    _, before = granted(engine, intent_id)
    await until(lambda: granted(engine, intent_id)[1] > before)
    return granted(engine, intent_id)[0]


def trusted_until(instance):
    """Until when the instance trusts each of its claims, on its own clock."""
    return {one.claimed.intent_id: one.trust.ends_at for one in instance._items.slots.all()}


def assert_trusted_no_longer_than_granted(engine, instance):
    """Compare the end of trust with the end of the lease, both on the clock of the instance.

    Trust is read first: meanwhile a renewal can only extend the lease.
    """
    trusted = trusted_until(instance)
    assert trusted
    for intent_id, ends_at in trusted.items():
        row = engine.outbox.pending(intent_id)
        left_seconds = (row["lease_expires_at"] - row["seen_at"]).total_seconds()
        assert ends_at <= instance._items.slots.clock() + left_seconds


@pytest.mark.parametrize("changed", ["contract", "settings"])
async def test_claim_taken_before_a_change_of_the_lease_keeps_the_duration_it_has(engine, changed):
    """The next claim has the new one, longer or shorter; renewals of the old one do not."""
    engine.sandbox.set_faults(**HANGS)
    claimed = {}
    settings = settings_of(engine, lease_seconds=3000)
    engine.publish(**PATIENT)
    async with Instance(settings) as instance:
        for seconds in (3000, 60, 900):
            if changed == "contract":
                engine.publish(**(PATIENT | {"lease_seconds": seconds, "call_timeout_seconds": 50}))
            else:
                engine.publish(**(PATIENT | {"call_timeout_seconds": 50}))
                instance.apply(settings.model_copy(update={"lease_seconds": seconds}))
            await until(lambda s=seconds: current_lease(instance) == s)
            [intent_id] = engine.outbox.enqueue()
            # The database may know of a claim before its answer has reached the instance.
            await until(lambda one=intent_id: one in trusted_until(instance))
            claimed[intent_id] = seconds
            assert_trusted_no_longer_than_granted(engine, instance)
        for _ in range(2):
            for intent_id, seconds in claimed.items():
                assert await renewed(engine, intent_id) == seconds
            assert_trusted_no_longer_than_granted(engine, instance)
        assert len(instance._items.slots) == len(claimed)


async def test_leader_trusts_a_lease_that_is_shortened_no_longer_than_granted(engine):
    """The renewal that shortens the lease is granted, but its answer never arrives."""
    engine.publish("ledger", **(PATIENT | {"scope": "cluster", "call_timeout_seconds": 50}))
    url = engine.database.url_as("executor")
    async with TcpProxy(url) as proxy:
        settings = settings_of(
            engine,
            url=proxy.through(url),
            cluster_lease_seconds=3000,
            cluster_renew_seconds=1000,  # never: the test renews
            statement_seconds=300,
            lease_seconds=3000,
            pool_size_min=10,  # a new connection would need answers
        )
        async with Instance(settings) as instance:
            # The promotion includes a renewal.
            elector = await until(lambda: promoted_elector(instance))
            await until(lambda: len(sessions(engine)) >= settings.pool_size_min)
            clock = instance._items.slots.clock
            proxy.swallow_answers()
            shorter = {"cluster_lease_seconds": 60, "cluster_renew_seconds": 15}
            instance.apply(settings.model_copy(update=shorter))
            renewal = asyncio.create_task(elector.confirm(elector.term))
            await until(lambda: left(engine) < 100)
            now = clock()
            trusted_until = now + elector.term.seconds_left(now)
            left_seconds = left(engine)
            assert trusted_until <= clock() + left_seconds
            proxy.cut()
            with pytest.raises(DatabaseUnavailable):
                await renewal


def promoted_elector(instance):
    """The elector of an instance that leads and has been promoted."""
    for elector in instance.elections.electors:
        if elector.is_leader and elector._session._executor._is_promoted:
            return elector
    return None


def sessions(engine):
    return engine.database.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        "   AND application_name = 'leasehold' AND state = 'idle'"
    )


def left(engine):
    [row] = engine.database.execute(
        "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 AS seconds"
        "  FROM leasehold.leases WHERE lease_name = %s",
        [lease(engine)["lease_name"]],
    )
    return row["seconds"]


@pytest.mark.parametrize("scope", ["item", "cluster"])
async def test_call_that_outlives_three_leases_is_aborted_whatever_its_timeout(
    engine, scope, tmp_path
):
    """The intent was accepted under a contract that allows a call of an hour."""
    gateway = {"kind": "python", "function": "tests.support.python_gateways:hang"}
    engine.publish(scope=scope, gateway=gateway, **PATIENT)
    [intent_id] = engine.outbox.enqueue()
    engine.publish(scope=scope, gateway=gateway, **SHORT_LEASE)  # the lease that is granted
    short = ROW_LEASE_SETTINGS | SHORT_CALLS | {"cluster_lease_seconds": str(SHORT_LEASE_SECONDS)}
    worker = engine.worker(test_folder=str(tmp_path), **short)
    await worker.logged("call_aborted")
    await engine.until_status([intent_id])
    assert engine.outbox.states(intent_id) == ["IN_DOUBT", "DISPATCHED"]
    aborted = engine.outbox.ledger(intent_id)[0]
    assert aborted["reason"] == "aborted"
    called_at = datetime.fromtimestamp((tmp_path / "hang").stat().st_mtime, UTC)
    assert aborted["finished_at"] - called_at > timedelta(seconds=2 * SHORT_LEASE_SECONDS)

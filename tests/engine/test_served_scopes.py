"""An instance runs what its database says it serves, and nothing else."""

from __future__ import annotations

import pytest

from leasehold import Instance, read_settings
from leasehold.store.postgres.database import PostgresDatabase
from tests.support.engine import PATIENT_CALLS
from tests.support.outbox import CLUSTER_LEASE

COUNTING = {"kind": "python", "function": "tests.support.python_gateways:count"}


@pytest.mark.parametrize("served", ["item", "stream", "cluster"])
async def test_targets_of_a_scope_that_is_not_served_are_left_alone(engine, monkeypatch, served):
    monkeypatch.setattr(PostgresDatabase, "scopes", frozenset({served}))
    ids = {}
    for scope in ("item", "stream", "cluster"):
        engine.publish(scope, scope=scope, gateway=COUNTING)
        stream = {"stream": "a"} if scope == "stream" else {}
        [ids[scope]] = engine.outbox.enqueue(1, scope, **stream)
    settings = read_settings(
        database_url=engine.database.url_as("executor"),
        lease_seconds=60,
        reaper_seconds=0.3,
        shutdown_seconds=2,
        contracts_seconds=0.1,
        schedule_refresh_seconds=0.1,
        **PATIENT_CALLS,
    )
    async with Instance(settings) as instance:
        await engine.until_status([ids[served]])
        # Another one, so that every service has had its turn.
        stream = {"stream": "b"} if served == "stream" else {}
        await engine.until_status(engine.outbox.enqueue(1, served, **stream))
        assert {name.partition("/")[0] for name in instance.scopes()} == {served}
    others = [ids[scope] for scope in ids if scope != served]
    assert engine.statuses(others) == ["pending", "pending"]
    assert all(engine.outbox.pending(one)["begun_at"] is None for one in others)
    rows = engine.database.execute(
        "SELECT DISTINCT CASE WHEN target IS NULL THEN lease_name ELSE 'of streams' END AS lease"
        "  FROM leasehold.leases WHERE lease_epoch > 0"
    )
    granted = {row["lease"] for row in rows} & {"of streams", CLUSTER_LEASE}
    assert granted == {"stream": {"of streams"}, "cluster": {CLUSTER_LEASE}}.get(served, set())

"""A contract that an instance cannot serve costs its own target, and no other."""

from __future__ import annotations

import pytest

from tests.support.elections import ROW_LEASE_SETTINGS
from tests.support.engine import SHORT_CALLS, SHORT_LEASE

# Terms that no worker with the timings of the tests can serve, and the reason that it logs.
IMPOSSIBLE = {
    "heartbeat": (
        {"lease_seconds": 1, "call_timeout_seconds": 0.9, "connect_timeout_seconds": 0.5},
        {"pool_wait_seconds": "0.1", "statement_seconds": "0.2", "lock_seconds": "0.1"},
        "heartbeat_seconds (0.4) must be less than lease_seconds / 3 (0.333333): two heartbeats",
    ),
    "result": (
        {"lease_seconds": 1.5, "call_timeout_seconds": 1.2, "connect_timeout_seconds": 0.5},
        {"shutdown_seconds": "1"},
        "and heartbeat_seconds (0.4) together must be less than lease_seconds (1.5): otherwise the",
    ),
    "call": (
        {"lease_seconds": 30, "call_timeout_seconds": 25},
        {"lease_seconds": "3"},
        "call_timeout_seconds (25) must be less than lease_seconds (3)",
    ),
    "leader's call": (
        {
            "scope": "cluster",
            "lease_name": "group",
            "lease_seconds": 5,
            "call_timeout_seconds": 3,
            "connect_timeout_seconds": 1,
        },
        ROW_LEASE_SETTINGS | {"cluster_lease_seconds": "2"},
        "call_timeout_seconds (3) must be less than cluster_lease_seconds (2)",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
async def test_contract_with_impossible_timings_costs_only_its_own_target(engine, case):
    terms, settings, reason = IMPOSSIBLE[case]
    more = {name: value for name, value in terms.items() if name in ("scope", "lease_name")}
    more |= SHORT_LEASE
    engine.publish("good", **more)
    engine.publish("bad", **({"quarantine_seconds": 60} | terms))
    [bad] = engine.outbox.enqueue(1, "bad")
    worker = engine.worker(**SHORT_CALLS | settings)
    await worker.started()
    await engine.until_status(engine.outbox.enqueue(3, "good"))
    [refused] = worker.lines("target_refused")
    assert refused["target"] == "bad"
    assert reason in refused["error"]
    assert engine.statuses([bad]) == ["pending"]

    engine.publish("bad", **more)
    await engine.until_status(engine.outbox.enqueue(1, "bad"))


# Terms that an earlier release published, and the reason that a worker logs today.
UNSAFE = {
    "header": ({"headers": {"X-Auth-Token": "hunter2"}}, "X-Auth-Token is a secret"),
    "host": ({"allow_hosts": ["sms.internal:443"]}, "without a port"),
}


@pytest.mark.parametrize("case", UNSAFE)
async def test_published_contract_that_is_refused_today_is_not_opened(engine, case):
    terms, reason = UNSAFE[case]
    gateway = {"kind": "http", "url": f"{engine.sandbox.url}/keyed", "allow_private": True}
    engine.publish("good")
    engine.publish("bad", gateway=gateway | terms)
    [bad] = engine.outbox.enqueue(1, "bad")
    worker = engine.worker()
    await worker.started()
    await engine.until_status(engine.outbox.enqueue(1, "good"))
    refused = worker.lines("target_refused")[0]  # each scope says it, for the terms do not
    assert (refused["target"], reason in refused["error"]) == ("bad", True), refused
    assert "hunter2" not in worker.log.read_text()
    assert engine.statuses([bad]) == ["pending"]

    # The intent keeps its version, which is still not opened; a corrected one serves new intents.
    engine.publish("bad", gateway=gateway)
    await engine.until_status(engine.outbox.enqueue(1, "bad"))
    assert engine.statuses([bad]) == ["pending"]
    assert len(engine.sandbox.requests()) == 2

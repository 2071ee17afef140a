"""The clock of the database is set back by an hour. The tests move stored times ahead instead,
which is the same to the functions.
"""

from __future__ import annotations

from signal import SIGKILL, SIGTERM

import pytest

from tests.support.elections import ROW_LEASE_SETTINGS, fences, lease, start_leader
from tests.support.engine import until
from tests.support.outbox import CLUSTER_LEASE

ELECTORS = {
    "row": ROW_LEASE_SETTINGS,
    "advisory": {"elector": "advisory", "schedule_refresh_seconds": "0.2"},
}


@pytest.fixture(params=ELECTORS)
def settings(request, engine):
    engine.publish("ledger", scope="cluster")
    return ELECTORS[request.param]


def set_clock_back(engine):
    engine.database.owner_execute(
        "UPDATE leasehold.leases SET acquired_at = acquired_at + interval '1 hour',"
        " renewed_at = renewed_at + interval '1 hour', expires_at = expires_at + interval '1 hour',"
        " grace_expires_at = grace_expires_at + interval '1 hour'"
    )


def latest_expiry_seconds(engine):
    """In how many seconds the last lease ends."""
    [row] = engine.database.execute(
        "SELECT extract(epoch FROM max(expires_at) - clock_timestamp())::float8 AS seconds"
        "  FROM leasehold.leases"
    )
    return row["seconds"]


def has_been_renewed(engine):
    """Whether the holder has renewed its lease on the clock as it is now."""
    [row] = engine.database.execute(
        "SELECT renewed_at <= clock_timestamp() AS is_past FROM leasehold.leases"
        " WHERE lease_name = %s",
        [CLUSTER_LEASE],
    )
    return row["is_past"]


async def test_dead_leader_is_replaced_within_the_hour_and_so_is_the_dead_reaper(engine, settings):
    first = await start_leader(engine, **settings)
    await first.logged("reaper_elected")
    second = engine.worker(**settings)
    await second.started()
    first.send(SIGKILL)
    await first.ended()
    set_clock_back(engine)
    await until(lambda: latest_expiry_seconds(engine) <= 60)  # somebody has seen what is impossible
    engine.expire_held(await first.started())
    await second.logged("leader_acquired")
    await second.logged("reaper_elected")
    await engine.until_status(engine.outbox.enqueue(3, "ledger"))
    assert set(fences(engine)) == {2}


async def test_live_leader_goes_on_and_its_rival_does_not_take_over(engine, settings):
    leader = await start_leader(engine, **settings)
    rival = engine.worker(**settings)
    await rival.started()
    for _ in range(3):
        set_clock_back(engine)
        await until(lambda: has_been_renewed(engine))
        await engine.until_status(engine.outbox.enqueue(3, "ledger"))
    assert rival.lines("leader_acquired") == leader.lines("leader_lost") == []
    assert lease(engine)["lease_epoch"] == 1
    leader.send(SIGTERM)
    await rival.logged("leader_acquired")

"""A database clock that is set back an hour keeps nobody from taking over from a dead holder."""

from __future__ import annotations

import pytest

from tests.database.test_advisory_election import (
    acquire,
    elected,
    end,
    let_renewal_age,
    lock_holders,
)
from tests.support.lease_holder import GRACE_SECONDS, LEASE_SECONDS, claim_streams, take
from tests.support.outbox import CLUSTER_LEASE
from tests.support.sqlstates import refused

HOUR = 3600
ACQUIRE = "SELECT * FROM leasehold.acquire_lease(%s, %s, 60)"


def set_clock_back(database, seconds=HOUR):
    """Move stored times of leases and instances ahead: so a clock that is set back sees them."""
    for table, columns in {
        "leases": ("acquired_at", "renewed_at", "expires_at", "grace_expires_at"),
        "instances": ("started_at", "last_seen_at", "alive_until"),
    }.items():
        moved = ", ".join(f"{one} = {one} + make_interval(secs => %(seconds)s)" for one in columns)
        database.owner_execute(f"UPDATE leasehold.{table} SET {moved}", {"seconds": seconds})


def let_time_pass(database, seconds):
    set_clock_back(database, -seconds)


def lease_row(database):
    [row] = database.execute("SELECT *, clock_timestamp() AS seen_at FROM leasehold.leases")
    return row


def seconds_left(row, column="expires_at"):
    return (row[column] - row["seen_at"]).total_seconds()


def test_dead_row_leader_is_replaced_after_one_lease(outbox, database):
    take(outbox, "dead")
    set_clock_back(database)
    assert not outbox.acquire("holder-2")["acquired"]
    assert 0 < seconds_left(lease_row(database)) <= 60
    let_time_pass(database, 61)
    assert take(outbox, "holder-2").epoch == 2


def test_dead_lock_leader_is_replaced_after_its_yield(outbox, database):
    _, session = elected(outbox, "dead")
    end(database, session)
    set_clock_back(database)
    follower = database.connect("executor")
    answer = acquire(follower, "holder-2")
    assert not answer["acquired"]
    assert 0 < answer["free_in_seconds"] <= 2
    assert lock_holders(database) == []
    let_renewal_age(database)
    assert acquire(follower, "holder-2")["acquired"]


def test_lock_follower_waits_out_a_dead_row_leader_for_one_lease(outbox, database):
    take(outbox, "dead")
    set_clock_back(database)
    follower = database.connect("executor")
    answer = acquire(follower, "holder-2")
    assert not answer["acquired"]
    assert 2 < answer["free_in_seconds"] <= 60
    let_time_pass(database, 61)
    assert acquire(follower, "holder-2")["acquired"]


@pytest.mark.parametrize("step", [1, HOUR])
def test_rival_does_not_take_the_lease_of_a_live_leader(outbox, database, step):
    leader = take(outbox, "leader")
    set_clock_back(database, step)
    for _ in range(3):
        assert not outbox.acquire("rival")["acquired"]
    leader.renew()
    row = lease_row(database)
    assert row["renewed_at"] <= row["seen_at"]
    assert 50 < seconds_left(row) <= 60
    assert not outbox.acquire("rival")["acquired"]


def test_live_lock_leader_keeps_its_lease(outbox, database):
    leader, _ = elected(outbox, "leader")
    set_clock_back(database)
    rival = database.connect("executor")
    assert not acquire(rival, "rival")["acquired"]
    leader.renew()
    assert not acquire(rival, "rival")["acquired"]


def test_stale_holder_does_not_come_back_to_life_after_a_takeover(outbox, database):
    stale = take(outbox, "stale")
    outbox.expire_lease()
    take(outbox, "holder-2")
    set_clock_back(database)
    with refused("P7002"):
        stale.renew()


def test_released_lease_is_free_at_once(outbox, database):
    assert take(outbox, "holder-1").release()
    set_clock_back(database)
    assert take(outbox, "holder-2").epoch == 2


def test_step_smaller_than_the_age_of_the_renewal_changes_nothing(outbox, database):
    take(outbox, "dead")
    let_time_pass(database, 30)
    set_clock_back(database, 20)
    before = lease_row(database)
    assert not outbox.acquire("holder-2")["acquired"]
    assert lease_row(database) | {"seen_at": None} == before | {"seen_at": None}


def test_duration_of_the_last_renewal_counts(outbox, database):
    holder = take(outbox, "dead")
    holder.call("renew_lease", *holder.fence, 20, 0)
    set_clock_back(database)
    assert not outbox.acquire("holder-2")["acquired"]
    assert 0 < seconds_left(lease_row(database)) <= 20


def test_follower_does_not_wait_for_a_renewal_in_progress(outbox, database):
    take(outbox, "leader")
    set_clock_back(database)
    busy, follower = database.session(), database.session("executor")
    busy.run("BEGIN")
    busy.run("SELECT FROM leasehold.leases FOR NO KEY UPDATE")
    [answer] = follower.run(ACQUIRE, [CLUSTER_LEASE, "holder-2"])
    assert not answer["acquired"]


def test_fenced_write_in_flight_does_not_delay_the_correction(outbox, database):
    leader = take(outbox, "leader")
    set_clock_back(database)
    writer, follower = database.session("executor"), database.session("executor")
    writer.run("BEGIN")
    writer.run("SELECT leasehold.hold_lease(%s, %s, %s)", leader.fence)
    [answer] = follower.run(ACQUIRE, [CLUSTER_LEASE, "holder-2"])
    assert not answer["acquired"]
    assert seconds_left(lease_row(database)) <= 60


@pytest.mark.parametrize("is_in_flight", [False, True])
def test_stream_of_a_dead_holder_is_taken_after_its_expiry_or_grace(outbox, database, is_in_flight):
    outbox.publish("pay", scope="stream", guarantee="lookup")
    ids = outbox.enqueue(1, "pay", stream="s")
    [dead] = claim_streams(outbox, "dead")
    if is_in_flight:
        assert dead.begin(ids) == ["begun"]
    set_clock_back(database)
    assert claim_streams(outbox, "holder-2") == []
    row = lease_row(database)
    assert 0 < seconds_left(row) <= LEASE_SECONDS
    assert LEASE_SECONDS < seconds_left(row, "grace_expires_at") <= LEASE_SECONDS + GRACE_SECONDS
    let_time_pass(database, LEASE_SECONDS + 1)
    claim_streams(outbox, "holder-2")
    if is_in_flight:
        assert lease_row(database)["lease_epoch"] == dead.epoch
        let_time_pass(database, GRACE_SECONDS)
        claim_streams(outbox, "holder-2")
    assert lease_row(database)["lease_epoch"] == dead.epoch + 1
    assert outbox.states(ids[0]) == (["IN_DOUBT"] if is_in_flight else [])


def test_dead_instance_seen_in_the_future_has_no_share_of_the_streams(outbox, database):
    outbox.publish("pay", scope="stream", guarantee="lookup")
    for name, held, wanted in (("live", 4, 0), ("dead", 0, 4)):
        outbox.call(
            "executor", "renew_instance", name, "worker", ["pay"], {"x": 1}, 60, [held], [wanted]
        )
    surplus = outbox.call("executor", "surplus_streams", "live")
    assert [row["kept"] for row in surplus] == [2]
    set_clock_back(database)
    assert outbox.call("executor", "surplus_streams", "live") == []

"""One holder at a time: who may take, keep, give back and lose a lease."""

from __future__ import annotations

import pytest

from tests.support.lease_holder import take
from tests.support.outbox import CLUSTER_LEASE
from tests.support.race import race
from tests.support.sqlstates import refused

ACQUIRE = "SELECT * FROM leasehold.acquire_lease(%s, %s, 60)"
RENEW = "SELECT leasehold.renew_lease(%s, %s, %s, 60)"


def lease_row(database, lease_name=CLUSTER_LEASE):
    [row] = database.execute(
        "SELECT *, clock_timestamp() AS seen_at FROM leasehold.leases WHERE lease_name = %s",
        [lease_name],
    )
    return row


@pytest.mark.parametrize("before", ["missing", "expired", "released"])
def test_fifteen_of_sixteen_concurrent_acquires_lose(outbox, database, before):
    if before != "missing":
        first = take(outbox, "the first")
        assert before == "expired" or first.release()
        outbox.expire_lease()
    answers = race(database, 16, lambda caller, number: caller.acquire(f"holder-{number}"))
    [winner] = [row for row in answers if row["acquired"]]
    # Every loser is told who holds it.
    assert {row["holder_id"] for row in answers} == {winner["holder_id"]}
    assert {row["lease_epoch"] for row in answers} == {1 if before == "missing" else 2}


def test_times_of_a_lease_come_from_the_databases_clock(outbox, database):
    outbox.call("executor", "acquire_lease", CLUSTER_LEASE, "holder-1", 60, 120)
    row = lease_row(database)
    assert (row["expires_at"] - row["acquired_at"]).total_seconds() == 60
    assert (row["grace_expires_at"] - row["acquired_at"]).total_seconds() == 180
    assert row["renewed_at"] == row["acquired_at"] <= row["seen_at"]


def test_lease_row_cannot_be_deleted_to_restart_its_epoch(outbox, database):
    take(outbox)
    for statement in ("DELETE FROM leasehold.leases", "TRUNCATE leasehold.leases"):
        with refused("P0001"):
            database.owner_execute(statement)
    assert lease_row(database)["lease_epoch"] == 1


def test_acquire_that_waited_for_a_renewal_at_the_expiry_fails(outbox, database):
    holder = take(outbox, "holder-1")
    outbox.expire_lease(grace=False)
    slow, rival = database.session("executor"), database.session("executor")
    slow.run("BEGIN")
    slow.run(RENEW, holder.fence)
    waiting = rival.start(ACQUIRE, [CLUSTER_LEASE, "holder-2"])
    waiting.assert_blocked()
    slow.run("COMMIT")
    [answer] = waiting.result()
    assert (answer["acquired"], answer["holder_id"], answer["lease_epoch"]) == (
        False,
        "holder-1",
        1,
    )
    holder.renew()


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_renewal_that_waited_for_a_committed_acquire_fails(outbox, database, end):
    holder = take(outbox, "holder-1")
    outbox.expire_lease(grace=False)
    rival, slow = database.session("executor"), database.session("executor")
    rival.run("BEGIN")
    [answer] = rival.run(ACQUIRE, [CLUSTER_LEASE, "holder-2"])
    assert answer["acquired"]
    waiting = slow.start(RENEW, holder.fence)
    waiting.assert_blocked()
    rival.run(end)
    if end == "COMMIT":
        with refused("P7002"):
            waiting.result()
    else:
        waiting.result()
    row = lease_row(database)
    assert (row["holder_id"], row["lease_epoch"]) == (
        ("holder-2", 2) if end == "COMMIT" else ("holder-1", 1)
    )


def test_renewal_that_waits_until_its_lease_has_expired_fails(outbox, database):
    """The naive form reads the clock in the statement that waits, so before the wait."""
    holder = take(outbox)
    blocker, slow, naive = (database.session() for _ in range(3))
    blocker.run("BEGIN")
    blocker.run(
        "UPDATE leasehold.leases SET expires_at = clock_timestamp() + interval '3 seconds',"
        " grace_expires_at = clock_timestamp() + interval '3 seconds'"
    )
    blocker.run("COMMIT")
    blocker.run("BEGIN")
    blocker.run("SELECT FROM leasehold.leases FOR UPDATE")
    mutant = naive.start(
        "UPDATE leasehold.leases SET renewed_at = clock_timestamp()"
        " WHERE lease_name = %s AND expires_at > clock_timestamp() RETURNING lease_epoch",
        [CLUSTER_LEASE],
    )
    mutant.assert_blocked()
    waiting = slow.start(RENEW, holder.fence)
    waiting.assert_blocked()
    # Until the database's own clock says that the lease has expired.
    blocker.run(
        "SELECT pg_sleep(greatest(0, extract(epoch FROM max(expires_at) - clock_timestamp())))"
        " FROM leasehold.leases"
    )
    blocker.run("COMMIT")
    assert mutant.result() == [{"lease_epoch": 1}], "the naive form renews a lost lease"
    with refused("P7002"):
        waiting.result()


def test_acquire_of_a_live_lease_locks_nothing_and_does_not_wait(outbox, database):
    take(outbox, "holder-1")
    busy, follower = database.session(), database.session("executor")
    busy.run("BEGIN")
    busy.run("SELECT FROM leasehold.leases FOR UPDATE")
    follower.run("BEGIN")
    [answer] = follower.run(ACQUIRE, [CLUSTER_LEASE, "holder-2"])
    assert not answer["acquired"]
    # AccessShareLock is what every reader takes; a row lock would need RowShareLock.
    modes = database.execute(
        "SELECT DISTINCT mode FROM pg_locks JOIN pg_class ON pg_class.oid = relation"
        " WHERE pid = %s AND relname = 'leases'",
        [follower.pid],
    )
    assert [row["mode"] for row in modes] in ([], ["AccessShareLock"])

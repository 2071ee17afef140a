"""Sessions that hold our advisory locks and are no instance: the database names them."""

from __future__ import annotations

import pytest

from leasehold.coordination.advisory_lock import lock_key
from tests.database.test_advisory_election import elected
from tests.support.outbox import CLUSTER_LEASE
from tests.support.sqlstates import refused

KEY = lock_key(CLUSTER_LEASE)
MARKS = "1818584933, hashtext(%s)"
LOCKS = {
    "election": ("SELECT pg_advisory_lock(%s)", [KEY]),
    "call_marks": ("SELECT pg_advisory_lock(1818584933, hashtext(%s))", [CLUSTER_LEASE]),
    "changes": ("SELECT pg_advisory_lock(1818584932, %s)", [200_000_000]),
}


def squatters(outbox, keys=(KEY,)):
    return outbox.call("executor", "read_lock_squatters", [CLUSTER_LEASE], list(keys))


def login(database, role, name):
    connection = database.connect(role)
    connection.execute("SELECT set_config('application_name', %s, false)", [name])
    return connection


@pytest.mark.parametrize("lock", LOCKS)
def test_login_of_any_role_that_holds_a_lock_is_named(outbox, database, lock):
    assert squatters(outbox) == []
    session = login(database, "readonly", "nosy")
    session.execute(*LOCKS[lock])
    [row] = squatters(outbox)
    assert (row["lock"], row["pid"]) == (lock, session.info.backend_pid)
    assert (row["login"], row["application_name"]) == (session.info.user, "nosy")
    session.close()


def test_leader_and_a_session_of_a_known_instance_are_no_squatters(outbox):
    holder, session = elected(outbox)
    session.execute("SELECT set_config('application_name', 'leasehold lock holder-1', false)")
    assert squatters(outbox) == []
    # Another name: nobody knows this session.
    session.execute("SELECT set_config('application_name', 'leasehold lock stranger', false)")
    [row] = squatters(outbox)
    assert row["pid"] == session.info.backend_pid
    outbox.call("executor", "renew_instance", "stranger", "worker", [], "{}", 60)
    assert squatters(outbox) == []
    assert holder.release()


def test_lock_that_outlives_its_lease_is_squatted_whatever_its_name(outbox, database):
    _, session = elected(outbox)
    session.execute("SELECT set_config('application_name', 'leasehold lock holder-1', false)")
    outbox.expire_lease()
    database.owner_execute(
        "UPDATE leasehold.leases SET renewed_at = at, acquired_at = at, expires_at = at,"
        "       grace_expires_at = at FROM (SELECT now() - interval '1 hour') AS long_ago (at)"
    )
    [row] = squatters(outbox)
    assert (row["lock"], row["pid"]) == ("election", session.info.backend_pid)


def test_lock_of_an_election_is_of_no_interest_to_electors_by_row(outbox, database):
    session = login(database, "readonly", "nosy")
    session.execute(*LOCKS["election"])
    assert squatters(outbox, keys=()) == []
    session.execute(*LOCKS["call_marks"])
    assert [row["lock"] for row in squatters(outbox, keys=())] == ["call_marks"]


def test_shared_lock_of_a_writer_is_no_squatter(outbox, database):
    outbox.publish("ledger", scope="cluster")
    writer = database.session("ingest")
    writer.run("BEGIN")
    writer.run("SELECT leasehold.enqueue_intent('ledger', '1')")
    assert squatters(outbox) == []
    writer.run("ROLLBACK")


def test_absurd_arguments_are_refused(outbox):
    for names, keys in ((["a"], [1, 2]), (["a"], None), (None, [])):
        with refused("22023"):
            outbox.call("executor", "read_lock_squatters", names, keys)

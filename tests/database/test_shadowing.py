"""Temporary objects of a caller never replace ours in a security definer function."""

from __future__ import annotations

import pytest

from tests.support.lease_holder import claim_streams, take
from tests.support.outbox import CLUSTER_LEASE, ZERO_ID


@pytest.fixture
def trapped(outbox, database):
    """Return sessions of each role whose temporary tables shadow ours."""
    tables = database.execute(
        "SELECT relname FROM pg_class"
        " WHERE relnamespace = 'leasehold'::regnamespace AND relkind IN ('r', 'p', 'v')"
    )
    names = [row["relname"] for row in tables]
    for role in ("ingest", "executor", "operator"):
        connection = outbox.as_role(role)
        # Types and names of the catalog can be shadowed too.
        for name in (*names, "outcome", "pg_locks", "pg_inherits", "pg_class", "pg_database"):
            connection.execute(f"CREATE TEMP TABLE {name} (trap integer)")
            connection.execute(f"GRANT ALL ON pg_temp.{name} TO PUBLIC")
        connection.execute("SET search_path = pg_temp, leasehold, public")
    return outbox


def test_function_that_searches_the_temporary_schema_first_is_deceived(outbox, database):
    """The naive form: if the search_path does not name pg_temp, pg_temp is searched first."""
    take(outbox)
    database.owner_execute(
        "CREATE FUNCTION leasehold.naive() RETURNS bigint LANGUAGE sql SECURITY DEFINER"
        " SET search_path = leasehold AS 'SELECT count(*) FROM leases'"
    )
    database.owner_execute("GRANT EXECUTE ON FUNCTION leasehold.naive() TO leasehold_executor")
    assert outbox.call("executor", "naive") == [{"naive": 1}]
    outbox.as_role("executor").execute("CREATE TEMP TABLE leases (trap integer)")
    outbox.as_role("executor").execute("GRANT ALL ON leases TO PUBLIC")
    assert outbox.call("executor", "naive") == [{"naive": 0}]


def test_shadowing_tables_do_not_affect_items(trapped):
    trapped.publish()
    done, doubtful, lost = trapped.enqueue(3)
    claims = {row["intent_id"]: row for row in trapped.claim()}
    assert {row["verdict"] for row in trapped.begin(list(claims.values()))} == {"begun"}
    trapped.complete([claims[done]], "DISPATCHED")
    trapped.complete([claims[doubtful]], "SUBMITTED")
    held = [lost], [claims[lost]["lease_token"]]
    [row] = trapped.call("executor", "renew_outbox_leases", "worker-1", *held, 30)
    assert row["verdict"] == "renewed"
    [row] = trapped.call("executor", "release_outbox_claims", "worker-1", *held, 0)
    assert row["verdict"] == "begun"
    trapped.expire_claims()
    assert len(trapped.call("executor", "repair_expired_leases", 10, "reaper")) == 1
    assert trapped.call("executor", "repair_missed_deadlines", 10, "reaper") == []
    [row] = trapped.call("operator", "resolve_intent", doubtful, "FAILED", "ada", "no effect")
    assert row["resolve_intent"] == "resolved"
    [row] = trapped.call("operator", "redrive_intents", [doubtful], "ada", "again")
    assert row["verdict"] == "redriven"
    [row] = trapped.call("operator", "cancel_intent", row["new_intent_id"], "ada", "no")
    assert row["cancel_intent"] == "cancelled"
    assert trapped.states(lost) == ["IN_DOUBT"]


def test_shadowing_tables_do_not_affect_leases_and_schedules(trapped):
    trapped.publish(scope="cluster")
    trapped.publish("pay", scope="stream")
    [clustered] = trapped.enqueue()
    [head] = trapped.enqueue(target="pay", stream="a")
    leader = take(trapped)
    leader.renew()
    leader.call("record_leader_heartbeat", *leader.fence, {})
    assert leader.begin([clustered]) == ["begun"]
    leader.call("renew_instance", "holder-1", "worker", ["pay"], {}, 60)
    fence = ("holder-1", [leader.lease_name], [leader.epoch])
    cursor = ("-infinity", ZERO_ID, 10)
    assert len(trapped.call("executor", "refresh_schedule", *fence, *cursor)) == 1
    [holder] = claim_streams(trapped)
    assert [row["intent_id"] for row in holder.heads] == [head]
    assert trapped.call("executor", "surplus_streams", "holder-1") == []
    holder.renew()
    assert holder.begin([head]) == ["begun"]
    [next_row] = holder.record_next([head], "FAILED")
    assert next_row["stream_state"] == "paused"
    assert trapped.call("executor", "release_instance", "holder-1")[0]["release_instance"]
    assert leader.record([clustered], "DISPATCHED") == ["applied"]
    assert leader.release()
    assert trapped.acquire("holder-2", CLUSTER_LEASE)["lease_epoch"] == 2
    months = trapped.call("executor", "create_ledger_partitions", 4)
    assert len(months) == 1

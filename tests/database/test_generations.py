"""A database that may have lost commits grants nothing before a new generation has begun, and no
fencing token repeats after that.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.database import Database
from tests.support.lease_holder import claim_streams, take
from tests.support.outbox import CLUSTER_LEASE, Outbox
from tests.support.race import race
from tests.support.sqlstates import refused, sqlstate_of

pytestmark = pytest.mark.one_server

NO_IDS: list[str] = []


def become_another(database):
    """What the database remembers of itself is no longer true, as in a copy."""
    database.owner_execute(
        "UPDATE leasehold.generations SET database_identity = 'system 1, timeline 00000001'"
        " WHERE generation_no = (SELECT max(generation_no) FROM leasehold.generations)"
    )


def begin(outbox, instance="instance-1"):
    [row] = outbox.call("executor", "begin_generation", instance)
    return row


def generations(database):
    return database.execute("SELECT * FROM leasehold.generations ORDER BY generation_no")


def test_fresh_database_is_its_own_first_generation(outbox, database):
    [first] = generations(database)
    assert (first["generation_no"], first["token_floor"], first["cause"]) == (1, 0, "created")
    assert begin(outbox) == {
        "generation_no": 1,
        "token_floor": 0,
        "is_new": False,
        "is_ready": True,
    }


def copy_of(database, server):
    name = f"{database.name}_copy"
    database.close()
    server.execute("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy", name, database.name)
    return Database(server, name)


def dropped_and_created_again(database, server):
    """A new table of leases, as a dump that is restored into the same database has."""
    del server
    database.owner_execute(
        "CREATE TABLE leasehold.leases_again (LIKE leasehold.leases INCLUDING ALL)"
    )
    database.execute("DROP TABLE leasehold.leases CASCADE")
    database.owner_execute("ALTER TABLE leasehold.leases_again RENAME TO leases")
    return Database(server_of(database), database.name)


def server_of(database):
    return database.server


@pytest.mark.parametrize("change", [copy_of, dropped_and_created_again])
def test_copy_of_a_database_grants_nothing_until_a_generation_has_begun(
    outbox, database, server, change
):
    outbox.publish()
    outbox.enqueue(1)
    copy = change(database, server)
    try:
        in_copy = Outbox(copy)
        with refused("P7006"):
            in_copy.claim()
        assert begin(in_copy)["is_new"]
        [claim] = in_copy.claim()
        [_, second] = generations(copy)
        assert claim["fencing_token"] == second["token_floor"] + 1
        assert second["cause"] == "detected"
        assert second["began_by"] == "instance-1"
    finally:
        copy.close()


@pytest.mark.every_server
def test_every_function_that_grants_renews_or_begins_refuses_another_database(outbox, database):
    outbox.publish()
    outbox.publish("pay", scope="stream")
    outbox.publish("bank", scope="cluster", lease_name=CLUSTER_LEASE)
    outbox.enqueue(1)
    [in_stream] = outbox.enqueue(1, target="pay", stream="s")
    [in_cluster] = outbox.enqueue(1, target="bank")
    claims = outbox.claim()
    holder = take(outbox)
    [stream] = claim_streams(outbox)
    become_another(database)
    ids, tokens = [claims[0]["intent_id"]], [claims[0]["lease_token"]]
    calls = {
        "claim": outbox.claim,
        "renew items": partial(
            outbox.call, "executor", "renew_outbox_leases", "worker-1", ids, tokens, 30
        ),
        "begin items": partial(outbox.begin, claims),
        "acquire": partial(outbox.acquire, "holder-2", "another"),
        "acquire by lock": partial(
            outbox.call, "executor", "acquire_lease_by_lock", "another", "h", 7, 60, 10
        ),
        "renew": holder.renew,
        "read": holder.window,
        "mark": partial(holder.call, "mark_calls", *holder.fence, [in_cluster], [1], 1),
        "begin under a lease": partial(holder.begin, [in_cluster]),
        "claim streams": partial(claim_streams, outbox),
        "renew streams": stream.renew,
        "look at streams": stream.look,
        "begin in streams": partial(stream.begin, [in_stream]),
    }
    assert {name: sqlstate_of(call) for name, call in calls.items()} == dict.fromkeys(
        calls, "P7006"
    )
    [locks] = database.execute(
        "SELECT count(*) AS held FROM pg_locks WHERE locktype = 'advisory'"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    assert locks["held"] == 0


def test_results_of_calls_that_were_made_are_recorded_in_another_database(outbox, database):
    outbox.publish()
    outbox.publish("pay", scope="stream")
    outbox.publish("bank", scope="cluster", lease_name=CLUSTER_LEASE)
    outbox.enqueue(1)
    first, second = outbox.enqueue(2, target="pay", stream="s")
    [in_cluster] = outbox.enqueue(1, target="bank")
    claims = outbox.claim()
    holder = take(outbox)
    assert holder.begin([in_cluster]) == ["begun"]
    [stream] = claim_streams(outbox)
    assert stream.begin([first]) == ["begun"]
    become_another(database)
    assert [row["verdict"] for row in outbox.complete(claims)] == ["applied"]
    assert holder.record([in_cluster], "DISPATCHED") == ["applied"]
    [left] = stream.record_next([first], "DISPATCHED")
    assert outbox.states(first) == ["DISPATCHED"]
    # The next head is not handed out, because its token could repeat.
    assert not left["is_held"]
    assert left["intent_id"] is None
    assert outbox.pending(second)["begun_at"] is None
    assert holder.release()
    begin(outbox)
    [again] = claim_streams(outbox)
    assert [head["intent_id"] for head in again.heads] == [second]


@pytest.mark.every_server
def test_one_generation_begins_however_many_instances_meet_the_change(outbox, database):
    become_another(database)
    answers = race(database, 8, lambda caller, number: begin(caller, f"instance-{number}"))
    assert sum(one["is_new"] for one in answers) == 1
    assert {one["generation_no"] for one in answers} == {2}
    assert len(generations(database)) == 2
    assert not begin(outbox)["is_new"]


def test_floor_rises_with_each_generation_and_stays_below_2_to_the_53(outbox, database):
    floors = [0]
    for _ in range(3):
        become_another(database)
        floors.append(begin(outbox)["token_floor"])
    assert floors == sorted(set(floors))
    assert floors[-1] < 2**53


def test_floor_rises_although_the_clock_was_set_back(outbox, database):
    database.owner_execute("UPDATE leasehold.generations SET token_floor = 8000000000000000")
    become_another(database)
    assert begin(outbox)["token_floor"] == 8000000000000001


def test_holder_that_saw_no_change_is_handed_no_token_below_the_new_floor(outbox, database):
    """Another instance began the generation. The database still knows the leases of this one."""
    outbox.publish()
    outbox.publish("pay", scope="stream")
    outbox.publish("bank", scope="cluster", lease_name=CLUSTER_LEASE)
    outbox.enqueue(2)
    for name in ("s", "t"):
        outbox.enqueue(2, target="pay", stream=name)
    marked, begun = outbox.enqueue(2, target="bank")
    [old] = outbox.claim(batch_size=1)
    leader = take(outbox)
    due = ("holder-1", [leader.lease_name], [leader.epoch], ["bank"], 100, 1000)
    read = leader.call("refresh_due_rows", *due)
    [stream] = claim_streams(outbox, streams_max=1)
    [mine] = stream.heads
    assert max(row["fencing_token"] for row in [old, mine, *read]) < 10
    become_another(database)
    floor = begin(outbox, "instance-1")["token_floor"]

    looked = stream.look()
    assert stream.begin([mine["intent_id"]]) == ["begun"]
    handed_out = {
        "look": looked,
        "claim": outbox.claim(batch_size=1),
        "window": leader.call("refresh_due_rows", *due),
        "mark": leader.call("mark_calls", *leader.fence, [marked], [1], 1, [True])[1:],
        "begin": leader.call("begin_leased_attempts", *leader.fence, [begun]),
        "next heads": stream.record_next([mine["intent_id"]], "DISPATCHED"),
        "claim of streams": [row for one in claim_streams(outbox) for row in one.heads],
    }
    tokens = {
        way: {row["fencing_token"] for row in rows} - {None} for way, rows in handed_out.items()
    }
    assert all(tokens.values()), tokens
    assert min(token for found in tokens.values() for token in found) > floor
    # What it was given before ends under its lease, and is not sent again under an old token.
    [ended] = outbox.complete([old], "RETRYABLE", retry_after_seconds=0)
    assert ended["verdict"] == "applied"
    outbox.make_due()
    again = {row["intent_id"]: row["fencing_token"] for row in outbox.claim()}
    assert again[old["intent_id"]] > floor


def token_of_item(outbox):
    [claim] = outbox.claim(targets=["item"])
    outbox.call(
        "executor",
        "release_outbox_claims",
        "worker-1",
        [claim["intent_id"]],
        [claim["lease_token"]],
        0,
    )
    return claim["fencing_token"]


def token_of_stream(outbox):
    [holder] = claim_streams(outbox, targets=["stream"])
    assert holder.release()
    return holder.heads[0]["fencing_token"]


def token_of_leader(outbox):
    holder = take(outbox)
    rows = holder.call(
        "refresh_due_rows", holder.name, [holder.lease_name], [holder.epoch], ["cluster"], 10, 1000
    )
    [row] = rows
    [_, marked] = holder.call(
        "mark_calls", *holder.fence, [row["intent_id"]], [row["attempt_count"] + 1], 1, [True]
    )
    assert marked["fencing_token"] == row["fencing_token"]
    holder.call("unmark_calls", *holder.fence, NO_IDS)
    assert holder.release()
    return row["fencing_token"]


def token_of_begun_leader(outbox):
    holder = take(outbox)
    [row] = holder.window(targets=["begun"])
    [begun] = holder.call("begin_leased_attempts", *holder.fence, [row["intent_id"]])
    assert holder.record([row["intent_id"]], "RETRYABLE", retry_after_seconds=0) == ["applied"]
    assert holder.release()
    return begun["fencing_token"]


@pytest.mark.parametrize(
    ("token_of", "terms"),
    [
        (token_of_item, {"target": "item"}),
        (token_of_stream, {"target": "stream", "scope": "stream"}),
        (token_of_leader, {"target": "cluster", "scope": "cluster", "lease_name": CLUSTER_LEASE}),
        (
            token_of_begun_leader,
            {
                "target": "begun",
                "scope": "cluster",
                "lease_name": CLUSTER_LEASE,
                "guarantee": "lookup",
            },
        ),
    ],
)
def test_token_after_lost_commits_is_newer_than_the_lost_ones(outbox, database, token_of, terms):
    terms = dict(terms)
    target = terms.pop("target")
    outbox.publish(target, **({"guarantee": "fenced"} | terms))
    outbox.enqueue(1, target=target, stream="s")
    lost = [token_of(outbox) for _ in range(3)]
    # Commits are lost: the epochs and attempts are those of before.
    database.execute("UPDATE leasehold.leases SET lease_epoch = 0")
    become_another(database)
    floor = begin(outbox)["token_floor"]
    assert floor > max(lost)
    assert floor < token_of(outbox) < floor + 20


def test_redrive_does_not_count_the_floor_twice(outbox, database):
    outbox.publish(guarantee="fenced", attempts_max=1, retry_policy="one_shot")
    [intent_id] = outbox.enqueue(1)
    become_another(database)
    floor = begin(outbox)["token_floor"]
    tokens = []
    for _ in range(3):
        outbox.make_due()
        [claim] = outbox.claim()
        tokens.append(claim["fencing_token"])
        outbox.complete([claim], "RETRYABLE")
        [row] = outbox.call("operator", "redrive_intents", [intent_id], "operator", "again")
        intent_id = row["new_intent_id"]
    assert tokens == sorted(set(tokens))
    assert floor < tokens[0] <= tokens[-1] < floor + 20


def test_session_that_sets_its_own_identity_refuses_only_itself(outbox, database):
    outbox.publish()
    outbox.enqueue(1)
    liar = Outbox(database)
    liar.as_role("executor").execute("SET leasehold.system_identifier = '1'")
    with refused("P7006"):
        liar.claim()
    assert not begin(liar)["is_new"]
    assert len(outbox.claim()) == 1


@pytest.mark.parametrize("role", ["ingest", "operator", "readonly"])
def test_only_executors_begin_a_generation(outbox, role):
    with refused("42501"):
        outbox.call(role, "begin_generation", "somebody")

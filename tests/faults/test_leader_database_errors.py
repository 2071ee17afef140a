"""A leader steps down at once, and visibly, after any database error."""

from __future__ import annotations

from datetime import datetime
from signal import SIGCONT, SIGSTOP, SIGTERM

import pytest

from leasehold import Instance, read_settings
from leasehold.domain.errors import DatabaseUnavailable, NotLeader
from tests.support.elections import (
    ROW_LEASE_SETTINGS,
    failing_function,
    fences,
    holders,
    lease,
    logged_lines,
    start_leader,
)
from tests.support.engine import until
from tests.support.outbox import CLUSTER_LEASE

# The lease is a minute: a leader that steps down sooner did not do so because trust ended.
LONG_LEASE = ROW_LEASE_SETTINGS | {"cluster_renew_seconds": "0.2"}
# A leader with work calls each of these functions. Most of these errors are unexpected ones.
FAILURES = [
    ("renew_lease", "XX001"),
    ("renew_lease", "0A000"),
    ("renew_lease", "P7002"),
    ("record_leader_heartbeat", "XX001"),
    ("record_leader_heartbeat", "P7002"),
    ("refresh_schedule", "58030"),
    ("mark_calls", "XX001"),
    ("mark_calls", "22023"),
    ("read_open_writers", "XX001"),
    ("begin_leased_attempts", "XX001"),
    ("record_attempts", "42501"),
    ("record_attempts", "42883"),
    ("record_attempts", "22023"),
    ("record_attempts", "XX001"),
]
OUR_ERRORS = ("AccessDenied: ", "InvalidArgument: ", "SchemaTooOld: ", "DatabaseUnavailable: ")


@pytest.fixture
def cluster(engine):
    # With a key window, a leader must begin each call; keyed calls are retried at once.
    engine.publish("ledger", scope="cluster", key_window_seconds=3600)
    return engine


async def test_leader_steps_down_for_any_error_of_the_database(cluster):
    leader = await start_leader(cluster, **(LONG_LEASE | {"cluster_acquire_seconds": "0.1"}))
    for function, sqlstate in FAILURES:
        epoch = await renewed_epoch(cluster)
        with failing_function(cluster.database, function, sqlstate):
            ids = cluster.outbox.enqueue(3, "ledger")
            what = f"{function} with {sqlstate}"
            lost = await lost_by(leader, epoch, what)
        if sqlstate == "P7002":
            assert lost["why"] == "the database reports it as lost", what
            cluster.outbox.expire_lease()  # it is not ours to release
        else:
            [down] = logged_lines(leader, "leader_stepped_down", lease_epoch=epoch)
            assert down["why"] == lost["why"] != "shutdown", what
            # Our own errors explain themselves; others are defects, and need the place.
            is_ours = down["why"].startswith(OUR_ERRORS)
            assert ("Traceback" in down.get("exception", "")) != is_ours, (what, down)
        assert "broken" in lost["sql_error"], what
        await until(lambda ids=ids: is_done(cluster, ids), context=leader.log.read_text)


async def renewed_epoch(cluster):
    """Wait for a renewal after now, and return its epoch: an earlier failure cannot end it."""
    seen = lease(cluster)

    def renewed():
        nonlocal seen
        before, seen = seen, lease(cluster)
        is_same = before["lease_epoch"] == seen["lease_epoch"]
        return is_same and before["expires_at"] < seen["expires_at"]

    await until(renewed)
    return seen["lease_epoch"]


async def lost_by(leader, epoch, what):
    [lost] = await until(
        lambda: logged_lines(leader, "leader_lost", lease_epoch=epoch),
        context=lambda: (what, leader.log.read_text()),
    )
    return lost


def is_done(engine, ids):
    """Whether all are accepted; a leader that stepped down sends nothing, so skip quarantines."""
    engine.outbox.make_due()
    return set(engine.statuses(ids)) == {"accepted"}


async def test_leader_that_may_not_write_results_makes_no_more_calls(engine):
    engine.publish("ledger", scope="cluster")
    leader = await start_leader(engine, **LONG_LEASE)
    may = "EXECUTE ON FUNCTION leasehold.record_attempts"
    engine.database.execute(f"REVOKE {may} FROM leasehold_executor")
    ids = engine.outbox.enqueue(300, "ledger")
    down = await leader.logged("leader_stepped_down")
    assert down["why"].startswith("AccessDenied: ")
    again = (await until(lambda: leader.lines("leader_acquired")[1:]))[0]
    engine.database.execute(f"GRANT {may} TO leasehold_executor")
    assert fences(engine).count(1) <= 10 + 100  # its slots, and the results that may wait
    lost = await leader.logged("leader_lost")
    rested = datetime.fromisoformat(again["timestamp"]) - datetime.fromisoformat(lost["timestamp"])
    assert rested.total_seconds() > 0.3, "others had no time to come first"
    assert not leader.lines("result_refused")
    await engine.until_status(ids)


async def test_leader_that_cannot_read_due_rows_does_not_act_and_steps_down(cluster):
    [intent_id] = cluster.outbox.enqueue(1, "ledger")
    with failing_function(cluster.database, "refresh_due_rows", "XX001"):
        leader = cluster.worker(**LONG_LEASE)
        lost = await leader.logged("leader_lost")
        assert lost["sql_error"].startswith("DataCorrupted: broken")
        assert (lost["lease_epoch"], fences(cluster)) == (1, [])
    await cluster.until_status([intent_id])
    epoch = await renewed_epoch(cluster)
    with failing_function(cluster.database, "refresh_due_rows", "42501"):
        cluster.publish("more", scope="cluster")  # whose rows it has to read
        lost = await lost_by(leader, epoch, "refresh_due_rows with 42501")
    assert lost["sql_error"].startswith("AccessDenied: ")
    await cluster.until_status(cluster.outbox.enqueue(1, "more"))


async def test_leader_that_cannot_read_contracts_again_steps_down(cluster):
    leader = await start_leader(cluster, **LONG_LEASE)
    may = "SELECT ON leasehold.contracts"
    cluster.database.execute(f"REVOKE {may} FROM leasehold_executor")
    lost = await leader.logged("leader_lost")
    cluster.database.execute(f"GRANT {may} TO leasehold_executor")
    assert lost["sql_error"].startswith("AccessDenied: ")
    await cluster.until_status(cluster.outbox.enqueue(3, "ledger"))
    assert fences(cluster) > [1], "it released its epoch, or nobody would lead for a minute"


async def test_leader_that_cannot_read_contracts_of_pending_work_steps_down(cluster):
    leader = await start_leader(cluster, **LONG_LEASE)
    cluster.outbox.enqueue(1, "ledger", delay_seconds=3600)
    cluster.publish("ledger", scope="cluster", key_window_seconds=7200)
    may = "EXECUTE ON FUNCTION leasehold.read_former_terms"
    cluster.database.execute(f"REVOKE {may} FROM leasehold_executor")
    lost = await leader.logged("leader_lost")
    assert lost["sql_error"].startswith("AccessDenied: ")


async def test_leader_that_cannot_remove_a_mark_steps_down(engine):
    """The intent keeps a version that cannot be opened: it is marked, and given back."""
    missing = {"kind": "python", "function": "tests.support.python_gateways:missing"}
    engine.publish("ledger", scope="cluster", gateway=missing)
    engine.outbox.enqueue(1, "ledger")
    engine.publish("ledger", scope="cluster")
    with failing_function(engine.database, "unmark_calls", "XX001"):
        leader = await start_leader(engine, **LONG_LEASE)
        lost = await leader.logged("leader_lost")
    assert lost["sql_error"].startswith("DataCorrupted: broken")
    await engine.until_status(engine.outbox.enqueue(3, "ledger"))
    assert fences(engine) > [1], "it released its epoch, or nobody would lead for a minute"


async def test_failed_renewal_and_election_log_the_error_and_what_is_stale(cluster):
    leader = await start_leader(cluster, **LONG_LEASE)
    worker_id = await leader.started()
    with failing_function(cluster.database, "renew_lease", "XX001"):
        failed = await leader.logged("leader_renew_failed")
        await leader.logged("leader_lost")
    assert (
        failed
        | {
            "level": "error",
            "role": "leader",
            "stale": "whether we lead",
            "holder_id": worker_id,
            "lease_name": CLUSTER_LEASE,
            "lease_epoch": 1,
        }
        == failed
    )
    assert failed["sql_error"].startswith("DataCorrupted: broken")
    assert datetime.fromisoformat(failed["expires_at"])
    with failing_function(cluster.database, "acquire_lease", "XX001"):
        failed = await leader.logged("leader_acquire_failed")
    assert failed | {"level": "error", "role": "follower", "holder_id": worker_id} == failed
    assert failed["stale"] == "who leads, and which work is pending"
    assert failed["sql_error"].startswith("DataCorrupted: broken")


# The locks with which transactions of the next minutes announce what they change.
ANNOUNCE_NOTHING = """
SELECT count(pg_advisory_xact_lock(1818584932, second))
  FROM (SELECT floor(extract(epoch FROM now() - timestamptz '2020-01-01 00:00:00Z'))::integer + n
          FROM generate_series(0, 300) AS n) AS seconds (second)"""


def is_waiting_to_begin(engine):
    return engine.database.execute(
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND query LIKE '%%begin_leased_attempts%%' AND datname = current_database()"
    )


async def test_call_that_begins_while_the_leader_steps_down_is_not_made(cluster):
    """The begin waits for a lock while a refresh fails. When it gets the lock, nobody leads."""
    settings = LONG_LEASE | {"cluster_acquire_seconds": "60"}
    leader = await start_leader(cluster, **settings)
    [intent_id] = cluster.outbox.enqueue(1, "ledger", delay_seconds=0.6)
    other = cluster.database.connect(autocommit=False)
    other.execute(ANNOUNCE_NOTHING)
    await until(lambda: is_waiting_to_begin(cluster))
    with failing_function(cluster.database, "refresh_schedule", "58030"):
        await leader.logged("leader_stepped_down")
        assert not leader.lines("leader_lost")  # one of its calls has not ended
        other.rollback()
        await leader.logged("leader_lost")
    assert logged_lines(leader, "call_skipped", intent_id=str(intent_id))
    assert fences(cluster) == []
    leader.send(SIGTERM)
    assert await leader.ended() == 0


def waits(engine, function):
    """The tables whose rows callers of a function wait for."""
    rows = engine.database.execute(
        "SELECT coalesce((SELECT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
        "                  WHERE l.pid = a.pid AND l.locktype = 'tuple'), 'no row') AS of"
        "  FROM pg_stat_activity a WHERE a.wait_event_type = 'Lock'"
        "   AND a.query LIKE '%%' || %s || '%%' AND a.datname = current_database()",
        [f"leasehold.{function}("],
    )
    return [row["of"] for row in rows]


# Blocks a former leader's write after its check of the lease. A locked row blocks no write.
SAME_LEDGER_ROW = (
    "INSERT INTO leasehold.outbox_attempts (intent_id, attempt_no, state, holder, started_at,"
    " finished_at) VALUES (%s, 1, 'FAILED', 'somebody', now(), now())"
)


async def test_takeover_waits_for_a_write_of_the_former_leader(engine):
    """The write holds the lease row. It passed its check, so its result stands, and nobody repeats
    the call.
    """
    engine.publish("ledger", scope="cluster")
    # The write waits for longer than a worker takes to start on a busy machine.
    slow = LONG_LEASE | {"lock_seconds": "25", "statement_seconds": "26", "lease_seconds": "60"}
    former = await start_leader(engine, **slow)
    [intent_id] = engine.outbox.enqueue(1, "ledger", delay_seconds=0.6)
    other = engine.database.connect(autocommit=False)
    other.execute(SAME_LEDGER_ROW, [intent_id])
    await until(lambda: waits(engine, "record_attempts"))
    former.send(SIGSTOP)
    engine.outbox.expire_lease()
    successor = engine.worker(**slow)
    assert await until(lambda: waits(engine, "acquire_lease")) == ["leases"]
    assert (lease(engine)["lease_epoch"], successor.lines("leader_acquired")) == (1, [])
    other.rollback()
    assert (await successor.logged("leader_acquired"))["lease_epoch"] == 2
    await engine.until_status([intent_id])
    former.send(SIGCONT)
    await former.logged("leader_lost")
    found = fences(engine), engine.outbox.states(intent_id), holders(engine, [intent_id])
    assert found == ([1], ["DISPATCHED"], {await former.started()})


def settings_of(cluster, **more):
    return read_settings(
        database_url=cluster.database.url_as("executor"),
        lease_seconds=60,
        contracts_seconds=0.1,
        **{name: float(value) for name, value in (LONG_LEASE | more).items()},
    )


async def until_leading(instance):
    """Wait until an instance in this process leads."""
    return await until(
        lambda: next((one for one in instance.elections.electors if one.is_leader), None)
    )


async def test_leader_that_steps_down_no_longer_gives_out_its_lease(cluster):
    async with Instance(settings_of(cluster)) as instance:
        leadership = await until_leading(instance)
        instance.require_lease(CLUSTER_LEASE)
        assert instance.scopes()[f"cluster/{CLUSTER_LEASE}"].mode == "leader"
        leadership.step_down(leadership.term, DatabaseUnavailable("a test"))
        with pytest.raises(NotLeader):
            instance.require_lease(CLUSTER_LEASE)
        assert instance.scopes()[f"cluster/{CLUSTER_LEASE}"].mode == "follower"
        with pytest.raises(NotLeader, match="a test"):
            await leadership.confirm(leadership.term)


async def test_leader_shows_the_expiry_that_the_database_granted(cluster):
    async with Instance(settings_of(cluster)) as instance:
        await until_leading(instance)
        first = lease(cluster)["expires_at"]

        def shown():
            return instance.scopes()[f"cluster/{CLUSTER_LEASE}"].lease_expires_at

        await until(lambda: lease(cluster)["expires_at"] > first)
        await until(lambda: shown() == lease(cluster)["expires_at"])


async def test_leader_logs_its_renewal_with_the_new_expiry(cluster):
    leader = await start_leader(cluster, **LONG_LEASE)
    acquired, renewed = (
        await leader.logged("leader_acquired"),
        await leader.logged("leader_renewed"),
    )
    for name in ("holder_id", "lease_name", "lease_epoch"):
        assert renewed[name] == acquired[name]
    assert datetime.fromisoformat(renewed["expires_at"]) > datetime.fromisoformat(
        acquired["expires_at"]
    )


def lost_leases(instance):
    return instance.metrics.registry.get_sample_value(
        "leasehold_lease_lost_total", {"worker_id": instance.worker_id}
    )


async def test_only_lost_leases_are_counted_as_lost(cluster, caplog):
    async with Instance(settings_of(cluster)) as instance:
        leadership = await until_leading(instance)
        [intent_id] = cluster.outbox.enqueue(1, "ledger", delay_seconds=0.4)
        with cluster.database.connect(autocommit=False) as other:
            other.execute(
                "UPDATE leasehold.outbox_pending SET due_at = due_at + interval '1 hour'"
                " WHERE intent_id = %s",
                [intent_id],
            )
            await until(lambda: "begin_refused" in caplog.text)
        await until(lambda: not instance.elections.in_flight)
        assert lost_leases(instance) == 0, "it was not due any more, and nobody took it from us"
        leadership.step_down(leadership.term, DatabaseUnavailable("a test"))
        await until(lambda: lost_leases(instance) == 1)
        await until_leading(instance)
    assert lost_leases(instance) == 1, "it let go by itself"


async def test_leader_aborts_a_call_that_does_not_end_and_records_it_in_doubt(engine, tmp_path):
    engine.publish(
        "own",
        scope="cluster",
        gateway={"kind": "python", "function": "tests.support.python_gateways:cling"},
        # A busy machine gets the second call done in this time, which takes none.
        call_timeout_seconds=2,
        connect_timeout_seconds=1,
    )
    [intent_id] = engine.outbox.enqueue(1, "own")
    leader = engine.worker(test_folder=str(tmp_path), **ROW_LEASE_SETTINGS)
    await leader.logged("call_aborted")
    await engine.until_status([intent_id])
    assert engine.outbox.states(intent_id) == ["IN_DOUBT", "DISPATCHED"]
    assert engine.outbox.ledger(intent_id)[0]["reason"] == "aborted"
    assert not leader.lines("leader_stepped_down")


async def test_leader_whose_function_swallows_cancellation_exits_and_leaves_doubt(engine, tmp_path):
    engine.publish(
        "own",
        "blind",
        scope="cluster",
        gateway={"kind": "python", "function": "tests.support.python_gateways:cling"},
    )
    [intent_id] = engine.outbox.enqueue(1, "own")
    leader = engine.worker(
        test_folder=str(tmp_path), **(ROW_LEASE_SETTINGS | {"shutdown_seconds": "0.3"})
    )
    await until((tmp_path / "cling").exists)
    leader.send(SIGTERM)
    assert await leader.ended() == 0
    assert leader.lines("calls_abandoned")
    engine.outbox.expire_lease()
    await start_leader(engine, test_folder=str(tmp_path), **ROW_LEASE_SETTINGS)
    await engine.until_status([intent_id], "held")
    assert engine.outbox.states(intent_id)[0] == "IN_DOUBT"

"""Each SQLSTATE becomes one error class; the tests provoke each error for real."""

from __future__ import annotations

from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors

from leasehold.domain.errors import (
    AccessDenied,
    AppendOnlyViolation,
    DatabaseUnavailable,
    IdempotencyConflict,
    InvalidArgument,
    InvalidCompletionState,
    LeaseholdError,
    LeaseLost,
    MigrationError,
    RetryCeilingReached,
    SchemaTooOld,
    TerminalGuardHit,
    Unavailable,
)
from leasehold.domain.intent import IntentId, NewIntent
from leasehold.domain.outcome import Accepted, Result
from leasehold.store.pool_settings import PoolSettings
from leasehold.store.postgres.errors import ERRORS, translated
from leasehold.store.postgres.sql_files import granted_roles
from leasehold.store.postgres.store import PostgresStore

pytestmark = pytest.mark.one_server

RAISE = "DO $$ BEGIN RAISE EXCEPTION 'as if' USING ERRCODE = '{}'; END $$"
INSERT_ATTEMPT = """
INSERT INTO leasehold.outbox_attempts (
  intent_id, attempt_no, state, holder, started_at, finished_at)
VALUES (%s, %s, %s, 'owner', clock_timestamp(), clock_timestamp())
"""
OLD_ID = UUID("00000000-0000-7000-8000-000000000001")  # of 1970: in the default partition


async def test_lost_lease_is_named(stores):
    lease = (await stores.executor.acquire_lease("leader", "a", 30)).lease
    await stores.executor.release_lease(lease)
    with pytest.raises(LeaseLost, match=r"lease leader .* is lost") as raised:
        await stores.executor.renew_lease(lease, 30)
    assert raised.value.lease_name == "leader"
    assert raised.value.__cause__.sqlstate == "P7002"


async def test_call_that_was_never_begun_cannot_be_reported(stores, outbox):
    outbox.publish("payments", guarantee="lookup")
    outbox.enqueue(target="payments")
    [claimed] = await stores.executor.claim_outbox_batch(1, "w", 30, ["payments"])
    result = Result(
        intent_id=claimed.intent_id, lease_token=claimed.lease_token, outcome=Accepted()
    )
    with pytest.raises(InvalidCompletionState, match="never begun: Begin the attempt"):
        await stores.executor.complete_outbox_attempts("w", [result])


async def test_more_attempts_than_the_ceiling_are_refused(stores):
    terms = {"scope": "item", "guarantee": "keyed", "gateway": None, "attempts_max": 21}
    with pytest.raises(RetryCeilingReached, match="21"):
        await stores.operator.publish_contract("sms", terms, "ann")


async def test_key_of_another_payload_names_its_intent(stores, outbox):
    outbox.publish("sms")
    [first] = outbox.enqueue(idempotency_key="k")
    with pytest.raises(IdempotencyConflict) as raised:
        await stores.ingest.enqueue_intent(
            NewIntent(target="sms", payload="other", idempotency_key="k")
        )
    assert raised.value.intent_id == first


def test_ledger_refuses_its_own_owner(database, outbox):
    outbox.publish("sms")
    outbox.enqueue()
    outbox.complete(outbox.claim())
    with pytest.raises(AppendOnlyViolation, match="append-only"), translated():
        database.owner_execute("UPDATE leasehold.outbox_attempts SET holder = 'me'")


@pytest.mark.parametrize("intent_id", [OLD_ID, None], ids=["default", "month"])
def test_second_terminal_row_is_a_guard_hit_on_every_partition(database, outbox, intent_id):
    if intent_id is None:
        database.execute("SELECT leasehold.create_ledger_partitions(1)")
        outbox.publish("sms")
        [intent_id] = outbox.enqueue()
    database.owner_execute(INSERT_ATTEMPT, [intent_id, 1, "DISPATCHED"])
    with pytest.raises(TerminalGuardHit) as raised, translated():
        database.owner_execute(INSERT_ATTEMPT, [intent_id, 2, "FAILED"])
    assert raised.value.intent_id == intent_id
    [row] = database.execute(
        "SELECT tableoid::regclass::text AS name FROM leasehold.outbox_attempts"
    )
    assert row["name"].endswith("outbox_attempts_default") is (intent_id == OLD_ID)


@pytest.mark.parametrize("intent_id", [OLD_ID, None], ids=["default", "month"])
def test_other_unique_violation_is_a_defect_and_not_translated(database, outbox, intent_id):
    if intent_id is None:
        outbox.publish("sms")
        [intent_id] = outbox.enqueue()
    database.owner_execute(INSERT_ATTEMPT, [intent_id, 1, "RETRYABLE"])
    with pytest.raises(errors.UniqueViolation), translated():
        database.owner_execute(INSERT_ATTEMPT, [intent_id, 1, "RETRYABLE"])


@pytest.mark.parametrize(
    ("payload", "sqlstate"),
    [("a\x00b", "22P05"), ({"a": "\ud800"}, "22P02")],
    ids=["NUL", "half a character"],
)
async def test_text_that_the_database_cannot_hold_is_refused(stores, outbox, payload, sqlstate):
    outbox.publish("sms")
    with pytest.raises(InvalidArgument) as raised:
        await stores.ingest.enqueue_intent(NewIntent(target="sms", payload=payload))
    assert raised.value.__cause__.sqlstate == sqlstate


async def test_argument_out_of_bounds_is_refused_by_name(stores):
    with pytest.raises(InvalidArgument, match=r"^batch_size is 0, but must be from 1 to 10000"):
        await stores.executor.claim_outbox_batch(0, "w", 30, [])


async def test_text_that_cannot_be_sent_is_refused(stores):
    with pytest.raises(InvalidArgument, match="NUL"):
        await stores.executor.acquire_lease("a\x00b", "w", 30)


@pytest.mark.parametrize("has_a_role", [True, False])
async def test_login_that_may_not_call_a_function_is_told_which_role_it_needs(database, has_a_role):
    needed = r": have a DBA grant this login the role leasehold_executor, or set "
    # Without any role, the login may not even look into the schema.
    refused = "function claim_outbox_batch" if has_a_role else "schema leasehold"
    settings = PoolSettings(role="leasehold_ingest" if has_a_role else "pg_monitor")
    async with PostgresStore(database.url, settings) as store:
        with pytest.raises(AccessDenied, match=refused + needed) as raised:
            await store.claim_outbox_batch(1, "w", 30, [])
    assert raised.value.roles == ("leasehold_executor",)


async def test_reader_without_a_role_is_told_each_role_that_would_do(stores):
    with pytest.raises(AccessDenied, match="one of the roles leasehold_operator, ") as raised:
        await stores.ingest.list_intents(limit=1)
    expected = ("leasehold_operator", "leasehold_readonly", "leasehold_auditor")
    assert raised.value.roles == expected


def test_roles_of_every_function_are_those_that_the_database_grants(database):
    rows = database.execute(
        "SELECT p.proname AS name, array_agg(DISTINCT g.grantee::regrole::text) AS roles"
        "  FROM pg_proc p, aclexplode(p.proacl) g"
        " WHERE p.pronamespace = 'leasehold'::regnamespace AND g.privilege_type = 'EXECUTE'"
        "   AND g.grantee <> p.proowner AND g.grantee <> 0 GROUP BY 1"
    )
    assert len(rows) > 20
    for row in rows:
        assert sorted(granted_roles(row["name"])) == sorted(row["roles"]), row["name"]


async def test_database_without_the_schema_is_reported_as_not_migrated(empty_database, database):
    async with PostgresStore(empty_database.url) as store:
        with pytest.raises(MigrationError, match="run `leasehold migrate`"):
            await store.release_instance("x")
    database.owner_execute("DROP FUNCTION leasehold.release_instance(text)")
    async with PostgresStore(database.url) as store:
        with pytest.raises(MigrationError, match="run `leasehold migrate`"):
            await store.release_instance("x")


async def test_wait_for_a_lock_ends_before_the_lease_does(database, stores):
    lease = (await stores.executor.acquire_lease("leader", "a", 30)).lease
    blocker = database.session("owner")
    blocker.run("BEGIN")
    blocker.run("SELECT FROM leasehold.leases FOR UPDATE")
    settings = PoolSettings(lock_seconds=0.2)
    async with PostgresStore(database.url_as("executor"), settings) as store:
        with pytest.raises(DatabaseUnavailable) as raised:
            await store.renew_lease(lease, 30)
        assert raised.value.reason is Unavailable.LOCKED
        blocker.run("ROLLBACK")
        assert await store.renew_lease(lease, 30)


@pytest.mark.parametrize(
    ("statement", "kind", "sqlstate"),
    [
        # As from a database that became a standby.
        ("BEGIN READ ONLY; CREATE TABLE public.one ()", DatabaseUnavailable, "25006"),
        (RAISE.format("08006"), DatabaseUnavailable, "08006"),
        (RAISE.format("40001"), DatabaseUnavailable, "40001"),
        (RAISE.format("53100"), DatabaseUnavailable, "53100"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", DatabaseUnavailable, "57P01"),
        ("SELECT pg_read_file('no such file')", DatabaseUnavailable, "58P01"),
        ("SELECT repeat('0123456789', 200000000)", InvalidArgument, "54000"),
        ("SELECT 1 / 0", InvalidArgument, "22012"),
        ("SELECT FROM leasehold.nothing", SchemaTooOld, "42P01"),
    ],
)
def test_classes_of_sqlstates_are_translated(database, statement, kind, sqlstate):
    with pytest.raises(kind) as raised, translated():
        database.connect().execute(statement)
    assert raised.value.__cause__.sqlstate == sqlstate


@pytest.mark.parametrize(
    ("sqlstate", "reason"),
    [
        ("55P03", Unavailable.LOCKED),
        ("40P01", Unavailable.LOCKED),
        ("40001", Unavailable.ROLLED_BACK),
        ("57014", Unavailable.ROLLED_BACK),
        ("40003", Unavailable.NO_ANSWER),
        ("57P01", Unavailable.NO_ANSWER),
        ("08P01", Unavailable.REFUSED),
        ("08006", Unavailable.NO_ANSWER),
    ],
)
def test_unavailable_database_says_whether_the_call_was_rolled_back(database, sqlstate, reason):
    with pytest.raises(DatabaseUnavailable) as raised, translated():
        database.connect().execute(RAISE.format(sqlstate))
    assert raised.value.reason is reason
    assert raised.value.is_rolled_back is (reason in {"locked", "rolled_back"})


def end_both(last, first):
    """End both sessions; the server may choose either as the victim."""
    last.result()
    first.result()


def test_deadlock_can_be_retried(database):
    database.owner_execute(
        "INSERT INTO leasehold.leases SELECT name, 'a', 1, now(), now(), now(), now()"
        "  FROM unnest('{x,y}'::text[]) AS name"
    )
    first, second = database.session("owner"), database.session("owner")
    lock = "SELECT FROM leasehold.leases WHERE lease_name = %s FOR UPDATE"
    for session, name in ((first, "x"), (second, "y")):
        session.run("BEGIN")
        session.run(lock, [name])
    waiting = first.start(lock, ["y"])
    waiting.assert_blocked()
    with pytest.raises(DatabaseUnavailable) as raised, translated():
        end_both(second.start(lock, ["x"]), waiting)
    assert raised.value.reason is Unavailable.LOCKED


@pytest.mark.parametrize("statement", ["SELEKT", "SELECT nothing", RAISE.format("ZZ999")])
def test_unknown_error_is_a_defect_and_not_translated(database, statement):
    with pytest.raises(psycopg.Error) as raised, translated():
        database.connect().execute(statement)
    assert not isinstance(raised.value, LeaseholdError)


def test_table_has_every_sqlstate_that_the_functions_raise(database):
    sources = database.execute(
        "SELECT prosrc FROM pg_proc WHERE pronamespace = 'leasehold'::regnamespace"
    )
    raised = {part.split("'")[1] for row in sources for part in row["prosrc"].split("ERRCODE")[1:]}
    assert raised >= {"22023", "P7002", "P7003", "P7004", "P7005", "P0001"}
    # Defects are not translated: a row breaks a rule of its table, or a copy is not complete.
    raised -= {"23514", "XX001"}
    assert [state for state in raised if not {state, state[:2]} & set(ERRORS)] == []


async def test_unknown_intent_is_a_verdict_and_not_an_error(stores):
    verdict = await stores.operator.cancel_intent(IntentId(uuid4()), "ann", "why")
    assert verdict == "not_found"

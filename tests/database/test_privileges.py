"""The privileges of each role: one table of expectations; every cell is tried with a real login.

A table, column or function without an entry here fails the tests. Every attempt is rolled back.
"""

from __future__ import annotations

import re

import psycopg
import pytest
from psycopg import errors, sql

ROLES = ("ingest", "executor", "operator", "readonly", "auditor", "api")
EVERYBODY = set(ROLES)
READERS = EVERYBODY - {"ingest", "api"}
NOBODY: set[str] = set()

# Relation: who may SELECT, and the columns hidden from whom.
RELATIONS = {
    "api_tokens": (NOBODY, {}),
    "contracts": (EVERYBODY - {"api"}, {}),
    "generations": (READERS, {}),
    "instance_status": (READERS, {}),
    "instances": (READERS, {}),
    "intent_status": (READERS, {}),
    "intents": (
        READERS,
        # The hash of a small payload can be guessed, so it is content too.
        dict.fromkeys(("payload", "body", "payload_hash"), READERS - {"auditor"}),
    ),
    "leader_heartbeat": (READERS, {}),
    "leases": (READERS, {}),
    "outbox_attempts": (READERS, {"lease_token": READERS}),
    "outbox_attempts_YYYY_MM": (NOBODY, {}),
    "outbox_attempts_default": (NOBODY, {}),
    "outbox_pending": (READERS, {"lease_token": READERS}),
    "call_marks": (READERS, {}),
    "queue_counts": (NOBODY, {}),
    "queue_depths": (READERS - {"executor"}, {}),
    "schema_migrations": (EVERYBODY, {}),
    "schema_sources": (EVERYBODY, {}),
    "stream_floors": (NOBODY, {}),
    "stream_interventions": (READERS, {}),
    "stream_pauses": (READERS, {}),
    "intent_interventions": (READERS, {}),
    "streams": (NOBODY, {}),
    "blocked_counts": (NOBODY, {}),
    "blocked_streams": (READERS, {}),
    "supervisor": (READERS, {}),
    "watch_turns": (NOBODY, {}),
}
VIEWS = {"blocked_streams", "instance_status", "intent_status", "supervisor"}

INTAKE = ("enqueue_intent", "enqueue_intents")
EXECUTION = (
    "acquire_lease",
    "acquire_lease_by_lock",
    "begin_generation",
    "begin_leased_attempts",
    "begin_outbox_attempts",
    "begin_stream_attempts",
    "claim_outbox_batch",
    "claim_streams",
    "complete_outbox_attempt",
    "complete_outbox_attempts",
    "create_ledger_partitions",
    "move_ledger_rows",
    "read_lock_squatters",
    "hold_lease",
    "mark_calls",
    "prune_streams",
    "read_former_terms",
    "read_open_transactions",
    "read_open_writers",
    "record_attempts",
    "record_leader_heartbeat",
    "record_stream_attempts",
    "refresh_due_rows",
    "refresh_schedule",
    "refresh_streams",
    "release_instance",
    "release_lease",
    "release_leased_attempts",
    "release_outbox_claims",
    "release_streams",
    "renew_instance",
    "renew_lease",
    "renew_outbox_leases",
    "renew_streams",
    "repair_expired_leases",
    "repair_missed_deadlines",
    "surplus_streams",
    "unmark_calls",
    "waiting_streams",
)
INTERVENTION = (
    "begin_restored_generation",
    "cancel_intent",
    "pause_stream",
    "publish_contract",
    "redrive_intents",
    "repair_restored_intents",
    "resolve_intent",
    "retry_intent_now",
    "resume_stream",
    "skip_stream_head",
)
# Retention, the tokens of the HTTP API, and the helpers of the functions above.
OWNERS = (
    "missing_verdict",
    "announce_change",
    "append_and_continue_streams",
    "append_attempts",
    "content_hash",
    "copy_late_ledger_rows",
    "create_token",
    "put_calls_in_doubt",
    "queue_depth",
    "record_expired_claims",
    "remove_call_marks",
    "enqueue_one",
    "enqueue_problem",
    "enqueue_verdict",
    "intent_due_at",
    "lowest_intent_id",
    "first_intent_of_key",
    "key_difference",
    "intent_accepted_at",
    "intent_problem",
    "json_text_bytes",
    "is_marked_call",
    "check_attempt_row",
    "check_intent_row",
    "check_pending_row",
    "is_unbegun_call",
    "judge_outcomes",
    "new_outcome",
    "taken_over_outcome",
    "intent_deadline_at",
    "ledger_months",
    "list_tokens",
    "lock_for_intervention",
    "lock_call_marks",
    "lock_missed_under_leases",
    "try_lock_call_marks",
    "repair_lease_times",
    "are_lease_times_possible",
    "lock_streams",
    "create_stream",
    "idle_streams",
    "is_stream_begun",
    "lock_begun_rows",
    "lock_pending_rows",
    "without_outcomes",
    "lock_expired_streams",
    "lock_held_streams",
    "lost_streams",
    "pause_failed_streams",
    "apply_stream_pauses",
    "end_stream_pauses",
    "require_walk",
    "advance_streams",
    "decide_streams",
    "due_batch",
    "due_confirmations",
    "lock_settled_streams",
    "look_at_streams",
    "pass_over_locked",
    "read_pipeline",
    "head_action",
    "take_streams",
    "assign_stream_numbers",
    "batch_intent_id",
    "new_intent_id",
    "prune",
    "lock_stream_for_intervention",
    "record_blocked_counts",
    "record_intervention",
    "read_intents",
    "rows_within_budget",
    "share_batch",
    "read_results",
    "redrive_intent",
    "refuse_change",
    "refuse_row",
    "refuse_unbegun",
    "release_leases",
    "renew_leases",
    "requeue_expired_claims",
    "require_between",
    "require_claims",
    "require_intervention",
    "require_lease",
    "require_leases",
    "require_list",
    "require_name",
    "require_read_committed",
    "revoke_token",
    "defer_repair",
    "stream_lease_name",
    "take_lease",
    "verify_leases",
    "expired_claim_outcome",
    "fencing_token",
    "current_token_floor",
    "database_identity",
    "may_be_sent_unseen",
    "next_token_floor",
    "read_database_identity",
    "require_generation",
    "require_restored",
)
FUNCTIONS: dict[str, set[str]] = {
    **{name: {"ingest"} for name in INTAKE},
    **{name: {"executor"} for name in EXECUTION},
    **{name: {"operator"} for name in INTERVENTION},
    **dict.fromkeys(OWNERS, NOBODY),
    "notify_targets": {"ingest", "executor"},
    "read_active_tokens": {"api"},
    "renew_api_instance": {"api"},
    **dict.fromkeys(
        (
            "list_intents",
            "read_blocked_streams",
            "read_events",
            "read_stream",
            "record_queue_depths",
        ),
        READERS - {"executor"},
    ),
    **dict.fromkeys(("begin_watch_turn", "record_queue_counts"), READERS),
    # A function inside a view runs as the view's reader.
    "final_status": READERS,
}

WRITES = {
    "INSERT": "INSERT INTO leasehold.{} ({}) VALUES (NULL)",
    "UPDATE": "UPDATE leasehold.{} SET {} = NULL",
    "DELETE": "DELETE FROM leasehold.{}",
    "TRUNCATE": "TRUNCATE leasehold.{}",
    "LOCK": "LOCK leasehold.{} IN ACCESS EXCLUSIVE MODE",
    "TRIGGER": """CREATE TRIGGER t BEFORE INSERT ON leasehold.{}
                  EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()""",
    "DROP": "DROP TABLE leasehold.{}",
}
COLUMNS = """
SELECT c.relname AS relation, array_agg(a.attname::text ORDER BY a.attnum) AS columns
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
 WHERE c.relnamespace = 'leasehold'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
   AND a.attnum > 0 AND NOT a.attisdropped
 GROUP BY 1 ORDER BY 1"""
ALL_FUNCTIONS = """
SELECT p.proname AS name, p.prosecdef AS is_definer, pg_get_userbyid(p.proowner) AS owner,
       p.prokind AS kind,
       (SELECT substr(item, 13) FROM unnest(p.proconfig) AS item
         WHERE item LIKE 'search\\_path=%') AS path,
       array(SELECT format('%I.%I', t.typnamespace::regnamespace, t.typname)
               FROM unnest(p.proargtypes) WITH ORDINALITY AS given (oid, place)
               JOIN pg_type t USING (oid) ORDER BY place) AS types
  FROM pg_proc p WHERE p.pronamespace = 'leasehold'::regnamespace ORDER BY 1"""


@pytest.fixture
def columns(outbox, database):
    """Return the columns of every relation; the partitions of the ledger count as one."""
    outbox.call("executor", "create_ledger_partitions", 0)
    return {row["relation"]: row["columns"] for row in database.execute(COLUMNS)}


@pytest.fixture
def functions(database):
    rows = database.execute(ALL_FUNCTIONS)
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names)), "an overloaded function needs an entry for each form"
    return rows


def kind_of(relation: str) -> str:
    return re.sub(r"_\d{4}_\d{2}$", "_YYYY_MM", relation)


def refusal(connection, statement: sql.Composable | str) -> type[psycopg.Error] | None:
    """Try a statement and roll it back. Return the class of its error, or None if it is allowed."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(statement)
    except psycopg.Error as error:
        return type(error)
    return None


def is_denied(connection, statement: sql.Composable | str) -> bool:
    return refusal(connection, statement) is errors.InsufficientPrivilege


def compose(text: str, *names: str) -> sql.Composed:
    return sql.SQL(text).format(*[sql.Identifier(name) for name in names])


def test_every_relation_and_function_has_an_entry(columns, functions):
    assert {kind_of(relation) for relation in columns} == set(RELATIONS)
    assert {row["name"] for row in functions} == set(FUNCTIONS)
    for relation, (_, hidden) in RELATIONS.items():
        found = next(names for name, names in columns.items() if kind_of(name) == relation)
        assert set(hidden) <= set(found)


def test_no_role_reads_a_column_that_it_may_not(database, columns):
    expected, found = {}, {}
    for role in ROLES:
        connection = database.connect(role)
        for relation, names in columns.items():
            readers, hidden = RELATIONS[kind_of(relation)]
            visible = {name: role in readers - hidden.get(name, set()) for name in names}
            for name in names:
                statement = compose("SELECT {} FROM leasehold.{} LIMIT 0", name, relation)
                expected[role, relation, name] = visible[name]
                found[role, relation, name] = not is_denied(connection, statement)
            statement = compose("SELECT * FROM leasehold.{} LIMIT 1", relation)
            expected[role, relation, "*"] = all(visible.values())
            found[role, relation, "*"] = not is_denied(connection, statement)
    assert found == expected


def test_no_role_writes_to_any_relation_except_through_the_functions(database, columns):
    not_refused = {}
    for role in ROLES:
        connection = database.connect(role)
        for relation, names in columns.items():
            refusals = {errors.InsufficientPrivilege}
            if relation in VIEWS:
                # Nobody can write to these, with any privileges.
                refusals |= {errors.ObjectNotInPrerequisiteState, errors.WrongObjectType}
            for verb, statement in WRITES.items():
                places = [relation, names[0]][: statement.count("{}")]
                error = refusal(connection, compose(statement, *places))
                if error not in refusals:
                    not_refused[role, relation, verb] = error
    assert not_refused == {}


def test_no_role_executes_a_function_that_it_may_not(database, functions):
    expected, found = {}, {}
    for role in (*ROLES, "owner"):
        connection = database.connect(role)
        for row in functions:
            name = row["name"]
            expected[role, name] = role == "owner" or role in FUNCTIONS[name]
            # All arguments are NULL. Privileges are checked before arguments.
            found[role, name] = not is_denied(connection, call_of(row))
    assert found == expected


def call_of(function) -> str:
    types = [one.replace("anyarray", "_text") for one in function["types"]]
    places = ", ".join(f"NULL::{one}" for one in types)
    return f"SELECT leasehold.{function['name']}({places})"


def test_no_login_becomes_another_role(database):
    roles = (*ROLES, "owner")
    superuser = database.execute("SELECT current_user AS name")[0]["name"]
    found = {}
    for login in roles:
        connection = psycopg.connect(database.url_as(login), autocommit=True)
        try:
            for role in roles:
                denied = is_denied(connection, compose("SET ROLE {}", f"leasehold_{role}"))
                found[login, role] = not denied
            assert is_denied(connection, compose("SET ROLE {}", superuser))
            assert is_denied(connection, compose("SET SESSION AUTHORIZATION {}", superuser))
        finally:
            connection.close()
    assert found == {(login, role): login == role for login in roles for role in roles}


def test_no_runtime_role_creates_anything_in_the_schema(database):
    found = {}
    for role in ROLES:
        connection = database.connect(role)
        for statement in (
            "CREATE TABLE leasehold.mine (id integer)",
            "CREATE VIEW leasehold.mine AS SELECT 1 AS id",
            "CREATE FUNCTION leasehold.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
            "CREATE OR REPLACE FUNCTION leasehold.missing_verdict(uuid) RETURNS text AS 'SELECT 1'",
            "ALTER FUNCTION leasehold.missing_verdict(uuid) OWNER TO CURRENT_USER",
            "ALTER SCHEMA leasehold OWNER TO CURRENT_USER",
            "GRANT leasehold_owner TO CURRENT_USER",
        ):
            if not is_denied(connection, statement):
                found[role, statement] = "allowed"
    assert found == {}


def test_stranger_has_nothing_at_all(database, columns, functions):
    connection = database.connect()
    with connection.transaction(force_rollback=True):
        connection.execute("CREATE ROLE a_stranger")
        connection.execute("SET LOCAL ROLE a_stranger")
        for relation in columns:
            assert is_denied(connection, compose("SELECT FROM leasehold.{} LIMIT 0", relation))
        for row in functions:
            assert is_denied(connection, call_of(row)), row["name"]
    # Without USAGE on the schema, the other grants do not matter.
    granted = database.execute("""
        SELECT c.relname AS name, g.privilege_type
          FROM pg_class c,
               aclexplode(coalesce(c.relacl, acldefault(
                 CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner))) AS g
         WHERE c.relnamespace = 'leasehold'::regnamespace AND g.grantee = 0
        UNION ALL
        SELECT c.relname || '.' || a.attname, g.privilege_type
          FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid, aclexplode(a.attacl) AS g
         WHERE c.relnamespace = 'leasehold'::regnamespace AND g.grantee = 0
        UNION ALL
        SELECT p.proname, g.privilege_type
          FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS g
         WHERE p.pronamespace = 'leasehold'::regnamespace AND g.grantee = 0
        UNION ALL
        SELECT n.nspname, g.privilege_type
          FROM pg_namespace n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS g
         WHERE n.nspname = 'leasehold' AND g.grantee = 0""")
    assert granted == []


def test_security_definer_function_searches_the_temporary_schema_last(functions):
    definers = [row for row in functions if row["is_definer"]]
    for row in definers:
        assert row["path"] == "pg_catalog, leasehold, pg_temp", row["name"]
    assert {row["owner"] for row in functions} == {"leasehold_owner"}
    # Granted functions run as the owner. Functions of the owner need not, except for retention.
    in_views = {"final_status"}
    callable_names = {name for name, roles in FUNCTIONS.items() if roles} - in_views
    assert {row["name"] for row in definers} == callable_names | {"prune"}

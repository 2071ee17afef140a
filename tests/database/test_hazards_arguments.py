"""Hazard 20 of DESIGN.md: shadowed search paths, limits that are NULL, absurd arguments.

Every function that a runtime role may call is found in the catalog, so a new one is tested as soon
as it exists; an argument that is not in VALID fails the test until someone says what is valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import psycopg
import pytest

from tests.support.outbox import CLUSTER_LEASE, ZERO_ID
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

GRANTED = """
SELECT p.oid::regprocedure::text AS signature, p.proname AS name, p.proargnames AS argument_names,
       array(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS a (t, place)
              ORDER BY place) AS types,
       pg_get_function_arguments(p.oid) AS arguments,
       p.prosecdef AS is_definer, p.proconfig AS config,
       array(SELECT replace(r.rolname, 'leasehold_', '') FROM pg_roles r
              WHERE r.rolname LIKE 'leasehold\\_%%' AND r.rolname <> 'leasehold_owner'
                AND has_function_privilege(r.oid, p.oid, 'EXECUTE') ORDER BY 1) AS roles
  FROM pg_proc p
 WHERE p.pronamespace = 'leasehold'::regnamespace AND p.prokind = 'f'
 ORDER BY 1
"""
# Not called as an action: it names what a view shows, so any text is valid.
NOT_ASKED = {"final_status"}
LONG = "x" * 70_000
BAD = {
    "text": [None, "", LONG, "a\nb"],
    "integer": [None, -1, 2**31 - 1],
    "bigint": [None, -1, 2**63 - 1],
    "double precision": [None, -1.0, float("nan"), float("inf"), 1e300],
    "uuid": [None],
    "timestamp with time zone": [None],
    "boolean": [None],
    "boolean[]": [[None], [True] * 3],
    "jsonb": [None, '"text"', "42", f'"{LONG}"'],
    "text[]": [None, [None], ["a", "a"], [f"t{n}" for n in range(10_001)]],
    "uuid[]": [None, [None], [ZERO_ID, ZERO_ID], [UUID(int=n) for n in range(10_001)]],
    "bigint[]": [None, [None], [-1], [2**63 - 1], [1] * 10_001],
    "integer[]": [[None], [-1], [1] * 1001],
    "timestamp with time zone[]": [[None], ["-infinity"] * 3],
    "double precision[]": [None, [None], [-1.0], [float("nan")], [float("inf")], [1.0, 1.0]],
}
VALID = {
    "p_accepted_before": "2020-01-01T00:00:00Z",
    "p_after": "stream/sms/stream",
    "p_after_attempt_no": 0,
    "p_after_due_at": ["-infinity"] * 4,
    "p_due_from": ["-infinity"] * 4,
    "p_is_full": True,
    "p_after_intent_id": ZERO_ID,
    "p_after_intent_ids": [ZERO_ID] * 4,
    "p_after_modified_at": "-infinity",
    "p_after_stream": "stream",
    "p_after_target": "sms",
    "p_after_transaction": 0,
    "p_alive_seconds": 30.0,
    "p_begin": False,
    "p_attempt_numbers": [1],
    "p_batch_size": 10,
    "p_before": ZERO_ID,
    "p_bytes_max": 1000000,
    "p_code": "code",
    "p_codes": ["code"],
    "p_content_bytes": 1000,
    "p_delay_seconds": 1.0,
    "p_detail": "{}",
    "p_details": ["detail"],
    "p_elapsed_seconds": [0.5],
    "p_free_idle": True,
    "p_grace_seconds": 1.0,
    "p_holder_id": "holder-1",
    "p_idempotency_key": "key",
    "p_idle_before": "2020-01-01T00:00:00Z",
    "p_instance_id": "instance",
    "p_intent": '{"payload": 1}',
    "p_intent_id": None,
    "p_keep": None,
    "p_intent_ids": None,
    "p_intents": '[{"target": "sms", "payload": 1}]',
    "p_continued": [CLUSTER_LEASE],
    "p_lease_epoch": 1,
    "p_lease_epochs": [1],
    "p_lease_name": CLUSTER_LEASE,
    "p_lease_names": [CLUSTER_LEASE],
    "p_lease_seconds": 30.0,
    "p_lease_token": None,
    "p_lease_tokens": None,
    "p_limit": 10,
    "p_limits": [1],
    "p_lock_key": 42,
    "p_lock_keys": [],
    "p_mark_no": 1,
    "p_months_ahead": 1,
    "p_name": "counts",
    "p_needs_content": [True],
    "p_note": "because",
    "p_operator": "operator",
    "p_options": "{}",
    "p_paused_by": "person",
    "p_paused_for": None,
    "p_payload": "1",
    "p_reason": "reason",
    "p_reference": "reference",
    "p_references": ["reference"],
    "p_results": "[]",
    "p_retry_after_seconds": 1.0,
    "p_role": "worker",
    "p_rows_max": 100,
    "p_seconds": 60.0,
    "p_since": "2020-01-01T00:00:00Z",
    "p_state": "DISPATCHED",
    "p_status": "pending",
    "p_stream": "stream",
    "p_stream_targets": ["sms"],
    "p_streams_held": [1],
    "p_streams_max": 10,
    "p_streams_wanted": [0],
    "p_target": "sms",
    "p_target_limits": [1],
    "p_targets": ["sms"],
    "p_terms": '{"scope": "item", "guarantee": "keyed", "gateway": null}',
    "p_turn_no": 1,
    "p_unsent": [ZERO_ID],
    "p_until": "2020-01-01T00:00:00Z",
    "p_window": 10,
    "p_worker_id": "worker-1",
    "p_yield_seconds": 2.0,
}
# Values that look absurd but are valid.
WORDS = ["", "a\nb"]  # of a gateway or a person
ANY_JSON = ['"text"', "42"]
FINE = {
    "p_note": ["a\nb"],
    "p_detail": [*WORDS, LONG, *ANY_JSON],  # cut to the length of the ledger column
    "p_reason": WORDS,
    "p_code": WORDS,
    "p_reference": WORDS,
    **{name: [[None]] for name in ("p_references", "p_codes", "p_details")},  # it said nothing
    "p_lock_key": [-1, 2**63 - 1],  # any hash
    "p_lock_keys": [[-1], [2**63 - 1]],
    "p_payload": [*ANY_JSON, f'"{LONG}"'],  # up to 1 MiB
}
# Arguments that are refused with another message.
OTHER_STATES = {"p_state": "P7003", "p_lease_token": "P7002"}


@dataclass(frozen=True)
class Function:
    name: str
    role: str
    arguments: tuple[tuple[str, str, bool], ...]

    def call(self, connection, values):
        places = ", ".join(
            f"{name} => %({name})s::{kind}" for name, kind, _ in self.arguments if name in values
        )
        connection.execute(f"SELECT * FROM leasehold.{self.name}({places})", values)


def granted_functions(database):
    found = []
    for row in database.execute(GRANTED):
        roles = row["roles"] or (["owner"] if row["name"].startswith("prune") else [])
        if not roles or row["name"] in NOT_ASKED:
            continue
        given = row["arguments"].split(", ")
        names = (row["argument_names"] or [])[: len(row["types"])]
        arguments = tuple(
            (name, kind, any(one.startswith(f"{name} ") and "DEFAULT NULL" in one for one in given))
            for name, kind in zip(names, row["types"], strict=True)
        )
        found.append(Function(row["name"], roles[0], arguments))
    return found


@pytest.fixture
def scene(outbox):
    """Create one of everything that an argument can name."""
    outbox.publish()
    outbox.publish("ledger", scope="cluster")
    outbox.enqueue(2)
    outbox.enqueue(target="ledger")
    outbox.acquire()
    claim, _ = outbox.claim()
    return VALID | {
        "p_intent_id": claim["intent_id"],
        "p_keep": [],
        "p_intent_ids": [claim["intent_id"]],
        "p_lease_token": claim["lease_token"],
        "p_lease_tokens": [claim["lease_token"]],
    }


def fingerprint(database):
    """Return all rows of the schema as one text."""
    tables = database.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'leasehold'::regnamespace"
        " AND relkind IN ('r', 'p') AND NOT relispartition ORDER BY 1"
    )
    return {
        row["relname"]: database.execute(
            f"SELECT md5(string_agg(t::text, ',' ORDER BY t::text)) AS sum"
            f"  FROM leasehold.{row['relname']} AS t"
        )
        for row in tables
    }


def outcome_of(function, connection, values):
    """Make a call, roll it back, and return its SQLSTATE."""
    try:
        with connection.transaction(force_rollback=True):
            function.call(connection, values)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def bad_calls(function):
    for argument, kind, may_be_null in function.arguments:
        for value in BAD[kind]:
            if value not in FINE.get(argument, []) and not (value is None and may_be_null):
                yield argument, value


def test_20_every_granted_function_refuses_null_negative_and_absurd_arguments(outbox, scene):
    functions = granted_functions(outbox.database)
    assert len(functions) > 20
    unknown = {name for one in functions for name, _, _ in one.arguments} - set(VALID)
    assert unknown == set(), "add a valid value of these arguments to VALID"
    before = fingerprint(outbox.database)
    accepted = []
    for function in functions:
        connection = outbox.as_role(function.role)
        values = {name: scene[name] for name, _, _ in function.arguments}
        for argument, value in bad_calls(function):
            state = outcome_of(function, connection, values | {argument: value})
            if state != OTHER_STATES.get(argument, "22023"):
                accepted.append((function.name, argument, repr(value)[:40], state))
    assert not accepted, "\n".join(map(str, accepted))
    assert fingerprint(outbox.database) == before


def test_20_arguments_listed_as_valid_are_not_refused(outbox, scene):
    """Otherwise the test above would pass for functions that refuse everything."""
    refusals = {}
    for function in granted_functions(outbox.database):
        values = {name: scene[name] for name, _, _ in function.arguments}
        state = outcome_of(function, outbox.as_role(function.role), values)
        if state is not None:
            refusals[function.name] = state
    assert refusals == {}


def test_20_every_security_definer_function_has_pg_temp_last_in_its_path(database):
    definers = [row for row in database.execute(GRANTED) if row["is_definer"]]
    assert len(definers) > 20
    wrong = [
        row["signature"]
        for row in definers
        if "search_path=pg_catalog, leasehold, pg_temp" not in (row["config"] or [])
    ]
    assert wrong == []


NAIVE_COUNT = """
CREATE FUNCTION leasehold.naive_count() RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = leasehold AS 'SELECT count(*) FROM contracts'"""


def test_20_temporary_tables_shadow_a_naive_function_and_none_of_ours(outbox):
    database = outbox.database
    outbox.publish()
    outbox.publish("ledger", scope="cluster")
    database.owner_execute(NAIVE_COUNT)
    database.owner_execute(
        "GRANT EXECUTE ON FUNCTION leasehold.naive_count() TO leasehold_executor"
    )
    tables = database.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'leasehold'::regnamespace"
        " AND relkind IN ('r', 'p', 'v')"
    )
    for role in ("ingest", "executor", "operator"):
        for row in tables:
            outbox.as_role(role).execute(f"CREATE TEMP TABLE {row['relname']} (trap int)")
            outbox.as_role(role).execute(f"GRANT ALL ON pg_temp.{row['relname']} TO PUBLIC")
    executor = outbox.as_role("executor")
    naive = executor.execute("SELECT leasehold.naive_count() AS n").fetchone()
    assert naive["n"] == 0, "two contracts, but the naive function counts the trap"
    first, second = outbox.enqueue(2)
    [third] = outbox.enqueue(target="ledger")
    claims = outbox.claim()
    assert {claim["intent_id"] for claim in claims} == {first, second}
    outbox.complete(claims[:1])
    outbox.expire_claims()
    assert len(outbox.call("executor", "repair_expired_leases", 10, "reaper")) == 1
    outbox.acquire()
    asked = ("holder-1", [CLUSTER_LEASE], [1], ["ledger"], 10)
    window = outbox.call("executor", "refresh_due_rows", *asked)
    assert [row["intent_id"] for row in window] == [third]
    [cancelled] = outbox.call("operator", "cancel_intent", third, "operator", "a test")
    assert cancelled["cancel_intent"] == "cancelled"
    for row in tables:
        assert executor.execute(f"SELECT FROM pg_temp.{row['relname']}").fetchall() == []


NAIVE_LIMIT = """
CREATE FUNCTION leasehold.naive_claim(p_batch_size integer) RETURNS SETOF uuid
LANGUAGE sql AS 'SELECT intent_id FROM leasehold.outbox_pending LIMIT p_batch_size'"""


def test_20_limit_null_is_unlimited_in_a_naive_function_and_refused_by_ours(outbox):
    outbox.publish()
    outbox.enqueue(50)
    outbox.database.owner_execute(NAIVE_LIMIT)
    assert len(outbox.database.owner_execute("SELECT leasehold.naive_claim(NULL)")) == 50
    with refused("22023"):
        outbox.claim(batch_size=None)
    with refused("22023"):
        outbox.call("executor", "repair_expired_leases", None, "reaper")
    with refused("22023"):
        outbox.call("executor", "repair_expired_leases", 10, "reaper", None)
    assert (
        outbox.database.execute("SELECT FROM leasehold.outbox_pending WHERE claimed_by IS NOT NULL")
        == []
    )

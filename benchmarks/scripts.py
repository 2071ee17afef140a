"""The statements of the SQL benchmark: our functions, and the same writes bare."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.server import BenchmarkServer

PAYLOAD = {"to": "+41 79 000 00 00", "text": "Your parcel arrives today.", "sender": "post"}
LEASE = "submission-manager-executor"
_HASH = r"'\x" + "00" * 32 + "'"
_NEW_NUMBER = "\\set number random(1, 1000000000000000000)"


@dataclass(frozen=True)
class Script:
    """A pgbench script, and values that every transaction sends as parameters."""

    text: str
    variables: dict[str, str] = field(default_factory=dict[str, str])


def publish_contracts(server: BenchmarkServer) -> None:
    for target, scope in (("bench", "item"), ("bench-cluster", "cluster")):
        terms = json.dumps({"scope": scope, "guarantee": "keyed", "gateway": None})
        server.execute("SELECT leasehold.publish_contract(%s, %s, 'benchmark')", target, terms)
    server.execute("SELECT leasehold.acquire_lease(%s, 'bench', 86400)", LEASE)


def enqueue(batch: int | None) -> Script:
    """Enqueue as a client does, with the intents as JSON text in a parameter."""
    if batch is None:
        text = "SELECT leasehold.enqueue_intent('bench', :payload);"
        return Script(text, {"payload": _compact(PAYLOAD)})
    entries = [{"target": "bench", "payload": PAYLOAD}] * batch
    text = "SELECT count(*) FROM leasehold.enqueue_intents(:intents);"
    return Script(text, {"intents": _compact(entries)})


def bare_enqueue(batch: int) -> Script:
    """Write the same payloads with two bare inserts, in the cheapest way."""
    text = """
        WITH given AS MATERIALIZED (
          SELECT leasehold.new_intent_id() AS id, payload
            FROM jsonb_array_elements(:payloads::jsonb) AS payload
        ), intent AS (
          INSERT INTO leasehold.intents (intent_id, target, contract_version,
                                         submission_key, payload, created_at)
          SELECT id, 'bench', 1, id, payload, clock_timestamp() FROM given
        )
        INSERT INTO leasehold.outbox_pending (intent_id, scope, target, contract_version, priority,
                                              due_at, last_modified_at)
        SELECT id, 'item', 'bench', 1, 1, clock_timestamp(), clock_timestamp() FROM given;
    """
    return Script(text, {"payloads": _compact([PAYLOAD] * batch)})


def enqueue_keyed(batch: int) -> Script:
    """Enqueue with a new idempotency key each. Both sides make their keys in the same way."""
    entries = [
        {"target": "bench", "payload": PAYLOAD, "idempotency_key": f"@-{place}"}
        for place in range(batch)
    ]
    text = f"""
        {_NEW_NUMBER}
        SELECT count(*) FROM leasehold.enqueue_intents(replace(:intents, '@', :number)::jsonb);
    """
    return Script(text, {"intents": _compact(entries)})


def bare_enqueue_keyed(batch: int) -> Script:
    """Write keys and constant hashes: nothing is hashed, and no key is looked up."""
    text = f"""
        {_NEW_NUMBER}
        WITH given AS MATERIALIZED (
          SELECT leasehold.new_intent_id() AS id, entry.payload, entry.key
            FROM jsonb_to_recordset(replace(:entries, '@', :number)::jsonb)
              AS entry (key text, payload jsonb)
        ), intent AS (
          INSERT INTO leasehold.intents (intent_id, target, contract_version, idempotency_key,
                                         submission_key, payload, payload_hash, created_at)
          SELECT id, 'bench', 1, key, id, payload, {_HASH}::bytea, clock_timestamp() FROM given
        )
        INSERT INTO leasehold.outbox_pending (intent_id, scope, target, contract_version, priority,
                                              due_at, last_modified_at)
        SELECT id, 'item', 'bench', 1, 1, clock_timestamp(), clock_timestamp() FROM given;
    """
    entries = [{"key": f"@-{place}", "payload": PAYLOAD} for place in range(batch)]
    return Script(text, {"entries": _compact(entries)})


def claim_and_complete(batch: int) -> Script:
    return Script(f"""
        SELECT coalesce(jsonb_agg(jsonb_build_object(
                 'intent_id', intent_id, 'lease_token', lease_token, 'state', 'DISPATCHED')), '[]')
               AS results
          FROM leasehold.claim_outbox_batch({batch}, 'bench-' || :client_id, 30, '{{bench}}')
        \\gset
        SELECT count(*) FROM leasehold.complete_outbox_attempts('bench-' || :client_id, :results);
    """)


def bare_claim_and_complete(batch: int) -> Script:
    return Script(f"""
        WITH picked AS MATERIALIZED (
          SELECT intent_id FROM leasehold.outbox_pending
           WHERE scope = 'item' AND claimed_by IS NULL AND target = 'bench' AND priority = 1
             AND due_at <= clock_timestamp()
           ORDER BY due_at, intent_id LIMIT {batch} FOR UPDATE SKIP LOCKED
        ), claimed AS (
          UPDATE leasehold.outbox_pending p
             SET claimed_by = 'bare', lease_token = gen_random_uuid(),
                 lease_expires_at = clock_timestamp() + interval '30 seconds', lease_seconds = 30
            FROM picked WHERE p.intent_id = picked.intent_id RETURNING p.intent_id
        )
        SELECT array_agg(intent_id) AS ids, count(i.payload) AS payloads
          FROM claimed JOIN leasehold.intents i USING (intent_id)
        \\gset
        {_bare_record("lease_token", "gen_random_uuid()")}
    """)


def record(batch: int) -> Script:
    return Script(f"""
        {_cluster_window(batch)}
        \\gset
        SELECT count(*) FROM leasehold.record_attempts('{LEASE}', 'bench', 1, :results);
    """)


def bare_record(batch: int) -> Script:
    return Script(f"""
        {_cluster_window(batch)}
        \\gset
        {_bare_record("lease_name, lease_epoch", f"'{LEASE}', 1")}
    """)


def claim_and_give_back(batch: int) -> Script:
    """Claim in a transaction that is rolled back, so the backlog stays unchanged."""
    return Script(f"""
        BEGIN;
        SELECT count(*) FROM leasehold.claim_outbox_batch({batch}, 'bench', 30, '{{bench}}');
        ROLLBACK;
    """)


def _bare_record(fence: str, value: str) -> str:
    """Insert the same ledger row as our function, and delete the pending row."""
    return f"""
        WITH appended AS (
          INSERT INTO leasehold.outbox_attempts (intent_id, attempt_no, state, holder, {fence},
                                                 started_at, finished_at)
          SELECT id, 1, 'DISPATCHED', 'bare', {value}, clock_timestamp(), clock_timestamp()
            FROM unnest(:ids::uuid[]) AS id
        )
        DELETE FROM leasehold.outbox_pending WHERE intent_id = ANY (:ids::uuid[]);
    """


def _cluster_window(batch: int) -> str:
    """Return the items that both sides record, as ids and as results."""
    return f"""
        SELECT array_agg(intent_id) AS ids,
               jsonb_agg(jsonb_build_object('intent_id', intent_id, 'state', 'DISPATCHED'))
               AS results
          FROM (SELECT intent_id FROM leasehold.outbox_pending
                 WHERE scope = 'cluster' AND target = 'bench-cluster' AND lease_name = '{LEASE}'
                   AND priority = 1
                 ORDER BY due_at, intent_id LIMIT {batch}) AS due"""


def _compact(value: object) -> str:
    """Return JSON without spaces, because the length of pgbench's command line is limited."""
    return json.dumps(value, separators=(",", ":"))


def fill(server: BenchmarkServer, rows: int, scope: str = "item") -> None:
    """Replace the backlog by this many due rows of one target."""
    target, lease = ("bench", None) if scope == "item" else ("bench-cluster", LEASE)
    server.execute("TRUNCATE leasehold.outbox_pending")
    server.execute(
        """
        WITH given AS MATERIALIZED (
          SELECT leasehold.new_intent_id() AS id FROM generate_series(1, %s)
        ), intent AS (
          INSERT INTO leasehold.intents (intent_id, target, contract_version,
                                         submission_key, payload, created_at)
          SELECT id, %s, 1, id, %s::jsonb, clock_timestamp() FROM given
        )
        INSERT INTO leasehold.outbox_pending (intent_id, scope, target, contract_version,
                                              lease_name, priority, due_at, last_modified_at)
        SELECT id, %s, %s, 1, %s, 1, clock_timestamp(), clock_timestamp() FROM given
        """,
        *(rows, target, json.dumps(PAYLOAD), scope, target, lease),
    )
    server.execute("VACUUM ANALYZE leasehold.outbox_pending, leasehold.intents")


def fill_cluster(connection: psycopg.Connection[Any], rows: int) -> None:
    """Add a backlog of one target with scope cluster that is due in an hour, so nobody calls it."""
    connection.execute(
        """
        WITH given AS MATERIALIZED (
          SELECT leasehold.new_intent_id() AS id FROM generate_series(1, %s)
        ), intent AS (
          INSERT INTO leasehold.intents (intent_id, target, contract_version,
                                         submission_key, payload, created_at)
          SELECT id, 'bench', 1, id, '1', clock_timestamp() FROM given
        )
        INSERT INTO leasehold.outbox_pending (intent_id, scope, target, contract_version,
                                              lease_name, priority, due_at, last_modified_at)
        SELECT id, 'cluster', 'bench', 1, %s, 1, clock_timestamp() + interval '1 hour',
               clock_timestamp()
          FROM given
        """,
        [rows, LEASE],
    )
    connection.execute("VACUUM ANALYZE leasehold.outbox_pending, leasehold.intents")


def fill_ledger(server: BenchmarkServer, rows: int) -> None:
    """Add finished intents, as ledger rows of this month."""
    server.execute(
        "INSERT INTO leasehold.outbox_attempts"
        " (intent_id, attempt_no, state, holder, started_at, finished_at)"
        " SELECT leasehold.new_intent_id(), 1, 'DISPATCHED', 'past', clock_timestamp(),"
        " clock_timestamp() FROM generate_series(1, %s)",
        rows,
    )
    server.execute("VACUUM ANALYZE leasehold.outbox_attempts")


def one_cycle(server: BenchmarkServer) -> None:
    """Enqueue, claim and complete a hundred items."""
    entries = _compact([{"target": "bench", "payload": PAYLOAD}] * 100)
    server.execute("SELECT count(*) FROM leasehold.enqueue_intents(%s)", entries)
    [[results]] = server.execute(
        "SELECT coalesce(jsonb_agg(jsonb_build_object('intent_id', intent_id, 'lease_token',"
        " lease_token, 'state', 'DISPATCHED')), '[]')::text"
        " FROM leasehold.claim_outbox_batch(100, 'bench', 30, '{bench}')"
    )
    server.execute("SELECT count(*) FROM leasehold.complete_outbox_attempts('bench', %s)", results)


@contextmanager
def snapshot(server: BenchmarkServer, *, held: bool) -> Iterator[None]:
    """Keep a snapshot open in another session, as a long report or a forgotten transaction does."""
    if not held:
        yield
        return
    with psycopg.connect(server.url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        yield
        connection.rollback()

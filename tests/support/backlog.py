"""Loads a large backlog: 200,000 pending and 1,000,000 ledger rows over four months.

The owner inserts the rows directly, in the form that the functions would write. Each target stands
for one reason why a claim must skip most of its rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psycopg import Connection

    from tests.support.database import Database

FINISHED = 400_000  # each with two ledger rows
MINUTE = 60
HOUR = 3600


@dataclass(frozen=True)
class Group:
    """Pending rows of one kind; offsets are seconds from now, None leaves the column NULL."""

    target: str
    rows: int
    scope: str = "item"
    priority: int = 1
    due: float = -HOUR
    claim: float | None = None
    deadline: float | None = None
    last_state: str = "RETRYABLE"
    is_held: bool = False


GROUPS = (
    Group("bulk", 98_000),  # due, but no claim asks for them
    Group("quiet", 1_000),
    Group("later", 29_900, due=+HOUR),
    Group("later", 100),
    Group("ranked", 19_900, priority=3, due=-2 * HOUR),
    Group("ranked", 100, priority=0),
    Group("leased", 14_900, claim=+HOUR),
    Group("leased", 100),
    Group("expired", 1_000, claim=-MINUTE),
    Group("doubtful", 4_900, deadline=-MINUTE, last_state="IN_DOUBT", is_held=True),
    Group("doubtful", 100, deadline=-MINUTE),
    Group("cluster", 10_000, scope="cluster"),
    Group("cluster", 4_900, scope="cluster", deadline=+HOUR),
    Group("cluster", 100, scope="cluster", deadline=-MINUTE),
    Group("stream", 15_000, scope="stream"),
)
PENDING = sum(group.rows for group in GROUPS)
TARGETS = {group.target: group.scope for group in GROUPS}
CLUSTER_LEASE = "executor"
STREAMS = 50
WORKERS = 500  # each holds a few of the leased rows

# Ids in the order of n, spread over the months that the ledger has partitions for.
_SEEDS = """
CREATE TEMPORARY TABLE seeds AS
SELECT n, (lpad(to_hex(floor(begins + (ends - begins) * n / %(total)s)::bigint), 12, '0')
           || '7000' || '8' || lpad(to_hex(n), 15, '0'))::uuid AS intent_id
  FROM generate_series(1, %(total)s) AS n
 CROSS JOIN (SELECT extract(epoch FROM min(begins_at)) * 1000 AS begins,
                    extract(epoch FROM max(ends_at)) * 1000 - 1 AS ends
               FROM leasehold.ledger_months()) AS months
"""
_INTENTS = """
INSERT INTO leasehold.intents (
  intent_id, target, contract_version, stream, stream_seq, idempotency_key, submission_key, payload,
  payload_hash, created_at)
SELECT intent_id, %(target)s, 1,
       CASE %(scope)s WHEN 'stream' THEN 'stream-' || n %% %(streams)s END,
       CASE %(scope)s WHEN 'stream' THEN n END,
       'key-' || lpad(n::text, 8, '0'), intent_id, '{"number": 1}', sha256(''), clock_timestamp()
  FROM seeds WHERE n > %(after)s AND n <= %(after)s + %(rows)s
"""
_PENDING = """
INSERT INTO leasehold.outbox_pending (
  intent_id, scope, target, contract_version, lease_name, stream, stream_seq, priority, due_at,
  deadline_at, attempt_count, last_state, first_tried_at, claimed_by, lease_token, lease_expires_at,
  lease_seconds, last_modified_at, is_claimable)
SELECT intent_id, %(scope)s, %(target)s, 1,
       CASE %(scope)s WHEN 'cluster' THEN %(lease)s
                      WHEN 'stream' THEN 'stream/stream/stream-' || n %% %(streams)s END,
       CASE %(scope)s WHEN 'stream' THEN 'stream-' || n %% %(streams)s END,
       CASE %(scope)s WHEN 'stream' THEN n END,
       %(priority)s, CASE WHEN %(is_held)s THEN 'infinity' ELSE at + %(due)s * second END,
       at + %(deadline)s * second, 1, %(last_state)s, at - second,
       CASE WHEN %(claim)s::float8 IS NOT NULL THEN 'worker-' || n %% %(workers)s END,
       CASE WHEN %(claim)s::float8 IS NOT NULL THEN gen_random_uuid() END,
       at + %(claim)s * second, CASE WHEN %(claim)s::float8 IS NOT NULL THEN 3600 END, at,
       -- The first row of each stream is its head.
       %(scope)s = 'stream' AND n <= %(after)s + %(streams)s
  FROM seeds CROSS JOIN (SELECT interval '1 second' AS second) AS unit
 -- Spread over a tenth of a second each, so that no two rows share a time.
 CROSS JOIN LATERAL (SELECT statement_timestamp() + n * interval '100 microseconds'
                                                  - interval '1 minute' AS at) AS moment
 WHERE n > %(after)s AND n <= %(after)s + %(rows)s
"""
_LEDGER = """
INSERT INTO leasehold.outbox_attempts (
  intent_id, attempt_no, state, holder, started_at, finished_at)
SELECT intent_id, attempt_no,
       CASE WHEN n > %(finished)s THEN coalesce(last_state, 'RETRYABLE')
            WHEN attempt_no = 2 THEN 'DISPATCHED' ELSE 'RETRYABLE' END,
       'worker-1', clock_timestamp(), clock_timestamp()
  FROM seeds LEFT JOIN leasehold.outbox_pending USING (intent_id)
 CROSS JOIN LATERAL generate_series(1, CASE WHEN n > %(finished)s THEN 1 ELSE 2 END) AS attempt_no
"""
_STREAMS = """
INSERT INTO leasehold.streams (target, stream, last_seq)
SELECT 'stream', 'stream-' || n, 10000000 FROM generate_series(0, %(streams)s - 1) AS n
"""
_LEASES = """
INSERT INTO leasehold.leases (
  lease_name, holder_id, lease_epoch, acquired_at, renewed_at, expires_at, grace_expires_at, target,
  stream)
SELECT leasehold.stream_lease_name(target, stream), 'nobody', 0, now(), now(), '-infinity',
       '-infinity', target, stream
  FROM leasehold.streams
"""


def load_backlog(database: Database) -> None:
    """Load everything without statistics; the test decides when to ANALYZE."""
    owner = database.owner()
    for target, scope in {"done": "item", **TARGETS}.items():
        more = {"lease_name": CLUSTER_LEASE} if scope == "cluster" else {}
        terms = {"scope": scope, "guarantee": "keyed", "gateway": None} | more
        owner.execute(
            "SELECT leasehold.publish_contract(%s, %s, 'test')", [target, json.dumps(terms)]
        )
    large = [f"leasehold.{table}" for table in large_tables(database)]
    for table in large:
        owner.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    # Building the indexes at the end takes a third of the time of updating them row by row.
    database.execute(
        "UPDATE pg_index SET indisready = false WHERE indrelid = ANY (%s::regclass[])", [large]
    )
    owner.execute(_SEEDS, {"total": FINISHED + PENDING})
    owner.execute("ANALYZE seeds")
    _load(owner, Group("done", FINISHED), after=0, with_pending=False)
    after = FINISHED
    for group in GROUPS:
        _load(owner, group, after=after)
        after += group.rows
    owner.execute(_LEDGER, {"finished": FINISHED})
    owner.execute(_STREAMS, {"streams": STREAMS})
    owner.execute(_LEASES)
    for table in large:
        database.execute(f"REINDEX TABLE {table}")


def large_tables(database: Database) -> list[str]:
    """List the tables that must never be scanned sequentially; the ledger by partition."""
    partitions = database.execute(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits"
        " WHERE inhparent = 'leasehold.outbox_attempts'::regclass"
    )
    names = [row["name"].removeprefix("leasehold.") for row in partitions]
    return ["outbox_pending", "intents", *names]


def _load(owner: Connection, group: Group, *, after: int, with_pending: bool = True) -> None:
    values = vars(group) | {"after": after, "streams": STREAMS, "workers": WORKERS}
    values["lease"] = CLUSTER_LEASE
    owner.execute(_INTENTS, values)
    if with_pending:
        owner.execute(_PENDING, values)

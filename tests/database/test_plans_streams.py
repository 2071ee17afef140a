"""300,000 streams of one target, most of them held, paused, blocked or not due.

A claimer finds the due ones all the same, and reads little more than them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.database import Database
from tests.support.query_plans import Explainer, Plans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server

pytestmark = pytest.mark.one_server

TERMS = {"scope": "stream", "guarantee": "lookup", "gateway": None}
STREAMS = 300_000
DUE = 200
HELD, PAUSED, FUTURE, DOUBTFUL = 120_000, 60_000, 60_000, 60_000 - DUE
CLAIMED = 10
HANDLED = 5_000  # held streams that one call is about
NAMES = [f"stream/pay/s{number}" for number in range(1, HANDLED + 1)]
ANY_NAME = f"ANY ('{{{','.join(NAMES)}}}')"
CLAIMED_BY_NEW = f"UPDATE leasehold.leases SET holder_id = 'new' WHERE lease_name = {ANY_NAME}"
IS_HANDLED_HEAD = f"lease_name = {ANY_NAME} AND stream_seq = 1"
HANDLED_HEADS = f"FROM leasehold.outbox_pending WHERE {IS_HANDLED_HEAD}"
# Each stream has a head and one row behind it. The due ones come last in the order of due times.
LOAD = """
CREATE TEMPORARY TABLE kinds AS
SELECT n, CASE WHEN n <= %(held)s THEN 'held'
               WHEN n <= %(held)s + %(paused)s THEN 'paused'
               WHEN n <= %(held)s + %(paused)s + %(future)s THEN 'future'
               WHEN n <= %(streams)s - %(due)s THEN 'doubtful' ELSE 'due' END AS kind
  FROM generate_series(1, %(streams)s) AS n;

INSERT INTO leasehold.streams (target, stream, last_seq) SELECT 'pay', 's' || n, 2 FROM kinds;

INSERT INTO leasehold.leases (
  lease_name, holder_id, lease_epoch, acquired_at, renewed_at, expires_at, grace_expires_at,
  lease_seconds, grace_seconds, target, stream, paused_since, paused_until)
SELECT leasehold.stream_lease_name('pay', 's' || n), 'other', 1, now(), now(),
       CASE kind WHEN 'held' THEN now() + interval '1 hour' ELSE '-infinity' END,
       CASE kind WHEN 'held' THEN now() + interval '1 hour' ELSE '-infinity' END,
       3600, 0, 'pay', 's' || n,
       CASE kind WHEN 'paused' THEN now() END,
       CASE kind WHEN 'paused' THEN timestamptz 'infinity' END
  FROM kinds;

INSERT INTO leasehold.stream_pauses (lease_name, kind, name, paused_since, paused_until)
SELECT leasehold.stream_lease_name('pay', 's' || n), 'failure', gen_random_uuid(), now(), 'infinity'
  FROM kinds WHERE kind = 'paused';

INSERT INTO leasehold.outbox_pending (
  intent_id, scope, target, contract_version, lease_name, stream, stream_seq, priority, due_at,
  last_modified_at, last_state, is_claimable)
SELECT gen_random_uuid(), 'stream', 'pay', 1, leasehold.stream_lease_name('pay', 's' || n),
       's' || n, seq, 1,
       CASE WHEN seq = 2 THEN now() - interval '2 hours'
            WHEN kind = 'future' THEN now() + interval '1 hour'
            WHEN kind = 'doubtful' THEN 'infinity'
            WHEN kind = 'due' THEN now() - interval '1 second'
            ELSE now() - interval '1 hour' END,
       now(), CASE WHEN kind = 'doubtful' AND seq = 1 THEN 'IN_DOUBT' END,
       seq = 1 AND kind IN ('future', 'doubtful', 'due')
  FROM kinds CROSS JOIN generate_series(1, 2) AS seq
"""
# Streams whose pipelines await confirmations, which block nothing. The last one is in doubt.
LOAD_PIPELINES = """
INSERT INTO leasehold.outbox_pending (
  intent_id, scope, target, contract_version, lease_name, stream, stream_seq, priority, due_at,
  last_modified_at, last_state, attempt_count, awaits_confirmation)
SELECT gen_random_uuid(), 'stream', 'ledger', 1, leasehold.stream_lease_name('ledger', 's' || n),
       's' || n, seq, 1, now() + interval '1 hour', now(), 'SUBMITTED', 1, true
  FROM generate_series(1, 20000) AS n CROSS JOIN generate_series(1, 3) AS seq;
UPDATE leasehold.outbox_pending SET last_state = 'IN_DOUBT', awaits_confirmation = false
 WHERE target = 'ledger' AND stream = 's9999'
"""
CLAIM = "SELECT * FROM leasehold.claim_streams(%s, 'holder', 30, 150, '{pay}')"
BLOCKED = "SELECT * FROM leasehold.read_blocked_streams(10, '{pay}', 'pay', %s)"
BLOCKED_PIPELINES = "SELECT * FROM leasehold.read_blocked_streams(10, '{ledger}')"
ONE = "SELECT * FROM leasehold.read_stream('pay', %s)"
WAITING = "SELECT * FROM leasehold.waiting_streams('{pay}', 10)"
PRUNE = "SELECT * FROM leasehold.prune_streams(now() - interval '1 hour', 1000, 'stream/pay/s2')"
# Some 60 pages for each of the ten streams, written ones included; none more for the others.
PAGES_MAX = 800


@pytest.fixture(scope="module")
def loaded(server: Server) -> Iterator[Database]:
    database = Database(server, server.create_database())
    publish = "SELECT leasehold.publish_contract('pay', %s, 'test')"
    database.execute(publish, [json.dumps(TERMS)])
    counts = {"streams": STREAMS, "due": DUE, "held": HELD, "paused": PAUSED, "future": FUTURE}
    script = LOAD
    for name, value in counts.items():
        script = script.replace(f"%({name})s", str(value))
    database.owner_execute(script)
    database.execute(
        "SELECT leasehold.publish_contract('ledger', %s, 'test')",
        [json.dumps(TERMS | {"pipeline_max": 3})],
    )
    database.owner_execute(LOAD_PIPELINES)
    yield database
    database.close()


@pytest.fixture(params=["never analyzed", "analyzed"])
def explainer(request: pytest.FixtureRequest, loaded: Database) -> Iterator[Explainer]:
    if request.param == "analyzed":
        for table in ("outbox_pending", "leases", "streams"):
            loaded.owner_execute(f"ANALYZE leasehold.{table}")
    explainer = Explainer(loaded)
    yield explainer
    explainer.connection.close()


def test_claimer_finds_the_due_streams_and_reads_few_pages(explainer: Explainer) -> None:
    plans = explainer.run(CLAIM, [CLAIMED], times=3)
    assert [row["stream_state"] for row in plans.rows] == ["ready"] * CLAIMED
    plans.assert_bounded(rows_max=100, buffers_max=PAGES_MAX)


def test_claim_of_many_streams_compares_none_with_all_others(explainer: Explainer) -> None:
    plans = explainer.run(CLAIM, [1000], times=3)
    assert len(plans.rows) == DUE
    plans.assert_bounded(rows_max=2 * DUE, buffers_max=PAGES_MAX * DUE // CLAIMED)
    assert compared(plans) < 100 * DUE, "this is a square of the number of streams"


@pytest.mark.parametrize(
    "call",
    [
        "renew_streams('new', %s, %s, 30, 150)",
        "release_streams('new', %s, %s)",
        "refresh_streams('new', %s, %s)",
        "begin_stream_attempts('new', %s, %s, '{}')",
        "record_stream_attempts('new', %s, %s, '[]')",
    ],
)
def test_call_about_many_held_streams_reads_only_these(explainer: Explainer, call: str) -> None:
    """Their holder is new, so the statistics say that it has hardly any."""
    statement = f"SELECT * FROM leasehold.{call}"
    plans = explainer.run(statement, [NAMES, [1] * HANDLED], before=[CLAIMED_BY_NEW])
    scanned = {node.get("Relation Name") for node in plans.nodes if node["Node Type"] == "Seq Scan"}
    assert "leases" not in scanned
    assert plans.buffers < 80 * HANDLED
    assert compared(plans) < 100 * HANDLED, "this is a square of the number of streams"


def test_look_at_many_streams_whose_heads_are_locked_compares_none_with_all_others(
    explainer: Explainer, loaded: Database
) -> None:
    with loaded.connect("owner") as person, person.transaction(force_rollback=True):
        person.execute(f"SELECT {HANDLED_HEADS} FOR UPDATE")
        statement = "SELECT * FROM leasehold.refresh_streams('new', %s, %s, p_begin => true)"
        plans = explainer.run(statement, [NAMES, [1] * HANDLED], before=[CLAIMED_BY_NEW])
    assert [row["stream_state"] for row in plans.rows] == ["recheck"] * HANDLED
    assert compared(plans) < 100 * HANDLED, "this is a square of the number of streams"


def test_release_of_many_calls_that_were_not_sent_compares_none_with_all_others(
    explainer: Explainer,
) -> None:
    begun = f"UPDATE leasehold.outbox_pending SET begun_at = now() WHERE {IS_HANDLED_HEAD}"
    statement = (
        "SELECT * FROM leasehold.release_streams("
        f"'new', %s, %s, ARRAY(SELECT intent_id {HANDLED_HEADS}))"
    )
    plans = explainer.run(statement, [NAMES, [1] * HANDLED], before=[CLAIMED_BY_NEW, begun])
    assert [row["verdict"] for row in plans.rows] == ["released"] * HANDLED
    assert compared(plans) < 100 * HANDLED, "this is a square of the number of streams"


def compared(plans: Plans) -> float:
    """Count the rows that all nodes returned, and those that joins looked at in vain."""
    return sum(
        (node["Actual Rows"] + node.get("Rows Removed by Join Filter", 0)) * node["Actual Loops"]
        for node in plans.nodes
    )


def test_count_of_waiting_streams_reads_no_more_than_it_counts(explainer: Explainer) -> None:
    plans = explainer.run(WAITING, times=3)
    assert [row["waiting"] for row in plans.rows] == [10]
    plans.assert_bounded(rows_max=100, buffers_max=PAGES_MAX)


def test_idle_claimer_reads_few_pages(explainer: Explainer) -> None:
    nothing_due = (
        "UPDATE leasehold.outbox_pending SET due_at = 'infinity'"
        " WHERE scope = 'stream' AND is_claimable AND target = 'pay' AND priority = 1"
        "   AND due_at <= now()"
    )
    plans = explainer.run(CLAIM, [1000], times=3, before=[nothing_due])
    assert plans.rows == []
    # It passes over the old versions of the rows that were due just before.
    plans.assert_bounded(rows_max=100, buffers_max=100 + 2 * DUE)


def test_takeover_reads_only_expired_streams(explainer: Explainer) -> None:
    expired = (
        "UPDATE leasehold.leases SET expires_at = now() - interval '1 minute',"
        " grace_expires_at = now() - interval '1 minute'"
        " WHERE lease_name LIKE 'stream/pay/s_'"
    )
    plans = explainer.run(CLAIM, [9], times=2, before=[expired])
    assert {row["stream"] for row in plans.rows} == {f"s{n}" for n in range(1, 10)}
    plans.assert_bounded(rows_max=100, buffers_max=PAGES_MAX)


@pytest.mark.parametrize("after", ["a", "s200000"])
def test_page_of_blocked_streams_reads_few_pages(explainer: Explainer, after: str) -> None:
    plans = explainer.run(BLOCKED, [after], times=2)
    assert len(plans.rows) == 10
    assert plans.buffers <= PAGES_MAX, plans.buffers


def test_pipelines_that_block_nothing_are_not_read_for_blocked_streams(
    explainer: Explainer,
) -> None:
    plans = explainer.run(BLOCKED_PIPELINES, times=2)
    assert [row["stream"] for row in plans.rows] == ["s9999"]
    assert plans.buffers <= 100, plans.buffers


def test_one_stream_is_read_by_its_name(explainer: Explainer) -> None:
    plans = explainer.run(ONE, ["s200000"], times=2)
    assert len(plans.rows) == 1
    assert plans.buffers <= 60, plans.buffers


def test_step_of_a_prune_reads_only_the_streams_that_it_looks_at(explainer: Explainer) -> None:
    plans = explainer.run(PRUNE, [], times=2)
    assert plans.rows[0]["walked_to"] > "stream/pay/s2"
    plans.assert_bounded(rows_max=1000, buffers_max=4000)


def test_step_of_a_prune_deletes_idle_streams_without_reading_others(explainer: Explainer) -> None:
    idle = (
        "WITH names AS (SELECT 's2000' || n AS stream FROM generate_series(0, 9) AS n),"
        " emptied AS ("
        "  DELETE FROM leasehold.outbox_pending p USING names"
        "   WHERE p.scope = 'stream' AND p.target = 'pay' AND p.stream = names.stream),"
        " aged AS ("
        "  UPDATE leasehold.streams s SET created_at = now() - interval '1 day' FROM names"
        "   WHERE s.target = 'pay' AND s.stream = names.stream)"
        " UPDATE leasehold.leases l SET renewed_at = now() - interval '1 day', paused_since = NULL,"
        "   paused_until = NULL, expires_at = '-infinity',"
        "   grace_expires_at = '-infinity'"
        "  FROM names WHERE l.lease_name = 'stream/pay/' || names.stream"
    )
    plans = explainer.run(PRUNE, [], before=[idle])
    assert plans.rows[0]["pruned"] == 10
    plans.assert_bounded(rows_max=1000, buffers_max=5000)

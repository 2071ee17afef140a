"""A transaction stays open, so everything that was finished since has left dead rows behind.

Every call of a busy worker costs what it handles, however many dead rows stand before it, and so do
the counts of queues with a limit. Only a full walk, a full count and repair pass over them, for a
bounded share of the time (low_water.py, record_queue_depths.sql, reaper.py).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from leasehold.executor.low_water import LowWaterMarks
from leasehold.store.postgres.open_transactions import seen_after
from tests.support.database import Database
from tests.support.outbox import ZERO_ID, Outbox
from tests.support.query_plans import Explainer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg.rows import DictRow

    from tests.support.servers import Server

DEAD_ROWS = [200_000, pytest.param(1_000_000, marks=pytest.mark.thorough)]
BATCH = 10
DIE = """
INSERT INTO leasehold.outbox_pending
       (intent_id, scope, target, contract_version, lease_name, priority, due_at, last_modified_at)
SELECT gen_random_uuid(), %(scope)s, %(scope)s, 1, %(lease)s, 1,
       now() - interval '1 hour' + n * interval '1 ms', now() - interval '1 hour'
  FROM generate_series(1, %(rows)s) AS n"""


class Graveyard:
    """A database with dead rows before a few live ones."""

    def __init__(self, database: Database, dead_rows: int):
        self.database = database
        self.dead_rows = dead_rows
        self.outbox = Outbox(database)
        database.execute("ALTER TABLE leasehold.outbox_pending SET (autovacuum_enabled = off)")
        self.outbox.publish("item", pending_max=100)
        self.outbox.publish("cluster", scope="cluster", lease_name="executor", pending_max=100)
        self.open = database.session()
        self.open.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
        self.open.run("SELECT pg_current_xact_id()")
        for scope, lease in (("item", None), ("cluster", "executor")):
            values: dict[str, Any] = {"scope": scope, "lease": lease, "rows": dead_rows // 2}
            database.owner_execute(DIE, values)
        database.owner_execute("DELETE FROM leasehold.outbox_pending")
        self.lease = self.outbox.acquire("leader", "executor")
        for scope in ("item", "cluster"):
            self.outbox.enqueue(3 * BATCH, scope)
        self.claims: list[DictRow] = self.outbox.claim("worker-1", BATCH, ["item"])

    def buffers(self, statement: str, *params: object) -> int:
        """The pages that a call touches in a session whose plans are settled."""
        explainer = Explainer(self.database)
        plans = explainer.run(f"SELECT * FROM leasehold.{statement}", params, times=7)
        explainer.connection.close()
        return plans.buffers


@pytest.fixture(scope="module", params=DEAD_ROWS, ids="{:,} dead rows".format)
def graveyard(server: Server, request: pytest.FixtureRequest) -> Iterator[Graveyard]:
    database = Database(server, server.create_database())
    graveyard = Graveyard(database, request.param)
    yield graveyard
    graveyard.open.run("ROLLBACK")
    database.close()


def test_claim_from_a_mark_reads_no_dead_rows(graveyard: Graveyard) -> None:
    mark = graveyard.claims[-1]["due_at"] - timedelta(seconds=0.05)
    claim = "claim_outbox_batch(%s, 'worker-1', 30, '{item}', NULL, %s)"
    assert graveyard.buffers(claim, BATCH, [mark] * 4) < 300
    start = [mark - timedelta(hours=2)] * 4
    assert graveyard.buffers(claim, BATCH, start) > graveyard.dead_rows / 200, (
        "the naive form reads them"
    )


def test_claim_after_a_look_reads_no_dead_rows_of_before_the_last_look(
    graveyard: Graveyard,
) -> None:
    """The transaction that keeps them is still open, so it has committed nothing."""
    marks = LowWaterMarks(lambda: 0.0)
    claim = "claim_outbox_batch(%s, 'worker-1', 30, '{item}', NULL, %s)"
    for _ in range(3):
        [row] = graveyard.outbox.call("executor", "read_open_transactions")
        assert row["transaction_ids"]
        marks.look_back(seen_after(marks.seen, row["seen_at"], row["transaction_ids"]))
        # As if nothing was found.
        marks.advance([], {}, {"item": BATCH}, BATCH, is_full_walk=False)
    assert graveyard.buffers("read_open_transactions()") < 50
    assert graveyard.buffers(claim, BATCH, marks.due_from(["item"])) < 300


def test_full_walk_reads_dead_rows_once(graveyard: Graveyard) -> None:
    """The search for expired claims tells the claim where the live rows begin."""
    mark = [graveyard.claims[-1]["due_at"] - timedelta(hours=2)] * 4
    claim = "claim_outbox_batch(%s, 'worker-1', 30, '{item}', NULL, %s)"
    once = graveyard.buffers(claim, BATCH, mark)
    assert graveyard.buffers(claim, BATCH, None) < 1.3 * once + 300


@pytest.mark.parametrize(
    "call",
    [
        "renew_outbox_leases('worker-1', %s, %s, 30)",
        "begin_outbox_attempts('worker-1', %s, %s)",
        "release_outbox_claims('worker-1', %s, %s, 0)",
    ],
)
def test_calls_about_claims_read_no_dead_rows(graveyard: Graveyard, call: str) -> None:
    ids = [claim["intent_id"] for claim in graveyard.claims]
    tokens = [claim["lease_token"] for claim in graveyard.claims]
    assert graveyard.buffers(call, ids, tokens) < 300


@pytest.mark.parametrize("state", ["DISPATCHED", "RETRYABLE"])
def test_completion_reads_no_dead_rows(graveyard: Graveyard, state: str) -> None:
    results = (
        "(SELECT jsonb_agg(jsonb_build_object("
        "   'intent_id', intent_id, 'lease_token', token,"
        "   'state', %s::text, 'retry_after_seconds', 5))"
        " FROM unnest(%s::uuid[], %s::uuid[]) AS given (intent_id, token))"
    )
    ids = [claim["intent_id"] for claim in graveyard.claims]
    tokens = [claim["lease_token"] for claim in graveyard.claims]
    call = f"complete_outbox_attempts('worker-1', {results})"
    assert graveyard.buffers(call, state, ids, tokens) < 600


def test_window_of_a_leader_from_its_marks_reads_no_dead_rows(graveyard: Graveyard) -> None:
    lease = graveyard.lease["lease_epoch"]
    window = "refresh_due_rows('leader', '{executor}', %s, '{cluster}', %s, 1000, %s, %s)"
    rows = graveyard.outbox.call(
        "executor", "refresh_due_rows", "leader", ["executor"], [lease], ["cluster"], BATCH
    )
    marks, first_ids = [rows[0]["due_at"]] * 4, [ZERO_ID] * 4
    assert len(rows) == BATCH
    assert graveyard.buffers(window, [lease], BATCH, marks, first_ids) < 300
    start = [rows[0]["due_at"] - timedelta(hours=2)] * 4
    naive = graveyard.buffers(window, [lease], BATCH, start, first_ids)
    assert naive > graveyard.dead_rows / 200, "the naive form reads them"


def test_changes_after_the_cursor_of_a_leader_read_no_dead_rows(graveyard: Graveyard) -> None:
    lease = graveyard.lease["lease_epoch"]
    changes = "refresh_schedule('leader', '{executor}', %s, %s, %s, 100)"
    cursor = graveyard.lease["acquired_at"]
    assert graveyard.buffers(changes, [lease], cursor, ZERO_ID) < 300


def test_count_of_queues_with_a_limit_reads_no_dead_rows(graveyard: Graveyard) -> None:
    """It starts where the live rows began when they were last counted."""
    live = dict.fromkeys(("item", "cluster"), 3 * BATCH)
    assert graveyard.outbox.count_depths() == live
    graveyard.database.owner_execute(
        "UPDATE leasehold.watch_turns SET unfinished_turns = 1, full_at = clock_timestamp(),"
        # The first look cannot date what was open already, such as a session of another test.
        "  open_since = array_fill(looked_at, ARRAY[cardinality(open_ids)])"
    )
    [turn] = graveyard.database.execute("SELECT turn_no FROM leasehold.watch_turns")
    count = "record_queue_depths(%s)"
    assert graveyard.buffers(count, turn["turn_no"]) < 300
    graveyard.database.owner_execute("UPDATE leasehold.watch_turns SET full_at = '-infinity'")
    naive = graveyard.buffers(count, turn["turn_no"])
    assert naive > graveyard.dead_rows / 200, "the naive form reads them"
    assert graveyard.outbox.count_depths() == live


def test_claims_and_renewals_are_heap_only_updates(graveyard: Graveyard) -> None:
    """They write no index entry: the next claim finds no dead entry of theirs."""
    [row] = graveyard.database.execute(
        "SELECT i.relname, x.indkey::text, pg_get_expr(x.indpred, x.indrelid) AS predicate"
        "  FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid"
        " WHERE x.indrelid = 'leasehold.outbox_pending'::regclass"
        "   AND pg_get_indexdef(x.indexrelid)"
        "       ~ '(claimed_by|lease_token|lease_expires_at|lease_seconds)'"
        " UNION ALL SELECT 'none', '', ''"
    )
    assert row["relname"] == "none", "an index on what a claim changes would end heap-only updates"


def pages_of(outbox: Outbox) -> dict[UUID, int]:
    rows = outbox.database.execute(
        "SELECT intent_id, (ctid::text::point)[0]::integer AS page FROM leasehold.outbox_pending"
    )
    return {row["intent_id"]: row["page"] for row in rows}


def test_page_of_new_rows_has_room_for_the_claims_of_all_of_them(outbox: Outbox) -> None:
    """A version that does not fit beside the old one needs a new entry in every index."""
    target, worker = "notifications.production.sms", f"worker-7d9f8b6c5d-x2x4q-{uuid4().hex[:12]}"
    outbox.publish(target)
    outbox.enqueue(1_000, target)
    before = pages_of(outbox)
    for _ in range(10):
        outbox.claim(worker, 100, [target])
    assert {claim for claim, page in pages_of(outbox).items() if page != before[claim]} == set()

"""With 200,000 pending and 1,000,000 ledger rows, each call reads what it needs and no more.

Every call runs on tables that were never analyzed and again with statistics, first in a young
session and then in one that has settled on its generic plans. A page is 8 KiB: the pending table
has about 4,400 of them, intents and the ledger over 11,000 each.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from tests.support.backlog import CLUSTER_LEASE, TARGETS, large_tables, load_backlog
from tests.support.database import Database
from tests.support.query_plans import Explainer, Plans

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg.rows import DictRow

    from tests.support.servers import Server

COUNT = 10
CLAIM = "SELECT * FROM leasehold.claim_outbox_batch(%s, 'worker', 30, %s)"
CLAIM_FROM = "SELECT * FROM leasehold.claim_outbox_batch(%s, 'worker', 30, %s, NULL, %s)"
TARGETS_OF_THE_BACKLOG = {
    "of targets not asked for": ["quiet"],
    "not due yet": ["later"],
    "of a lower priority": ["ranked"],
    "leased": ["leased"],
    "held for a person": ["doubtful"],
    "of each kind": ["quiet", "later", "ranked", "leased", "doubtful"],
}


class Backlog:
    """The loaded database and the names of its targets, leases and intents."""

    def __init__(self, database: Database):
        self.database = database
        load_backlog(database)
        database.execute("SELECT leasehold.acquire_lease(%s, 'holder', 3600)", [CLUSTER_LEASE])
        self.streams = database.execute(
            "SELECT * FROM leasehold.claim_streams(10, 'holder', 3600, 0, '{stream}')"
        )
        self.claims = self.pending("target = 'leased' AND claimed_by = 'worker-7'")
        self.scheduled = self.ids("target = 'cluster'")
        [row] = database.execute(
            "SELECT intent_id FROM leasehold.intents WHERE target = 'done' OFFSET 200000 LIMIT 1"
        )
        self.done: UUID = row["intent_id"]

    def pending(self, condition: str) -> list[DictRow]:
        return self.database.execute(
            f"SELECT * FROM leasehold.outbox_pending WHERE {condition} LIMIT {COUNT}"
        )

    def ids(self, condition: str) -> list[UUID]:
        return [row["intent_id"] for row in self.pending(condition)]

    @property
    def has_statistics(self) -> bool:
        [row] = self.database.execute(
            "SELECT count(*) > 0 AS found FROM pg_stats WHERE tablename = 'outbox_pending'"
        )
        return row["found"]

    def forget_statistics(self) -> None:
        """Remove the statistics, because tests run in any order and autovacuum may analyze."""
        tables = [f"leasehold.{table}" for table in large_tables(self.database)]
        self.database.execute(
            "DELETE FROM pg_statistic WHERE starelid = ANY (%s::regclass[])", [tables]
        )
        self.database.execute(
            "UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE oid = ANY (%s::regclass[])",
            [tables],
        )

    def analyze(self) -> None:
        for table in large_tables(self.database):
            self.database.owner_execute(f"ANALYZE leasehold.{table}")


@pytest.fixture(scope="module")
def loaded(server: Server) -> Iterator[Backlog]:
    database = Database(server, server.create_database())
    yield Backlog(database)
    database.close()


@pytest.fixture(scope="module", params=["never analyzed", "analyzed"])
def backlog(request: pytest.FixtureRequest, loaded: Backlog) -> Backlog:
    if request.param == "analyzed" and not loaded.has_statistics:
        loaded.analyze()
    if request.param == "never analyzed" and loaded.has_statistics:
        loaded.forget_statistics()
    assert loaded.has_statistics == (request.param == "analyzed")
    return loaded


def explained(
    backlog: Backlog, statement: str, params: Sequence[Any] = (), *, before: Sequence[str] = ()
) -> Iterator[Plans]:
    """Return the plans of the second call, and of the seventh, which uses generic plans."""
    explainer = Explainer(backlog.database)
    yield explainer.run(statement, params, times=2, before=before)
    yield explainer.run(statement, params, times=5, before=before)
    explainer.connection.close()


def check(
    backlog: Backlog,
    statement: str,
    params: Sequence[Any] = (),
    *,
    returned: int = COUNT,
    by: set[str],
    before: Sequence[str] = (),
    rows_max: int = 100,
    buffers_max: int = 1000,
) -> None:
    """Check that a call returns the expected rows, by these indexes, and reads few pages."""
    for plans in explained(backlog, statement, params, before=before):
        assert len(plans.rows) == returned
        plans.assert_bounded(rows_max=rows_max, buffers_max=buffers_max)
        used = {name for table in ("outbox_", "intents_") for name in plans.indexes(table)}
        assert used == by


def results(ids: Sequence[UUID], state: str, tokens: Sequence[UUID] | None = None) -> str:
    entries = [{"intent_id": str(i), "state": state, "retry_after_seconds": 5} for i in ids]
    for entry, token in zip(entries, tokens or [], strict=False):
        entry["lease_token"] = str(token)
    return json.dumps(entries)


PENDING = "outbox_pending_pkey"
LEDGER = "outbox_attempts_pkey"
TERMINAL = "outbox_attempts_one_terminal_per_intent"
INTENTS = "intents_pkey"
DUE = "outbox_pending_due"
CLAIMING = {DUE, INTENTS}


@pytest.mark.parametrize("most_of_it_is", TARGETS_OF_THE_BACKLOG)
def test_claim_does_not_read_rows_that_it_cannot_take(backlog: Backlog, most_of_it_is: str) -> None:
    targets = TARGETS_OF_THE_BACKLOG[most_of_it_is]
    marks = [datetime.min.replace(tzinfo=UTC)] * (4 * len(targets))
    if "leased" in targets:
        # Where the last claim ended: before the rows that are not leased.
        [mark] = backlog.database.execute(
            "SELECT min(due_at) AS due_at FROM leasehold.outbox_pending"
            " WHERE target = 'leased' AND claimed_by IS NULL"
        )
        marks[4 * targets.index("leased") + 1] = mark["due_at"]
    check(backlog, CLAIM_FROM, [COUNT, targets, marks], by=CLAIMING, buffers_max=400)


def test_full_walk_reads_claimed_rows_once_and_no_backlog(backlog: Backlog) -> None:
    targets = ["quiet", "later", "ranked", "doubtful"]
    check(
        backlog,
        CLAIM,
        [COUNT, targets],
        by=CLAIMING,
        rows_max=10_000,
        buffers_max=3000,
    )


def test_claim_for_an_idle_target_costs_next_to_nothing(backlog: Backlog) -> None:
    check(backlog, CLAIM, [COUNT, ["idle"]], returned=0, by={DUE}, rows_max=5, buffers_max=60)


def test_claim_of_expired_claims_reads_only_those(backlog: Backlog) -> None:
    """It requeues them; they are due in one second."""
    by = {DUE, LEDGER, PENDING}
    check(backlog, CLAIM, [COUNT, ["expired"]], returned=0, by=by, rows_max=1100)


def test_repair_stops_behind_the_claims_of_each_line(backlog: Backlog) -> None:
    check(
        backlog,
        "SELECT * FROM leasehold.repair_expired_leases(%s, 'reaper')",
        [COUNT],
        by={DUE, PENDING, LEDGER, INTENTS},
        rows_max=60_000,
        buffers_max=8000,
    )


def test_repair_of_missed_deadlines_does_not_read_intents_in_doubt(backlog: Backlog) -> None:
    check(
        backlog,
        "SELECT * FROM leasehold.repair_missed_deadlines(%s, 'reaper')",
        [COUNT],
        by={"outbox_pending_deadlines", PENDING, LEDGER, INTENTS},
    )


def test_repair_of_deadlines_under_leases_reads_only_those_missed(backlog: Backlog) -> None:
    """The first twenty are marked calls. Items come first, so there are none."""
    missed = "FROM leasehold.outbox_pending WHERE deadline_at <= clock_timestamp()"
    marked = f"""
        INSERT INTO leasehold.call_marks
        SELECT lease_name, 1, 1, array_agg(intent_id), array_agg(2)
          FROM (SELECT * {missed} AND target = 'cluster' ORDER BY deadline_at LIMIT 20) AS p
         GROUP BY lease_name"""
    check(
        backlog,
        "SELECT * FROM leasehold.repair_missed_deadlines(%s, 'reaper')",
        [COUNT],
        before=[f"DELETE {missed} AND target = 'doubtful' AND last_state = 'RETRYABLE'", marked],
        by={
            "outbox_pending_deadlines",
            "outbox_pending_leased_deadlines",
            PENDING,
            LEDGER,
            INTENTS,
        },
    )


@pytest.mark.parametrize("state", ["DISPATCHED", "RETRYABLE"])
def test_complete_finds_its_rows_by_id(backlog: Backlog, state: str) -> None:
    ids = [row["intent_id"] for row in backlog.claims]
    tokens = [row["lease_token"] for row in backlog.claims]
    check(
        backlog,
        "SELECT * FROM leasehold.complete_outbox_attempts('worker-7', %s)",
        [results(ids, state, tokens)],
        by={PENDING, LEDGER},
    )


@pytest.mark.parametrize(
    "call",
    [
        "renew_outbox_leases('worker-7', %(ids)s, %(tokens)s, 30)",
        "release_outbox_claims('worker-7', %(ids)s, %(tokens)s, 0)",
        "begin_outbox_attempts('worker-7', %(ids)s, %(tokens)s)",
    ],
)
def test_worker_reads_only_its_own_claims(backlog: Backlog, call: str) -> None:
    values = {
        "ids": [row["intent_id"] for row in backlog.claims],
        "tokens": [row["lease_token"] for row in backlog.claims],
    }
    check(backlog, f"SELECT * FROM leasehold.{call}", values, by={PENDING})


@pytest.mark.parametrize("state", ["DISPATCHED", "RETRYABLE"])
def test_record_finds_its_rows_by_id(backlog: Backlog, state: str) -> None:
    check(
        backlog,
        "SELECT * FROM leasehold.record_attempts(%s, 'holder', 1, %s)",
        [CLUSTER_LEASE, results(backlog.scheduled, state)],
        by={PENDING, LEDGER},
    )


def test_begin_under_a_lease_finds_its_rows_by_id(backlog: Backlog) -> None:
    check(
        backlog,
        "SELECT * FROM leasehold.begin_leased_attempts(%s, 'holder', 1, %s)",
        [CLUSTER_LEASE, backlog.scheduled],
        by={PENDING, INTENTS},
    )


def test_begin_in_streams_looks_no_further_than_their_heads(backlog: Backlog) -> None:
    check(
        backlog,
        "SELECT * FROM leasehold.begin_stream_attempts('holder', %s, %s, %s)",
        [*leases_of(backlog), [row["intent_id"] for row in backlog.streams]],
        returned=len(backlog.streams),
        by={PENDING, "outbox_pending_stream_order", "outbox_pending_stream_awaiting"},
    )


def test_record_in_streams_looks_no_further_than_their_next_heads(backlog: Backlog) -> None:
    heads = [row["intent_id"] for row in backlog.streams]
    ids = ", ".join(f"'{intent_id}'" for intent_id in heads)
    begun = "UPDATE leasehold.outbox_pending SET begun_at = now()"
    check(
        backlog,
        "SELECT * FROM leasehold.record_stream_attempts('holder', %s, %s, %s)",
        [*leases_of(backlog), results(heads, "DISPATCHED")],
        before=[f"{begun} WHERE intent_id IN ({ids})"],
        returned=2 * len(heads),
        by={PENDING, INTENTS, LEDGER, "outbox_pending_stream_order"},
    )


@pytest.mark.parametrize("function", ["refresh_streams", "release_streams"])
def test_look_at_streams_reads_only_their_heads(backlog: Backlog, function: str) -> None:
    check(
        backlog,
        f"SELECT * FROM leasehold.{function}('holder', %s, %s)",
        [*leases_of(backlog)],
        returned=len(backlog.streams),
        by={PENDING, INTENTS, "outbox_pending_stream_order"},
    )


def test_refresh_continues_from_its_cursor(backlog: Backlog) -> None:
    leases, epochs = [CLUSTER_LEASE], [1]
    [middle] = backlog.database.execute(
        "SELECT last_modified_at, intent_id FROM leasehold.outbox_pending"
        " WHERE lease_name = ANY (%s) ORDER BY 1, 2 OFFSET 1000 LIMIT 1",
        [leases],
    )
    check(
        backlog,
        "SELECT * FROM leasehold.refresh_schedule('holder', %s, %s, %s, %s, %s)",
        [leases, epochs, middle["last_modified_at"], middle["intent_id"], COUNT],
        by={"outbox_pending_changes"},
        rows_max=COUNT * len(leases),
        buffers_max=400,
    )


def test_due_window_reads_only_the_next_rows(backlog: Backlog) -> None:
    leases, epochs = [CLUSTER_LEASE], [1]
    for plans in explained(
        backlog,
        "SELECT * FROM leasehold.refresh_due_rows('holder', %s, %s, %s, %s)",
        [leases, epochs, ["cluster"], COUNT],
    ):
        assert len(plans.rows) == COUNT * len(leases)
        assert "outbox_pending_cluster_due" in plans.indexes("outbox_pending")
        plans.assert_bounded(rows_max=COUNT * len(leases), buffers_max=400)


def test_due_window_with_content_continues_from_where_it_ended(backlog: Backlog) -> None:
    """It reads neither earlier pages nor other intents."""
    window = "SELECT * FROM leasehold.refresh_due_rows('holder', %s, '{1}', '{cluster}', %s, %s"
    first = backlog.database.execute(f"{window})", [[CLUSTER_LEASE], COUNT, 0])
    after = [[first[-1][name]] * 4 for name in ("due_at", "intent_id")]
    for plans in explained(backlog, f"{window}, %s, %s)", [[CLUSTER_LEASE], COUNT, 1000, *after]):
        assert len(plans.rows) == COUNT
        assert {row["intent_id"] for row in plans.rows}.isdisjoint(r["intent_id"] for r in first)
        assert "outbox_pending_cluster_due" in plans.indexes("outbox_pending")
        assert plans.indexes("intents") == {"intents_pkey"}
        # Each row is looked up in three tables.
        plans.assert_bounded(rows_max=COUNT, buffers_max=400 + 10 * COUNT)


def leases_of(backlog: Backlog) -> tuple[list[str], list[int]]:
    return (
        [row["lease_name"] for row in backlog.streams],
        [row["lease_epoch"] for row in backlog.streams],
    )


def test_streams_are_claimed_by_stream_not_by_row(backlog: Backlog) -> None:
    check(
        backlog,
        "SELECT * FROM leasehold.claim_streams(%s, 'another', 30, 0, '{stream}')",
        [COUNT],
        by={PENDING, INTENTS, "outbox_pending_stream_due", "outbox_pending_stream_order"},
    )


def test_takeover_reads_only_the_calls_in_flight(backlog: Backlog) -> None:
    ids = ", ".join(f"'{intent_id}'" for intent_id in backlog.scheduled)
    begun = "UPDATE leasehold.outbox_pending SET begun_at = now(), begun_epoch = 1"
    expired = "UPDATE leasehold.leases SET expires_at = now(), grace_expires_at = now()"
    check(
        backlog,
        "SELECT * FROM leasehold.acquire_lease(%s, 'another', 30)",
        [CLUSTER_LEASE],
        before=[expired, f"{begun} WHERE intent_id IN ({ids})"],
        returned=1,
        by={"outbox_pending_begun", PENDING, LEDGER},
    )


def test_enqueue_reads_only_the_keys_it_is_given(backlog: Backlog) -> None:
    keys = [f"new-{n}" if n % 2 else f"key-{n + 1:08}" for n in range(COUNT)]
    entries = [{"target": "done", "payload": {"n": 1}, "idempotency_key": key} for key in keys]
    check(
        backlog,
        "SELECT * FROM leasehold.enqueue_intents(%s)",
        [json.dumps(entries)],
        by={"intents_one_per_key"},
    )


def test_enqueue_into_streams_reads_no_backlog(backlog: Backlog) -> None:
    entries = [{"target": "stream", "stream": f"stream-{n}", "payload": n} for n in range(COUNT)]
    statement = "SELECT * FROM leasehold.enqueue_intents(%s)"
    check(backlog, statement, [json.dumps(entries)], by={"outbox_pending_stream_order"})


@pytest.mark.parametrize("condition", ["intent_id = %s", "intent_id = ANY (ARRAY[%s])"])
def test_status_is_found_by_id(backlog: Backlog, condition: str) -> None:
    statement = f"SELECT * FROM leasehold.intent_status WHERE {condition}"
    finding = {INTENTS, PENDING}
    for plans in explained(backlog, statement, [backlog.done]):
        assert len(plans.rows) == 1
        plans.assert_bounded(rows_max=100, buffers_max=30)
        used = {name for table in ("outbox_", "intents_") for name in plans.indexes(table)}
        # With a constant id, the last attempt of an unfinished intent may be looked for as well.
        assert used - {"outbox_attempts_pkey"} == finding | {TERMINAL}
    for plans in explained(backlog, statement, [backlog.scheduled[0]]):
        plans.assert_bounded(rows_max=3, buffers_max=30)


def test_status_is_found_by_key(backlog: Backlog) -> None:
    statement = "SELECT * FROM leasehold.intent_status WHERE target = %s AND idempotency_key = %s"
    by = {"intents_one_per_key", PENDING, TERMINAL}
    check(backlog, statement, ["done", "key-00001234"], returned=1, by=by, buffers_max=50)


def test_newest_intents_are_listed_without_a_sort(backlog: Backlog) -> None:
    statement = "SELECT * FROM leasehold.intent_status ORDER BY intent_id DESC LIMIT 10"
    for plans in explained(backlog, statement):
        plans.assert_bounded(rows_max=20, buffers_max=300)


def test_reader_of_events_far_behind_reads_its_page_and_no_more(backlog: Backlog) -> None:
    """All million rows are of one transaction, which must not make a page cost more."""
    [middle] = backlog.database.execute(
        "SELECT transaction_id::text::bigint AS number FROM leasehold.outbox_attempts"
        " WHERE intent_id = %s LIMIT 1",
        [backlog.done],
    )
    statement = "SELECT * FROM leasehold.read_events(%s, %s, 0, %s)"
    for cursor in ([0, UUID(int=0)], [middle["number"], backlog.done]):
        by = {"outbox_attempts_events", INTENTS}
        check(backlog, statement, [*cursor, COUNT], by=by, rows_max=2 * COUNT, buffers_max=150)


@pytest.mark.parametrize(
    ("status", "by"),
    [
        (None, {INTENTS}),
        ("held", {PENDING}),
        ("rejected", {INTENTS, PENDING, TERMINAL}),
    ],
)
def test_search_without_a_match_ends_with_its_window(
    backlog: Backlog, status: str | None, by: set[str]
) -> None:
    window = 500
    before = backlog.done if status != "held" else UUID(int=2**128 - 1)
    statement = (
        "SELECT * FROM leasehold.list_intents(%s, %s, '{nobody}', p_before => %s, p_window => %s)"
    )
    for plans in explained(backlog, statement, [COUNT, status, before, window]):
        [row] = plans.rows
        assert row["intent_ids"] == []
        assert row["searched_to"] is not None
        plans.assert_bounded(rows_max=window, buffers_max=window * 10)
        used = {name for table in ("outbox_", "intents_") for name in plans.indexes(table)}
        assert used <= by


def test_depth_of_a_queue_is_counted_no_further_than_its_limit(backlog: Backlog) -> None:
    limited = """
        INSERT INTO leasehold.contracts (target, version, terms, published_by)
        SELECT target, version + 1, terms || '{"pending_max": 100}', 'test'
          FROM leasehold.contracts WHERE target <> 'done'"""
    begin = "SELECT leasehold.begin_watch_turn('depths')"
    statement = "SELECT leasehold.record_queue_depths((SELECT turn_no FROM leasehold.watch_turns))"
    targets = len(TARGETS)
    for plans in explained(backlog, statement, before=[limited, begin]):
        assert plans.rows[0]["record_queue_depths"] is not None
        plans.assert_bounded(rows_max=100 * targets, buffers_max=500 * targets)


def test_former_terms_read_one_pending_row_each(backlog: Backlog) -> None:
    moved = """
        INSERT INTO leasehold.contracts (target, version, terms, published_by)
        SELECT target, version + 1, terms || '{"scope": "cluster", "lease_name": "other"}', 'test'
          FROM leasehold.contracts WHERE target IN ('bulk', 'cluster', 'idle')"""
    statement = "SELECT * FROM leasehold.read_former_terms()"
    for plans in explained(backlog, statement, before=[moved]):
        assert [row["target"] for row in plans.rows] == ["bulk", "cluster"]
        plans.assert_bounded(rows_max=20, buffers_max=200)


# The same assertions on plans that they must refuse.

NAIVE_CLAIM = """
SELECT intent_id FROM leasehold.outbox_pending
 WHERE scope = 'item' AND claimed_by IS NULL AND target = ANY (%s) AND due_at <= now()
 ORDER BY priority, due_at LIMIT 10 FOR UPDATE SKIP LOCKED
"""


def test_plan_test_finds_a_claim_that_filters_one_index(backlog: Backlog) -> None:
    for plans in explained(backlog, NAIVE_CLAIM, [["quiet", "ranked"]]):
        with pytest.raises(AssertionError):
            plans.assert_bounded(rows_max=100, buffers_max=400)


@pytest.mark.parametrize(
    ("index", "call"),
    [
        ("due", "claim_outbox_batch(10, 'worker', 30, '{quiet}')"),
        ("deadlines", "repair_missed_deadlines(10, 'reaper')"),
        (
            "changes",
            "refresh_schedule('holder', '{executor}', '{1}', '-infinity', gen_random_uuid(), 10)",
        ),
    ],
)
def test_plan_test_finds_a_missing_index(backlog: Backlog, index: str, call: str) -> None:
    lost = f"DROP INDEX leasehold.outbox_pending_{index}"
    for plans in explained(backlog, f"SELECT * FROM leasehold.{call}", before=[lost]):
        with pytest.raises(AssertionError):
            plans.assert_bounded(rows_max=100, buffers_max=1000)

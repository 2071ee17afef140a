"""Queues of one target, half finished: the other half is due.

The statistics are from the time before the work began. With them the planner believes that a batch
is a large part of the queue, and that reading all ids from the first one is cheap. Finished rows
must not be read all the same: otherwise a queue becomes slower with every finished intent.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.database import Database
from tests.support.query_plans import Explainer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from tests.support.servers import Server

BATCH = 100
COUNT = 20_000
LEASE = "executor"
TARGETS: dict[str, dict[str, str]] = {
    "items": {"scope": "item", "guarantee": "keyed", "gateway": None},
    "led": {"scope": "cluster", "guarantee": "keyed", "gateway": None, "lease_name": LEASE},
}
MARKS = "'{-infinity, -infinity, -infinity, -infinity}'"
CLAIM = (
    "SELECT * FROM leasehold.claim_outbox_batch("
    f"{BATCH}, 'worker', 30, '{{items}}', '{{500}}', {MARKS})"
)
KEEP = f"CREATE TEMPORARY TABLE claimed ON COMMIT DROP AS {CLAIM}"
CLAIMED = "FROM claimed"
IDS = f"ARRAY(SELECT intent_id {CLAIMED})"
TOKENS = f"ARRAY(SELECT lease_token {CLAIMED})"
RESULTS = (
    "(SELECT jsonb_agg(jsonb_build_object("
    f" 'intent_id', intent_id, 'lease_token', lease_token, 'state', 'DISPATCHED')) {CLAIMED})"
)


@pytest.fixture(scope="module")
def half_done(server: Server) -> Iterator[Database]:
    database = Database(server, server.create_database())
    for target, terms in TARGETS.items():
        publish = "SELECT leasehold.publish_contract(%s, %s, 'test')"
        database.execute(publish, [target, json.dumps(terms)])
        entries = json.dumps([{"target": target, "payload": n} for n in range(1000)])
        for _ in range(COUNT // 1000):
            database.execute("SELECT leasehold.enqueue_intents(%s)", [entries])
    for table in ("outbox_pending", "intents"):
        database.owner_execute(f"VACUUM ANALYZE leasehold.{table}")
    for target in TARGETS:
        database.owner_execute(
            "DELETE FROM leasehold.outbox_pending WHERE intent_id = ANY (ARRAY("
            f" SELECT intent_id FROM leasehold.outbox_pending WHERE target = '{target}'"
            f"  ORDER BY intent_id LIMIT {COUNT // 2}))"
        )
    database.execute("SELECT leasehold.acquire_lease(%s, 'holder', 3600)", [LEASE])
    yield database
    database.close()


@pytest.fixture(scope="module")
def led(half_done: Database) -> list[UUID]:
    rows = half_done.execute(
        "SELECT intent_id FROM leasehold.outbox_pending WHERE target = 'led'"
        f" ORDER BY due_at, intent_id LIMIT {BATCH}"
    )
    return [row["intent_id"] for row in rows]


# Statements that do not return a row for each entry of the batch.
ROWS = {"%(needs_content)s": BATCH + 1, "mark_calls": 1}


def check(
    database: Database, statement: str, params: Sequence[Any] = (), *, before: Sequence[str] = ()
) -> None:
    explainer = Explainer(database)
    for times in (2, 5):
        plans = explainer.run(statement, params, times=times, before=before)
        assert len(plans.rows) == next((n for part, n in ROWS.items() if part in statement), BATCH)
        plans.assert_bounded(rows_max=2 * BATCH, buffers_max=50 * BATCH)
    explainer.connection.close()


def test_claim_reads_no_finished_rows(half_done: Database) -> None:
    check(half_done, CLAIM)


@pytest.mark.parametrize(
    "call",
    [
        f"renew_outbox_leases('worker', {IDS}, {TOKENS}, 30)",
        f"release_outbox_claims('worker', {IDS}, {TOKENS}, 0)",
        f"begin_outbox_attempts('worker', {IDS}, {TOKENS})",
        f"complete_outbox_attempts('worker', {RESULTS})",
    ],
)
def test_worker_reads_no_finished_rows(half_done: Database, call: str) -> None:
    check(half_done, f"SELECT * FROM leasehold.{call}", before=[KEEP])


@pytest.mark.parametrize(
    "call",
    [
        f"refresh_due_rows('holder', '{{{LEASE}}}', '{{1}}', '{{led}}', {BATCH})",
        f"refresh_due_rows('holder', '{{{LEASE}}}', '{{1}}', '{{led}}', {BATCH}, 1000)",
        f"mark_calls('{LEASE}', 'holder', 1, %(ids)s, %(numbers)s, 1)",
        f"mark_calls('{LEASE}', 'holder', 1, %(ids)s, %(numbers)s, 1, %(needs_content)s)",
        f"begin_leased_attempts('{LEASE}', 'holder', 1, %(ids)s)",
        f"record_attempts('{LEASE}', 'holder', 1, %(results)s)",
    ],
)
def test_leader_reads_no_finished_rows(half_done: Database, led: list[UUID], call: str) -> None:
    results = [{"intent_id": str(one), "state": "DISPATCHED"} for one in led]
    params: Any = {"ids": led, "numbers": [1] * len(led), "results": json.dumps(results)}
    params |= {"needs_content": [True] * len(led)}
    check(half_done, f"SELECT * FROM leasehold.{call}", params)

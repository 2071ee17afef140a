"""Helpers for tests of leader election: start a leader, read its lease, keep work coming, and check
in the ledger and in the gateway's record who executed what.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from tests.support.outbox import CLUSTER_LEASE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence
    from uuid import UUID

    from psycopg.rows import DictRow

    from tests.support.database import Database
    from tests.support.engine import Engine, Worker

# The lease is a minute: nobody is replaced because time passes.
ROW_LEASE_SETTINGS = {
    "cluster_lease_seconds": "60",
    "cluster_renew_seconds": "0.4",
    "cluster_acquire_seconds": "0.5",
    "schedule_refresh_seconds": "0.2",
}
# Between two enqueues of constant_work.
_ENQUEUE_SECONDS = 0.03


async def start_leader(engine: Engine, **settings: str) -> Worker:
    """Start a worker; wait until it leads and has built its schedule."""
    worker = engine.worker(**settings)
    await worker.logged("due_queue_built")
    return worker


def lease(engine: Engine) -> DictRow:
    [row] = engine.database.execute(
        "SELECT * FROM leasehold.leases WHERE lease_name = %s", [CLUSTER_LEASE]
    )
    return row


def fences(engine: Engine) -> list[int]:
    """Return the epochs of the calls that the gateway received, in order of arrival.

    The fencing token of a first submission key is the epoch plus the attempt number.
    """
    found = [one for one in engine.sandbox.requests() if one.kind == "submission"]
    return [
        (one.fencing_token or 0) - (one.attempt_no or 0)
        for one in sorted(found, key=lambda one: one.received_at)
    ]


def holders(engine: Engine, ids: Sequence[UUID]) -> set[str]:
    return {holder for found in holders_by_epoch(engine, ids).values() for holder in found}


def holders_by_epoch(engine: Engine, ids: Sequence[UUID]) -> dict[int, set[str]]:
    """Return who wrote ledger rows under each epoch. Rows that a takeover writes on behalf of the
    previous holder carry its name, so they are left out.
    """
    rows = engine.database.execute(
        "SELECT lease_epoch, array_agg(DISTINCT holder) AS holders FROM leasehold.outbox_attempts"
        " WHERE intent_id = ANY (%s) AND reason IS DISTINCT FROM 'lease_taken_over'"
        " GROUP BY lease_epoch",
        [list(ids)],
    )
    return {row["lease_epoch"]: set(row["holders"]) for row in rows}


@asynccontextmanager
async def constant_work(engine: Engine, target: str = "ledger") -> AsyncGenerator[list[UUID]]:
    """Enqueue two intents every 30 ms, so that every leader has calls to make.

    In the end: all are accepted, no call of an older epoch arrives after one of a newer epoch, and
    no epoch has two holders.
    """
    ids: list[UUID] = []
    stopping = asyncio.Event()

    async def enqueue() -> None:
        while not stopping.is_set():
            ids.extend(engine.outbox.enqueue(2, target))
            await asyncio.sleep(_ENQUEUE_SECONDS)

    work = asyncio.create_task(enqueue())
    try:
        yield ids
    finally:
        stopping.set()
        await work
    await engine.until_status(ids)
    called = [fence for fence in fences(engine) if fence is not None]
    assert called == sorted(called)
    by_epoch = holders_by_epoch(engine, ids)
    assert all(len(found) == 1 for found in by_epoch.values()), by_epoch
    assert by_epoch.keys() <= set(called)


@contextmanager
def failing_function(database: Database, function: str, sqlstate: str) -> Generator[None]:
    """Make a database function raise this SQLSTATE for every caller."""
    [row] = database.execute(
        "SELECT pg_get_functiondef(p.oid) AS text FROM pg_proc p"
        " WHERE p.pronamespace = 'leasehold'::regnamespace AND p.proname = %s",
        [function],
    )
    original: str = row["text"]
    body = (
        f"AS $function$ BEGIN RAISE EXCEPTION 'broken' USING ERRCODE = '{sqlstate}'; END $function$"
    )
    database.owner_execute(
        re.sub(r"AS \$function\$.*\$function\$", lambda _: body, original, flags=re.DOTALL)
    )
    try:
        yield
    finally:
        database.owner_execute(original)


def logged_lines(worker: Worker, event: str, **fields: Any) -> list[dict[str, Any]]:
    """Return a worker's log entries of an event that contain these fields."""
    return [line for line in worker.lines(event) if fields.items() <= line.items()]

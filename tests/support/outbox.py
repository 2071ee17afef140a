"""The verbs of the database tests: publish, enqueue, claim, complete, expire, and reads.

All go through the real functions, as the role that may call them. Only the passing of time is
forced: the owner moves stored timestamps.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import psycopg
    from psycopg.rows import DictRow

    from tests.support.database import Database

# A row of record_stream_attempts has a result or work; the tests read both with one set of names.
FLAT = (
    "(told.work).*, (told.result).verdict, (told.result).state, (told.result).reason,"
    " coalesce((told.result).intent_id, (told.work).intent_id) AS intent_id,"
    " coalesce((told.result).attempt_no, (told.work).attempt_no) AS attempt_no,"
    " coalesce((told.result).due_at, (told.work).due_at) AS due_at"
)
CLUSTER_LEASE = "submission-manager-executor"
ZERO_ID = UUID(int=0)


class Outbox:
    """Calls the database functions for a test and reads the tables."""

    def __init__(self, database: Database):
        self.database = database
        self._connections: dict[str, psycopg.Connection[DictRow]] = {}

    def as_role(self, role: str) -> psycopg.Connection[DictRow]:
        """Return a cached connection of a login that is a member of exactly this role."""
        if role not in self._connections:
            self._connections[role] = self.database.connect(role)
        return self._connections[role]

    def call(self, role: str, function: str, *arguments: Any) -> list[DictRow]:
        """SELECT * FROM a function as a role; dicts and lists of dicts become jsonb."""
        places = ", ".join(["%s"] * len(arguments))
        given = [_adapt(argument) for argument in arguments]
        columns, alias = (FLAT, "AS told") if function == "record_stream_attempts" else ("*", "")
        return (
            self.as_role(role)
            .execute(f"SELECT {columns} FROM leasehold.{function}({places}) {alias}", given)
            .fetchall()
        )

    def publish(self, target: str = "sms", **terms: Any) -> int:
        """Publish a contract; by default scope item, guarantee keyed and no gateway."""
        terms = {"scope": "item", "guarantee": "keyed", "gateway": None} | terms
        [row] = self.call("operator", "publish_contract", target, terms, "test")
        return row["publish_contract"]

    def enqueue(self, count: int = 1, target: str = "sms", **fields: Any) -> list[UUID]:
        """Enqueue intents that must all be accepted; return their ids in order."""
        entries = [{"target": target, "payload": {"number": n}} | fields for n in range(count)]
        results = self.enqueue_entries(entries)
        assert {row["verdict"] for row in results} == {"accepted"}, results
        return [row["intent_id"] for row in results]

    def enqueue_entries(self, entries: Sequence[dict[str, Any]]) -> list[DictRow]:
        """Enqueue any entries; return the verdicts in order."""
        return self.call("ingest", "enqueue_intents", list(entries))

    def claim(
        self,
        worker: str = "worker-1",
        batch_size: int = 10,
        targets: Sequence[str] = ("sms",),
        lease_seconds: float = 30,
    ) -> list[DictRow]:
        return self.call(
            "executor", "claim_outbox_batch", batch_size, worker, lease_seconds, list(targets)
        )

    def complete(
        self,
        claims: Iterable[DictRow],
        state: str = "DISPATCHED",
        worker: str = "worker-1",
        **fields: Any,
    ) -> list[DictRow]:
        """Complete all these claims with one state; return the verdicts in order of id."""
        results = [result_of(claim, state, **fields) for claim in claims]
        return self.call("executor", "complete_outbox_attempts", worker, results)

    def begin(self, claims: Sequence[DictRow], worker: str = "worker-1") -> list[DictRow]:
        return self.call(
            "executor",
            "begin_outbox_attempts",
            worker,
            [claim["intent_id"] for claim in claims],
            [claim["lease_token"] for claim in claims],
        )

    def acquire(self, holder: str = "holder-1", lease_name: str = CLUSTER_LEASE) -> DictRow:
        [row] = self.call("executor", "acquire_lease", lease_name, holder, 60)
        return row

    def expire_claims(self, seconds_ago: float = 1) -> None:
        """Move the expiry of every item claim this far into the past."""
        self.database.owner_execute(
            "UPDATE leasehold.outbox_pending"
            "   SET lease_expires_at = clock_timestamp() - make_interval(secs => %s)"
            " WHERE claimed_by IS NOT NULL",
            [seconds_ago],
        )

    def take_over(self, worker: str) -> list[dict[str, Any]]:
        """Claim what expired claims held: the first claim ends them, and then they are due soon."""
        assert self.claim(worker) == []
        self.make_due()
        return self.claim(worker)

    def expire_lease(self, lease_name: str = CLUSTER_LEASE, *, grace: bool = True) -> None:
        """Move the expiry of a lease into the past; with grace=False its grace time goes on."""
        self.database.owner_execute(
            "UPDATE leasehold.leases SET expires_at = clock_timestamp() - interval '1 second',"
            " grace_expires_at = CASE WHEN %s THEN clock_timestamp() - interval '1 second'"
            "                         ELSE clock_timestamp() + interval '2 minutes' END"
            " WHERE lease_name = %s",
            [grace, lease_name],
        )

    def count_queue(self) -> DictRow:
        """Count the whole queue now, although no turn is due; return the row of the view."""
        [clock] = self.database.execute("SELECT clock_timestamp() AS now")
        while True:
            self.end_pause("counts")
            turn_no = self.call("executor", "begin_watch_turn", "counts")[0]["begin_watch_turn"]
            self.call("executor", "record_queue_counts", turn_no)
            [row] = self.database.execute("SELECT * FROM leasehold.supervisor")
            if row["seen_at"] is not None and row["seen_at"] > clock["now"]:
                return row

    def count_depths(self) -> dict[str, int]:
        """Count the queues that have a limit now, although no turn is due; return the depths."""
        while True:
            self.database.owner_execute("UPDATE leasehold.queue_depths SET limit_read_at = 'epoch'")
            self.end_pause("depths")
            [row] = self.call("readonly", "begin_watch_turn", "depths")
            turn_no = row["begin_watch_turn"]  # an instance may have been faster
            if turn_no and self.call("readonly", "record_queue_depths", turn_no):
                found = self.database.execute("SELECT target, depth FROM leasehold.queue_depths")
                return {row["target"]: row["depth"] for row in found}

    def end_pause(self, name: str) -> None:
        """Make the next turn of those who watch the queue due."""
        self.database.owner_execute(
            "UPDATE leasehold.watch_turns SET next_at = clock_timestamp() WHERE name = %s", [name]
        )

    def make_due(self) -> None:
        """Make all pending rows due, except those that are held. Leaders see a change."""
        self.database.owner_execute(
            # Locked by id, as everybody does.
            "WITH due AS MATERIALIZED (SELECT intent_id FROM leasehold.outbox_pending"
            "  WHERE due_at < 'infinity' ORDER BY intent_id FOR NO KEY UPDATE)"
            " UPDATE leasehold.outbox_pending AS pending"
            "   SET due_at = clock_timestamp(), last_modified_at = clock_timestamp()"
            "  FROM due WHERE pending.intent_id = due.intent_id AND pending.due_at < 'infinity'"
        )

    def ledger(self, intent_id: UUID) -> list[DictRow]:
        return self.database.execute(
            "SELECT * FROM leasehold.outbox_attempts WHERE intent_id = %s ORDER BY attempt_no",
            [intent_id],
        )

    def states(self, intent_id: UUID) -> list[str]:
        return [row["state"] for row in self.ledger(intent_id)]

    def pending(self, intent_id: UUID) -> DictRow | None:
        rows = self.database.execute(
            "SELECT *, clock_timestamp() AS seen_at"
            "  FROM leasehold.outbox_pending WHERE intent_id = %s",
            [intent_id],
        )
        return rows[0] if rows else None

    def status(self, intent_id: UUID) -> str:
        [row] = self.database.execute(
            "SELECT status FROM leasehold.intent_status WHERE intent_id = %s", [intent_id]
        )
        return row["status"]


def result_of(claim: DictRow, state: str, **fields: Any) -> dict[str, Any]:
    """Return a result for a claim; non-terminal states get the fields that they need."""
    result = {"intent_id": str(claim["intent_id"]), "lease_token": str(claim["lease_token"])}
    if state in ("RETRYABLE", "IN_DOUBT", "SUBMITTED", "DEFERRED"):
        fields = {"retry_after_seconds": 5} | fields
    if state == "SUBMITTED":
        fields = {"reference": "gateway-reference"} | fields
    return result | {"state": state} | fields


def _adapt(argument: Any) -> Any:
    is_json = isinstance(argument, dict) or (
        isinstance(argument, list) and argument != [] and isinstance(argument[0], dict)
    )
    return json.dumps(argument) if is_json else argument

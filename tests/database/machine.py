"""The state machine: what all its parts need. Contracts, intake, time and the comparison.

The machine moves the time: as the owner it shifts the stored timestamps. Every call goes to the
real functions, and the model predicts its result. The parts are machine_items, machine_streams,
machine_operators and machine_leased, which has all of them; machine_pipelines is a machine of its
own.

No rule has a precondition, because the database chooses among equal rows at random, and the next
rule must not depend on that choice. A rule without anything to act on does something similar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.database.invariants import DisagreementError, Snapshot
from tests.database.model import LEASE_UNITS, UNIT_SECONDS, Item, Terms
from tests.database.model_streams import StreamModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg.rows import DictRow

    from tests.support.outbox import Outbox

REPORTS = ("DISPATCHED", "FAILED", "RETRYABLE", "IN_DOUBT", "SUBMITTED")
PHANTOM = UUID(int=1)
LEASE_SECONDS = LEASE_UNITS * UNIT_SECONDS

reports = st.sampled_from(REPORTS)
units = st.integers(0, 2)
picks = st.lists(st.integers(0, 12), min_size=1, max_size=3)
which_one = st.integers(0, 12)
ADVANCE = """
WITH step AS (SELECT make_interval(secs => %(seconds)s) AS step), items AS (
  UPDATE leasehold.outbox_pending
     SET due_at = due_at - step, deadline_at = deadline_at - step,
         lease_expires_at = lease_expires_at - step,
         first_tried_at = first_tried_at - step, begun_at = begun_at - step
    FROM step WHERE target = ANY (%(targets)s)
), pauses AS (
  UPDATE leasehold.stream_pauses
     SET paused_since = paused_since - step, paused_until = paused_until - step
    FROM step WHERE lease_name = ANY (%(leases)s)
)
UPDATE leasehold.leases
   SET expires_at = expires_at - step, grace_expires_at = grace_expires_at - step,
       acquired_at = acquired_at - step, renewed_at = renewed_at - step,
       paused_since = paused_since - step, paused_until = paused_until - step
  FROM step WHERE lease_name = ANY (%(leases)s)
"""


class BaseMachine(RuleBasedStateMachine):
    """One example. Its targets have its number in their names, so examples can share a database."""

    terms_of: ClassVar[Mapping[str, Terms]]

    def __init__(self, outbox: Outbox, number: int):
        super().__init__()
        self.outbox = outbox
        self.model = StreamModel()
        self.names = {kind: f"{kind}-{number}" for kind in self.terms_of}
        self.cluster_leases = [f"executor-{number}", f"annex-{number}"]
        streams = [self.stream_lease(name) for name in "ab"]
        self.lease_names = [*self.cluster_leases, *streams]
        self.current = dict(self.terms_of)
        self.versions = dict.fromkeys(self.terms_of, 0)
        self.keys: dict[tuple[str, int], tuple[UUID, tuple[int, str]]] = {}
        self.tokens: dict[UUID, int] = {}  # the highest fencing token of each submission key
        self.before = Snapshot([], [])

    def stream_lease(self, stream: str) -> str:
        return f"stream/{self.names['stream']}/{stream}"

    def cluster_lease(self, terms: Terms) -> str:
        return f"{terms.lease}-{self.cluster_leases[0].rpartition('-')[2]}"

    def note_token(self, row: DictRow) -> None:
        """A gateway that saw a higher token for this key would refuse the call."""
        key, token = row["submission_key"], row["fencing_token"]
        if token < self.tokens.setdefault(key, token):
            raise DisagreementError(f"the token of {key} fell from {self.tokens[key]} to {token}")
        self.tokens[key] = token

    def teardown(self) -> None:
        # Repair looks at all targets, so this example must not leave work for the next one.
        self.outbox.database.owner_execute(
            "DELETE FROM leasehold.outbox_pending WHERE target = ANY (%s)",
            [list(self.names.values())],
        )

    def call(self, role: str, function: str, *arguments: Any) -> list[DictRow] | str:
        """Return the rows of a call, or the SQLSTATE of ours that it raised."""
        self.model.tick()
        try:
            return self.outbox.call(role, function, *arguments)
        except psycopg.Error as error:
            if error.sqlstate not in ("P7002", "P7003", "P7004"):
                raise
            return error.sqlstate

    # Intake.

    @initialize()
    def publish_all(self) -> None:
        self.outbox.as_role("executor").execute(
            "SELECT setseed(0)"
        )  # the first target that the claim looks at
        for kind, terms in self.terms_of.items():
            self.publish_terms(kind, terms)
        kinds = [kind for kind in self.terms_of for _ in range(2)]
        plain = {"payload": 0, "delay": 0, "priority": 1, "stream": "a"}
        self.enqueue_entries([plain | {"kind": kind, "key": key} for key, kind in enumerate(kinds)])

    def publish_terms(self, kind: str, terms: Terms) -> None:
        self.versions[kind] += terms != self.current[kind] or self.versions[kind] == 0
        self.current[kind] = terms
        contract = terms.as_contract(self.cluster_lease(terms))
        rows = self.call("operator", "publish_contract", self.names[kind], contract, "operator")
        expect(rows, [{"publish_contract": self.versions[kind]}])

    def enqueue_entries(self, batch: Sequence[Mapping[str, Any]]) -> None:
        rows = self.call(
            "ingest",
            "enqueue_intents",
            [
                {
                    "target": self.names[entry["kind"]],
                    "payload": {"number": entry["payload"]},
                    "idempotency_key": f"key-{entry['key']}",
                    "delay_seconds": entry["delay"] * UNIT_SECONDS,
                    "priority": entry["priority"],
                }
                | ({"stream": entry["stream"]} if entry["kind"] == "stream" else {})
                for entry in batch
            ],
        )
        for entry, row in zip(batch, rows, strict=True):
            if entry["kind"] == "stream":
                self.model.create_stream(self.stream_lease(entry["stream"]))
            key = (entry["kind"], entry["key"])
            content = (entry["payload"], entry["stream"] if entry["kind"] == "stream" else "")
            if key in self.keys:
                first_id, first_content = self.keys[key]
                verdict = "duplicate" if content == first_content else "conflict"
                expect((row["verdict"], row["intent_id"]), (verdict, first_id))
                continue
            expect(row["verdict"], "accepted")
            self.keys[key] = (row["intent_id"], content)
            item = self.accept(entry["kind"], row["intent_id"], entry["stream"], entry["delay"])
            item.priority = entry["priority"]

    def accept(self, kind: str, intent_id: UUID, stream: str, delay: int = 0) -> Item:
        terms, now = self.current[kind], self.model.now
        item = Item(intent_id, self.names[kind], terms, due=now + delay)
        item.version = self.versions[kind]
        item.deadline = None if terms.deadline is None else now + terms.deadline
        if terms.scope == "stream":
            # The order of acceptance. The real numbers may have gaps, but rise in this order.
            item.stream_seq = len(self.model.items) + 1
            item.lease_name = self.stream_lease(stream)
            self.model.accept_in_stream(item)
        elif terms.scope == "cluster":
            item.lease_name = self.cluster_lease(terms)
        self.model.items[intent_id] = item
        return item

    # The reaper, and time.

    @rule()
    def repair_missed_deadlines(self) -> None:
        missed = self.model.past_deadline()
        for item in missed:
            self.model.append(item, "FAILED", reason="deadline_exceeded")
            self.model.pause_after(item)
            self.model.settle(item)
        rows = self.call("executor", "repair_missed_deadlines", 10000, "reaper")
        expect({row["intent_id"] for row in rows}, {item.intent_id for item in missed})

    @rule(units=st.integers(1, 4))
    def advance(self, units: int) -> None:
        self.model.units += units
        self.outbox.database.owner_execute(
            ADVANCE,
            {
                "seconds": units * UNIT_SECONDS,
                "targets": list(self.names.values()),
                "leases": self.lease_names,
            },
        )

    # The comparison.

    @invariant()
    def the_database_is_as_predicted(self) -> None:
        self.check_database()

    def check_database(self) -> None:
        found = Snapshot.of(self.outbox, list(self.model.items), self.lease_names)
        found.check_invariants()
        found.check_since(self.before)
        found.compare(self.model.items, self.model.leases, self.model.now)
        self.before = found
        self.model.tick()


def expect(found: object, predicted: object) -> None:
    """Raise a DisagreementError unless the database did what the model predicts."""
    if found != predicted:
        raise DisagreementError(f"found {found!r}, predicted {predicted!r}")


def report(
    intent_id: UUID, state: str, retry_after: int, attempt_no: int | None = None
) -> dict[str, Any]:
    """Return a result as an executor reports it."""
    return {
        "intent_id": str(intent_id),
        "state": state,
        "reference": "gateway-reference",
        "retry_after_seconds": retry_after * UNIT_SECONDS,
        "attempt_no": attempt_no,
    }

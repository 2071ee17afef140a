"""The state machine, part one: random steps of intake, workers, the reaper and time.

Three workers claim items of three targets (keyed, lookup, blind). The machine moves the time: as
the owner it shifts the stored timestamps. Every call goes to the real functions, and `Model`
predicts its result. Streams are in `machine_streams`, leases and operators in `machine_leased`.

No rule has a precondition, because the database chooses among equal rows at random, and the next
rule must not depend on that choice. A rule without anything to act on does something similar.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.database.invariants import DisagreementError, Snapshot
from tests.database.model import (
    LEASE_UNITS,
    SOON,
    UNIT_SECONDS,
    Claim,
    Item,
    Terms,
)
from tests.database.model_streams import StreamModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.rows import DictRow

    from tests.support.outbox import Outbox

KINDS = {
    "keyed": Terms("item", "keyed", deadline=12, key_window=8),
    "lookup": Terms("item", "lookup", can_look_up=True),
    "blind": Terms("item", "blind", attempts_max=2),
    "cluster": Terms("cluster", "keyed", deadline=5),
    "stream": Terms(
        "stream", "lookup", deadline=12, can_look_up=True, on_failure="block_for", block=2
    ),
}
ITEM_KINDS = ("keyed", "lookup", "blind")
REPORTS = ("DISPATCHED", "FAILED", "RETRYABLE", "IN_DOUBT", "SUBMITTED")
PHANTOM = UUID(int=1)
LEASE_SECONDS = LEASE_UNITS * UNIT_SECONDS

kinds = st.sampled_from(list(KINDS))
workers = st.sampled_from(["worker-1", "worker-2", "worker-3"])
batch_sizes = st.sampled_from([10, 1, 2])
# The targets of scope item, and the one that may be moved there.
asked_kinds = st.sampled_from([(*ITEM_KINDS, "cluster"), ("lookup",), ("keyed", "blind")])
# Where the target "cluster" is executed: under one of two leases, or by workers.
homes = st.sampled_from(["executor", "executor", "annex", "item"])
reports = st.sampled_from(REPORTS)
units = st.integers(0, 2)
picks = st.lists(st.integers(0, 12), min_size=1, max_size=3)
entries = st.fixed_dictionaries(
    {
        "kind": kinds,
        "key": st.integers(0, 15),
        "payload": st.sampled_from([0, 0, 0, 1]),
        "delay": st.sampled_from([0, 0, 1]),
        "priority": st.integers(0, 3),
        "stream": st.sampled_from(["a", "b"]),
    }
)
seldom = st.sampled_from([False, False, False, False, True])
ADVANCE = """
WITH step AS (SELECT make_interval(secs => %(seconds)s) AS step), items AS (
  UPDATE leasehold.outbox_pending
     SET due_at = due_at - step, deadline_at = deadline_at - step,
         lease_expires_at = lease_expires_at - step,
         first_tried_at = first_tried_at - step, begun_at = begun_at - step
    FROM step WHERE target = ANY (%(targets)s)
)
UPDATE leasehold.leases
   SET expires_at = expires_at - step, grace_expires_at = grace_expires_at - step,
       acquired_at = acquired_at - step, renewed_at = renewed_at - step,
       paused_since = paused_since - step, paused_until = paused_until - step
  FROM step WHERE lease_name = ANY (%(leases)s)
"""


class ItemMachine(RuleBasedStateMachine):
    """One example. Its targets have its number in their names, so examples can share a database."""

    def __init__(self, outbox: Outbox, number: int):
        super().__init__()
        self.outbox = outbox
        self.model = StreamModel()
        self.names = {kind: f"{kind}-{number}" for kind in KINDS}
        self.cluster_leases = [f"executor-{number}", f"annex-{number}"]
        streams = [self.stream_lease(name) for name in "ab"]
        self.lease_names = [*self.cluster_leases, *streams]
        self.current = dict(KINDS)
        self.versions = dict.fromkeys(KINDS, 0)
        self.keys: dict[tuple[str, int], tuple[UUID, int, str | None]] = {}
        self.tokens: dict[UUID, int] = {}  # the highest fencing token of each submission key
        # Every claim that was ever given out. Most are stale, and are used all the same.
        self.claims = [Claim(PHANTOM, "worker-1", PHANTOM)]

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
        for kind in KINDS:
            self.publish(kind, KINDS[kind].attempts_max)
        kinds = [kind for kind in KINDS for _ in range(2)]
        plain = {"payload": 0, "delay": 0, "priority": 1, "stream": "a"}
        self.enqueue([plain | {"kind": kind, "key": key} for key, kind in enumerate(kinds)])

    @rule(kind=kinds, attempts_max=st.integers(1, 4), can_look_up=st.booleans(), home=homes)
    def publish(
        self, kind: str, attempts_max: int, can_look_up: bool = False, home: str = "executor"
    ) -> None:
        policy = "one_shot" if attempts_max == 1 else "max_attempts"
        allows_batches = can_look_up  # the lookup of a stream is given
        can_look_up = can_look_up or KINDS[kind].can_look_up
        terms = replace(
            KINDS[kind], attempts_max=attempts_max, policy=policy, can_look_up=can_look_up
        )
        if kind == "stream":
            # The number of attempts also chooses what a failure does to the stream.
            policies = {1: ("block", None), 3: ("block_for", 2)}
            on_failure, block = policies.get(attempts_max, ("continue", None))
            terms = replace(terms, on_failure=on_failure, block=block, batch_max=1 + allows_batches)
        if kind == "cluster":
            is_item = home == "item"
            terms = replace(terms, scope="item") if is_item else replace(terms, lease=home)
        self.versions[kind] += terms != self.current[kind] or self.versions[kind] == 0
        self.current[kind] = terms
        contract = terms.as_contract(self.cluster_lease(terms))
        rows = self.call("operator", "publish_contract", self.names[kind], contract, "operator")
        expect(rows, [{"publish_contract": self.versions[kind]}])

    @rule(batch=st.lists(entries, min_size=1, max_size=4))
    def enqueue(self, batch: list[dict[str, Any]]) -> None:
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
            if key in self.keys:
                first_id, *first = self.keys[key]
                is_same = first == [entry["payload"], self._stream_of(entry)]
                verdict = "duplicate" if is_same else "conflict"
                expect((row["verdict"], row["intent_id"]), (verdict, first_id))
                continue
            expect(row["verdict"], "accepted")
            self.keys[key] = (row["intent_id"], entry["payload"], self._stream_of(entry))
            item = self.accept(entry["kind"], row["intent_id"], entry["stream"], entry["delay"])
            item.priority = entry["priority"]

    @staticmethod
    def _stream_of(entry: dict[str, Any]) -> str | None:
        return entry["stream"] if entry["kind"] == "stream" else None

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

    # Workers.

    @rule(worker=workers, batch_size=batch_sizes, asked=asked_kinds)
    def claim(self, worker: str, batch_size: int, asked: Sequence[str] = ITEM_KINDS) -> None:
        targets = [self.names[kind] for kind in asked]
        requeueable = self.model.requeueable(targets)
        lengths = {item.intent_id: len(item.states) for item in requeueable}
        rows = self.call(
            "executor", "claim_outbox_batch", batch_size, worker, LEASE_SECONDS, targets
        )
        # The model does not predict which expired claims come first, only how many.
        found = Snapshot.of(self.outbox, list(lengths))
        requeued = [
            item
            for item in requeueable
            if len(found.rows[item.intent_id]["states"]) > lengths[item.intent_id]
        ]
        expect(len(requeued), min(batch_size, len(requeueable)))
        self.model.end_expired(requeued, 0)
        free = self.model.claimable(targets)
        expect(len(rows), min(batch_size, len(free)))
        expect({row["intent_id"] for row in rows} <= {item.intent_id for item in free}, True)
        claimed = [self.model.items[row["intent_id"]] for row in rows]
        for item in claimed:
            skipped = [o for o in free if o not in claimed and o.target == item.target]
            expect(any((o.priority, o.due) < (item.priority, item.due) for o in skipped), False)
        accepted = list(self.model.items)
        for row in sorted(rows, key=lambda row: accepted.index(row["intent_id"])):
            item = self.model.items[row["intent_id"]]
            expect((row["attempt_no"], row["last_state"]), (len(item.states) + 1, item.last_state))
            self.note_token(row)
            self.claims.append(Claim(item.intent_id, worker, row["lease_token"]))
            self.model.hand_out(self.claims[-1])

    def picked_claims(self, which: list[int]) -> list[Claim]:
        """Return some claims, the newest first, at most one per intent."""
        if len(self.claims) == 1:
            self.claim("worker-1", 10)
        chosen = [self.claims[-1 - pick % len(self.claims)] for pick in which]
        return list({claim.intent_id: claim for claim in chosen}.values())

    @rule(which=picks, as_stranger=seldom)
    def begin(self, which: list[int], as_stranger: bool) -> None:
        claims = self.picked_claims(which)
        worker = "stranger" if as_stranger else claims[0].worker
        verdicts = {c.intent_id: self.model.begin_verdict(c, worker) for c in claims}
        rows = self.call(
            "executor",
            "begin_outbox_attempts",
            worker,
            [claim.intent_id for claim in claims],
            [claim.token for claim in claims],
        )
        expect({row["intent_id"]: row["verdict"] for row in rows}, verdicts)
        for intent_id, verdict in verdicts.items():
            if verdict == "begun":
                self.model.items[intent_id].begun = True

    @rule(which=picks, state=reports, retry_after=units, as_stranger=seldom)
    def complete(self, which: list[int], state: str, retry_after: int, as_stranger: bool) -> None:
        claims = self.picked_claims(which)
        worker = "stranger" if as_stranger else claims[0].worker
        verdicts = {c.intent_id: self.model.complete_verdict(c, worker, state) for c in claims}
        results = [
            report(claim.intent_id, state, retry_after) | {"lease_token": str(claim.token)}
            for claim in claims
        ]
        rows = self.call("executor", "complete_outbox_attempts", worker, results)
        self.compare_results(rows, verdicts, state, retry_after)

    def compare_results(
        self, rows: list[DictRow] | str, verdicts: dict[UUID, str], state: str, retry_after: int
    ) -> None:
        if "not_begun" in verdicts.values():
            expect(rows, "P7003")
            return
        expect(rows if isinstance(rows, str) else None, None)
        written = {
            intent_id: self.model.report(self.model.items[intent_id], state, retry_after)
            for intent_id, verdict in verdicts.items()
            if verdict == "applied"
        }
        expect(
            {row["intent_id"]: (row["verdict"], row["state"]) for row in rows},
            {
                intent_id: (verdict, written.get(intent_id))
                for intent_id, verdict in verdicts.items()
            },
        )

    @rule(which=picks)
    def renew(self, which: list[int]) -> None:
        claims = self.picked_claims(which)
        worker = claims[0].worker
        lost = [self.model.is_lost(claim, worker) for claim in claims]
        ids = [claim.intent_id for claim in claims]
        tokens = [claim.token for claim in claims]
        rows = self.call("executor", "renew_outbox_leases", worker, ids, tokens, LEASE_SECONDS)
        verdicts = ["lease_lost" if is_lost else "renewed" for is_lost in lost]
        expect(
            sorted((row["intent_id"], row["verdict"]) for row in rows),
            sorted(zip(ids, verdicts, strict=True)),
        )
        for claim, is_lost in zip(claims, lost, strict=True):
            if not is_lost:
                self.model.items[claim.intent_id].claim_expires = self.model.now + LEASE_UNITS

    @rule(which=picks, delay=units)
    def release(self, which: list[int], delay: int) -> None:
        claims = self.picked_claims(which)
        worker = claims[0].worker
        verdicts: list[str] = []
        for claim in claims:
            if self.model.is_lost(claim, worker):
                verdicts.append("lease_lost")
            elif (item := self.model.items[claim.intent_id]).begun:
                verdicts.append("begun")
            else:
                verdicts.append("released")
                item.claim, item.due = None, self.model.now + delay
        ids = [claim.intent_id for claim in claims]
        tokens = [claim.token for claim in claims]
        rows = self.call(
            "executor", "release_outbox_claims", worker, ids, tokens, delay * UNIT_SECONDS
        )
        expect(
            sorted((row["intent_id"], row["verdict"]) for row in rows),
            sorted(zip(ids, verdicts, strict=True)),
        )

    # The reaper, and time.

    @rule()
    def repair(self) -> None:
        expired = self.model.expired()
        self.model.end_expired(expired, SOON)
        rows = self.call("executor", "repair_expired_leases", 10000, "reaper")
        expect(
            {row["intent_id"]: (row["attempt_no"], row["state"]) for row in rows},
            {item.intent_id: (len(item.states), item.last_state) for item in expired},
        )
        if expired:
            self.advance(1)  # so that rows that are due in a second are due now

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
        self.model.now += units
        self.outbox.database.owner_execute(
            ADVANCE,
            {
                "seconds": units * UNIT_SECONDS,
                "targets": list(self.names.values()),
                "leases": self.lease_names,
            },
        )


def expect(found: object, predicted: object) -> None:
    """Raise a DisagreementError unless the database did what the model predicts."""
    if found != predicted:
        raise DisagreementError(f"found {found!r}, predicted {predicted!r}")


def report(intent_id: UUID, state: str, retry_after: int) -> dict[str, Any]:
    """Return a result as an executor reports it."""
    return {
        "intent_id": str(intent_id),
        "state": state,
        "reference": "gateway-reference",
        "retry_after_seconds": retry_after * UNIT_SECONDS,
    }

"""The state machine, part one: random steps of workers on items, their reaper and their contracts.

Three workers claim items of three targets (keyed, lookup, blind).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.database.invariants import Snapshot
from tests.database.machine import (
    LEASE_SECONDS,
    PHANTOM,
    BaseMachine,
    expect,
    picks,
    report,
    reports,
    units,
)
from tests.database.model import LEASE_UNITS, UNIT_SECONDS, Claim, Terms

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

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
kinds = st.sampled_from(list(KINDS))
workers = st.sampled_from(["worker-1", "worker-2", "worker-3"])
batch_sizes = st.sampled_from([10, 1, 2])
# The targets of scope item, and the one that may be moved there.
asked_kinds = st.sampled_from([(*ITEM_KINDS, "cluster"), ("lookup",), ("keyed", "blind")])
# Where the target "cluster" is executed: under one of two leases, or by workers.
homes = st.sampled_from(["executor", "executor", "annex", "item"])
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


class ItemMachine(BaseMachine):
    """Workers, and the contracts of all targets."""

    terms_of: ClassVar = KINDS

    def __init__(self, outbox: Outbox, number: int):
        super().__init__(outbox, number)
        # Every claim that was ever given out. Most are stale, and are used all the same.
        self.claims = [Claim(PHANTOM, "worker-1", PHANTOM)]

    # Intake.

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
        self.publish_terms(kind, terms)

    @rule(batch=st.lists(entries, min_size=1, max_size=4))
    def enqueue(self, batch: list[dict[str, Any]]) -> None:
        self.enqueue_entries(batch)

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
        self.model.end_expired(requeued)
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

    @rule(which=picks, delay=units, is_unsent=st.booleans())
    def release(self, which: list[int], delay: int, is_unsent: bool) -> None:
        claims = self.picked_claims(which)
        worker = claims[0].worker
        verdicts: list[str] = []
        for claim in claims:
            if self.model.is_lost(claim, worker):
                verdicts.append("lease_lost")
            elif (item := self.model.items[claim.intent_id]).begun and not is_unsent:
                verdicts.append("begun")
            else:
                verdicts.append("released")
                self.model.unsend(item)
                item.claim, item.due = None, self.model.now + delay
        ids = [claim.intent_id for claim in claims]
        tokens = [claim.token for claim in claims]
        seconds, unsent = delay * UNIT_SECONDS, ids if is_unsent else []
        rows = self.call("executor", "release_outbox_claims", worker, ids, tokens, seconds, unsent)
        expect(
            sorted((row["intent_id"], row["verdict"]) for row in rows),
            sorted(zip(ids, verdicts, strict=True)),
        )

    # The reaper.

    @rule()
    def repair(self) -> None:
        expired = self.model.expired()
        self.model.end_expired(expired)
        rows = self.call("executor", "repair_expired_leases", 10000, "reaper")
        expect(
            {row["intent_id"]: (row["attempt_no"], row["state"]) for row in rows},
            {item.intent_id: (len(item.states), item.last_state) for item in expired},
        )
        if expired:
            self.advance(1)  # so that rows that are due in a second are due now

"""The state machine, part four: leases of clusters, and all parts together.

Two holders share two cluster leases. Grants go stale and are used all the same:
the database must refuse the writes of a stale holder.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.database.machine import (
    ADVANCE,
    LEASE_SECONDS,
    PHANTOM,
    expect,
    picks,
    report,
    reports,
    units,
    which_one,
)
from tests.database.machine_items import ItemMachine, homes, workers
from tests.database.machine_operators import OperatorMachine
from tests.database.machine_streams import graces, holders
from tests.database.model import LEASE_UNITS, UNIT_SECONDS, Claim, Grant

if TYPE_CHECKING:
    from uuid import UUID

    from tests.support.outbox import Outbox


class Machine(ItemMachine, OperatorMachine):
    """All steps together: one database serves all scopes."""

    def __init__(self, outbox: Outbox, number: int):
        super().__init__(outbox, number)
        self.grants = [Grant(self.cluster_leases[0], "holder-1", 1)]  # never granted

    # Leases.

    @rule(holder=holders, grace=graces, which=st.sampled_from([0, 0, 1]))
    def acquire(self, holder: str, grace: int, which: int = 0) -> None:
        name = self.cluster_leases[which]
        if name in self.model.leases:
            self.model.repair_times(self.model.leases[name])
        is_free = self.model.is_free(name)
        in_flight = [*self.model.in_flight(name), *self.model.called(name)]
        if is_free:
            self.grants.append(self.model.take(name, holder, grace))
        rows = self.call(
            "executor", "acquire_lease", name, holder, LEASE_SECONDS, grace * UNIT_SECONDS
        )
        lease = self.model.leases[name]
        seen = [(row["acquired"], row["holder_id"], row["lease_epoch"]) for row in rows]
        expect(seen, [(is_free, lease.holder, lease.epoch)])
        self.let_a_second_pass(is_free and in_flight)

    @rule(units=st.sampled_from([1, 20]))
    def set_clock_back(self, units: int) -> None:
        """Only for leases: due times, deadlines and claims have tests of their own."""
        self.model.set_clock_back(units)
        self.outbox.database.owner_execute(
            ADVANCE, {"seconds": -units * UNIT_SECONDS, "targets": [], "leases": self.lease_names}
        )

    def let_a_second_pass(self, doubted: object) -> None:
        """Make calls due that a takeover put in doubt; the model has no seconds."""
        if doubted:
            self.advance(1)

    def picked_grant(self, which: int) -> Grant:
        return self.grants[-1 - which % len(self.grants)]

    @rule(which=which_one, grace=graces)
    def renew_lease(self, which: int, grace: int) -> None:
        grant = self.picked_grant(which)
        is_kept = self.model.is_kept(grant)
        if is_kept:
            self.model.extend(self.model.leases[grant.name], grace)
        rows = self.call(
            "executor",
            "renew_lease",
            *(grant.name, grant.holder, grant.epoch, LEASE_SECONDS, grace * UNIT_SECONDS),
        )
        expect(rows if isinstance(rows, str) else "renewed", "renewed" if is_kept else "P7002")

    @rule(which=which_one)
    def release_lease(self, which: int) -> None:
        grant = self.picked_grant(which)
        is_kept = self.model.is_kept(grant)
        if is_kept:
            self.model.release(self.model.leases[grant.name])
        rows = self.call("executor", "release_lease", grant.name, grant.holder, grant.epoch)
        expect(rows, [{"release_lease": is_kept}])

    # Holders.

    def picked_items(self, which: list[int], grant: Grant) -> list[UUID]:
        """Return items of the lease in their order, and sometimes one of another lease."""
        own = [item for item in self.model.items.values() if item.lease_name == grant.name]
        own.sort(key=lambda item: not item.is_pending)
        known = [item.intent_id for item in own] + [*list(self.model.items)[:1], PHANTOM]
        return list(dict.fromkeys(known[pick % len(known)] for pick in which))

    @rule(which=which_one, intents=picks)
    def begin_leased(self, which: int, intents: list[int]) -> None:
        grant = self.picked_grant(which)
        ids = self.picked_items(intents, grant)
        verdicts = {
            intent_id: self.model.begin_leased_verdict(grant.name, self.model.items.get(intent_id))
            for intent_id in ids
        }
        rows = self.call(
            "executor", "begin_leased_attempts", grant.name, grant.holder, grant.epoch, ids
        )
        if not self.model.is_kept(grant, in_grace=False):
            expect(rows, "P7002")
            return
        expect({row["intent_id"]: row["verdict"] for row in rows}, verdicts)
        for intent_id, verdict in verdicts.items():
            if verdict == "begun":
                [row] = [one for one in rows if one["intent_id"] == intent_id]
                self.note_token(row)
                item = self.model.items[intent_id]
                item.begun, item.begun_epoch = True, grant.epoch
                item.first_tried = self.model.now if item.first_tried is None else item.first_tried

    @rule(
        which=which_one,
        intents=picks,
        mark_no=st.integers(1, 2),
        earlier=st.integers(0, 1),
        needs_content=st.booleans(),
    )
    def mark_calls(
        self, which: int, intents: list[int], mark_no: int, earlier: int, needs_content: bool
    ) -> None:
        """Mark a batch under a new number or an old one; some attempt numbers are outdated."""
        grant = self.picked_grant(which)
        ids = self.picked_items(intents, grant)
        numbers = {
            one: max(1, len(item.states) + 1 - earlier)
            if (item := self.model.items.get(one))
            else 1
            for one in ids
        }
        due = {
            one: number
            for one, number in self.due_under(grant, ids).items()
            if number == numbers[one]
        }
        marked = {one: no for one, no in due.items() if self.model.items[one].is_marked_when_called}
        may_be_made = due if needs_content else marked
        fence = (grant.name, grant.holder, grant.epoch)
        calls = (list(numbers), list(numbers.values()), mark_no, [needs_content] * len(numbers))
        rows = self.call("executor", "mark_calls", *fence, *calls)
        if not self.model.is_kept(grant, in_grace=False):
            expect(rows, "P7002")
            return
        [first, *contents] = rows
        expect(set(first["left_out"]), numbers.keys() - may_be_made.keys())
        expect({row["intent_id"] for row in contents}, set(due) if needs_content else set())
        for row in contents:
            self.note_token(row)
        self.model.marks.setdefault(grant.name, {})[mark_no] = marked

    def due_under(self, grant: Grant, ids: list[UUID]) -> dict[UUID, int]:
        return {
            intent_id: len(item.states) + 1
            for intent_id in ids
            if (item := self.model.items.get(intent_id)) and item.is_pending
            if item.lease_name == grant.name and not item.begun and item.due <= self.model.now
        }

    @rule(which=which_one, intents=picks)
    def unmark_calls(self, which: int, intents: list[int]) -> None:
        """Remove the marks of some calls, as if they were never made."""
        grant = self.picked_grant(which)
        kept = self.picked_items(intents, grant)
        rows = self.call("executor", "unmark_calls", grant.name, grant.holder, grant.epoch, kept)
        if not self.model.is_kept(grant):
            expect(rows, "P7002")
            return
        for calls in self.model.marks.get(grant.name, {}).values():
            for intent_id in calls.keys() - set(kept):
                del calls[intent_id]

    @rule(which=which_one, intents=picks)
    def release_leased(self, which: int, intents: list[int]) -> None:
        """Take back the begun marks of some calls, as if nothing was sent for them."""
        grant = self.picked_grant(which)
        ids = self.picked_items(intents, grant)
        rows = self.call(
            "executor", "release_leased_attempts", grant.name, grant.holder, grant.epoch, ids
        )
        if not self.model.is_kept(grant):
            expect(rows, "P7002")
            return
        begun = [
            item
            for one in ids
            if (item := self.model.items.get(one)) and item.lease_name == grant.name
            if item.is_pending and item.begun_epoch == grant.epoch
        ]
        for item in begun:
            self.model.unsend(item)
        expect(rows, [{"release_leased_attempts": len(begun)}])

    @rule(which=which_one, intents=picks, state=reports, retry_after=units)
    def record(self, which: int, intents: list[int], state: str, retry_after: int) -> None:
        grant = self.picked_grant(which)
        self.record_for(grant, self.picked_items(intents, grant), state, retry_after)

    def record_for(self, grant: Grant, ids: list[UUID], state: str, retry_after: int) -> None:
        verdicts = {
            intent_id: self.model.record_verdict(grant.name, self.model.items.get(intent_id), state)
            for intent_id in ids
        }
        fence = (grant.name, grant.holder, grant.epoch)
        results = [report(intent_id, state, retry_after) for intent_id in ids]
        rows = self.call("executor", "record_attempts", *fence, json.dumps(results))
        if not self.model.is_kept(grant):
            expect(rows, "P7002")
        else:
            self.compare_results(rows, verdicts, state, retry_after)

    # Several steps of a correct executor in one rule, so that examples reach more states.

    @rule(worker=workers, begin=st.booleans())
    def claim_all(self, worker: str, begin: bool) -> None:
        known = len(self.claims)
        self.claim(worker, 10)
        self.the_database_is_as_predicted()
        if begin and len(self.claims) > known:
            self.begin(list(range(len(self.claims) - known)), as_stranger=False)

    @rule(worker=workers, state=reports, retry_after=units)
    def claim_and_submit_all(self, worker: str, state: str, retry_after: int) -> None:
        known = len(self.claims)
        self.claim_all(worker, begin=True)
        self.the_database_is_as_predicted()
        if len(self.claims) > known:
            newest = list(range(len(self.claims) - known))
            self.complete(newest, state, retry_after, as_stranger=False)

    @rule(which=which_one, state=st.sampled_from(["DISPATCHED", "FAILED", "SUBMITTED"]))
    def complete_under_an_old_token(self, which: int, state: str) -> None:
        """A paused worker wakes up and reports, sometimes in the name of the current holder."""
        replaced = self.replaced_claims() or self.claims
        claim = replaced[which % len(replaced)]
        item = self.model.items.get(claim.intent_id)
        holder = item.claim if item else None
        late = Claim(claim.intent_id, holder.worker if holder else claim.worker, claim.token)
        self.claims.append(late)
        self.complete([0], state, 1, as_stranger=False)

    def replaced_claims(self) -> list[Claim]:
        """Claims of work that somebody else holds now; the newest holders first."""
        held = [item for item in self.model.items.values() if item.claim is not None]
        held.sort(key=lambda item: item.claim_expires, reverse=True)
        now = {item.intent_id: item.claim for item in held}
        return [c for one in now for c in self.claims if c.intent_id == one and c != now[one]]

    @rule(worker=workers, begin=st.booleans(), repaired=st.booleans())
    def lose_a_worker(self, worker: str, begin: bool, repaired: bool) -> None:
        """A worker claims, perhaps begins, and dies; the reaper or the next claim repairs it."""
        self.claim_all(worker, begin)
        self.the_database_is_as_predicted()
        self.let_leases_expire()
        if repaired:
            self.repair()
        else:
            self.claim("worker-3", 10)
            self.complete_under_an_old_token(0, "DISPATCHED")

    @rule()
    def let_leases_expire(self) -> None:
        self.advance(LEASE_UNITS)

    @rule(holder=holders, grace=graces, begun=st.sampled_from([[0], [0, 1], [1], []]))
    def lead(self, holder: str, grace: int, begun: list[int]) -> None:
        """Acquire the lease if it is free, and begin some items."""
        known = len(self.grants)
        self.acquire(holder, grace)
        if begun and len(self.grants) > known:
            self.the_database_is_as_predicted()
            self.begin_leased(0, begun)

    @rule(holder=holders, units=st.sampled_from([1, 5]))
    def miss_deadlines(self, holder: str, units: int) -> None:
        """A leader marks calls and falls silent; the reaper ends only what nobody calls."""
        self.acquire(holder, 0)
        self.the_database_is_as_predicted()
        self.mark_calls(0, [0, 1], mark_no=1, earlier=0, needs_content=True)
        self.advance(units)
        self.repair_missed_deadlines()

    @rule(which=which_one, state=reports, retry_after=units)
    def record_begun(self, which: int, state: str, retry_after: int) -> None:
        """The current holder reports the calls that it began."""
        kept = [grant for grant in self.grants if self.model.is_kept(grant)]
        kept = [grant for grant in kept if self.model.in_flight(grant.name)] or kept
        if kept:
            grant = kept[which % len(kept)]
            begun = [item.intent_id for item in self.model.in_flight(grant.name)]
            self.record_for(grant, begun, state, retry_after)

    @rule(which=which_one, home=homes, holder=holders)
    def redrive_elsewhere(self, which: int, home: str, holder: str) -> None:
        """The target moves to other holders, and a finished intent is tried again by them."""
        self.publish("cluster", 4, home=home)
        self.redrive(which)
        self.the_database_is_as_predicted()
        if home == "item":
            self.claim("worker-1", 10, ["cluster"])
        else:
            self.acquire(holder, 0, ["executor", "annex"].index(home))
            self.the_database_is_as_predicted()
            self.mark_calls(0, [0, 1, 2], mark_no=2, earlier=0, needs_content=True)

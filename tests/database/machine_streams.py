"""The state machine, part two: streams. Two holders share two streams.

Grants go stale and are used all the same: the database must refuse the writes of a stale holder,
and only those. No enqueuer stays open here; test_stream_races steps through that.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.database.machine import (
    LEASE_SECONDS,
    PHANTOM,
    REPORTS,
    BaseMachine,
    expect,
    picks,
    report,
    units,
)
from tests.database.model import GRACE_UNITS, UNIT_SECONDS, Grant
from tests.database.model_streams import Work

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from psycopg.rows import DictRow

    from tests.support.outbox import Outbox

holders = st.sampled_from(["holder-1", "holder-2"])
graces = st.sampled_from([0, GRACE_UNITS])
grants = st.lists(st.integers(0, 6), min_size=1, max_size=2)
booleans = st.booleans()
NO_NUMBERS: Mapping[UUID, int] = MappingProxyType({})
stream_reports = st.sampled_from([*REPORTS, "DEFERRED"])


class StreamMachine(BaseMachine):
    """Holders of streams."""

    def __init__(self, outbox: Outbox, number: int):
        super().__init__(outbox, number)
        self.stream_grants = [Grant(self.stream_lease("a"), "holder-1", 1)]  # never granted
        self.told: dict[str, Work] = {}  # of each stream, what the last call said
        self.attempts: dict[UUID, int] = {}  # of each head, the number that the last call said

    @rule(holder=holders, grace=graces, begin=booleans)
    def claim_streams(self, holder: str, grace: int, begin: bool = False) -> None:
        work = self.model.claim_streams(self.names["stream"], holder, grace, begin=begin)
        rows = self.call(
            "executor",
            "claim_streams",
            *(10, holder, LEASE_SECONDS, grace * UNIT_SECONDS, [self.names["stream"]]),
            *(None, None, begin),
        )
        expect(self.work_in(rows), work)
        self.stream_grants += [
            Grant(name, holder, one.epoch) for name, one in work.items() if one.is_held
        ]

    def work_in(self, rows: Any) -> dict[str, Work]:
        """Collect the rows of each stream, and note the tokens of its heads."""
        found: dict[str, Work] = {}
        for row in rows:
            work = found.get(row["lease_name"])
            heads = work.heads if work else ()
            if row["intent_id"]:
                self.note_token(row)
                heads = (*heads, row["intent_id"])
                self.attempts[row["intent_id"]] = row["attempt_no"]
            found[row["lease_name"]] = Work(
                row["lease_epoch"],
                row["stream_state"],
                row["is_held"],
                heads,
                row["begun_at"] is not None or (work is not None and work.is_begun),
            )
        self.told |= found
        return found

    def picked_grants(self, which: list[int]) -> list[Grant]:
        """Return grants of one holder, the newest first, at most one per stream."""
        chosen = [self.stream_grants[-1 - one % len(self.stream_grants)] for one in which]
        own = [one for one in chosen if one.holder == chosen[0].holder]
        return list({one.name: one for one in reversed(own)}.values())

    def fences(self, chosen: list[Grant]) -> tuple[str, list[str], list[int]]:
        return chosen[0].holder, [one.name for one in chosen], [one.epoch for one in chosen]

    def lost(self, chosen: list[Grant], kept: list[str]) -> dict[str, Work]:
        return {
            one.name: Work(one.epoch, "lease_lost", False, (), False)
            for one in chosen
            if one.name not in kept
        }

    def kept(self, chosen: list[Grant]) -> list[str]:
        return [one.name for one in chosen if self.model.is_kept(one)]

    def picked_rows(self, which: list[int], chosen: list[Grant]) -> list[UUID]:
        """Return rows of these streams in their order, and sometimes one of another."""
        rows = [one.intent_id for grant in chosen for one in self.model.rows(grant.name)]
        known = [*rows, *list(self.model.items)[:2], PHANTOM]
        return list(dict.fromkeys(known[one % len(known)] for one in which))

    @rule(which=grants, free_idle=booleans, begin=booleans)
    def refresh_streams(self, which: list[int], free_idle: bool, begin: bool) -> None:
        chosen = self.picked_grants(which)
        kept = self.kept(chosen)
        work = self.model.serve(kept, kept, free_idle=free_idle, begin=begin)
        rows = self.call("executor", "refresh_streams", *self.fences(chosen), free_idle, begin)
        expect(self.work_in(rows), work | self.lost(chosen, kept))

    @rule(which=grants, grace=graces)
    def renew_streams(self, which: list[int], grace: int) -> None:
        chosen = self.picked_grants(which)
        kept = self.kept(chosen)
        for name in kept:
            self.model.extend(self.model.leases[name], grace)
        timing = (LEASE_SECONDS, grace * UNIT_SECONDS)
        rows: Any = self.call("executor", "renew_streams", *self.fences(chosen), *timing)
        found = {row["lease_name"] for row in rows if row["verdict"] == "renewed"}
        expect(found, set(kept))

    @rule(which=grants, unsent=booleans)
    def release_streams(self, which: list[int], unsent: bool) -> None:
        chosen = self.picked_grants(which)
        kept = self.kept(chosen)
        ids = [one.intent_id for name in kept for one in self.model.rows(name)] if unsent else []
        for intent_id in ids:
            self.model.unsend(self.model.items[intent_id])
        self.model.serve(kept, [], free_idle=True, begin=False)
        rows: Any = self.call("executor", "release_streams", *self.fences(chosen), ids)
        expect({row["lease_name"] for row in rows if row["verdict"] == "released"}, set(kept))

    @rule(which=grants, intents=picks)
    def begin_in_streams(self, which: list[int], intents: list[int]) -> None:
        chosen = self.picked_grants(which)
        self.begin_rows(chosen, self.picked_rows(intents, chosen))

    def begin_rows(self, chosen: list[Grant], ids: list[UUID]) -> None:
        verdicts = {
            one: self.model.begin_in_stream_verdict(chosen, self.model.items.get(one), ids)
            for one in ids
        }
        rows: Any = self.call("executor", "begin_stream_attempts", *self.fences(chosen), ids)
        expect({row["intent_id"]: row["verdict"] for row in rows}, verdicts)
        for one in ids:
            if verdicts[one] == "begun":
                item = self.model.items[one]
                item.begun = True
                item.first_tried = self.model.now if item.first_tried is None else item.first_tried

    @rule(
        which=grants,
        intents=picks,
        state=stream_reports,
        retry_after=units,
        keep=booleans,
        free_idle=booleans,
        begin=booleans,
    )
    def record_in_streams(
        self,
        which: list[int],
        intents: list[int],
        state: str,
        retry_after: int,
        keep: bool,
        free_idle: bool,
        begin: bool,
    ) -> None:
        chosen = self.picked_grants(which)
        ids = self.picked_rows(intents, chosen)
        states = dict.fromkeys(ids, state)
        self.record_rows(chosen, states, retry_after, (keep, free_idle, begin))

    def record_rows(
        self,
        chosen: list[Grant],
        states: dict[UUID, str],
        retry_after: int,
        options: tuple[bool, bool, bool],
        numbers: Mapping[UUID, int] = NO_NUMBERS,
    ) -> None:
        keep, free_idle, begin = options
        kept = self.kept(chosen)
        names = [one.name for one in chosen]
        verdicts = {
            one: self.record_verdict(one, names, kept, state, numbers.get(one))
            for one, state in states.items()
        }
        results = [
            report(one, state, retry_after, numbers.get(one)) for one, state in states.items()
        ]
        rows: Any = self.call(
            "executor",
            "record_stream_attempts",
            *(*self.fences(chosen), json.dumps(results), None if keep else [], free_idle, begin),
        )
        if "not_begun" in verdicts.values():
            expect(rows, "P7003")
            return
        answers: list[DictRow] = [row for row in rows if row["verdict"]]
        written = {
            one: self.model.report(self.model.items[one], states[one], retry_after)
            for one, verdict in verdicts.items()
            if verdict == "applied"
        }
        expect(
            {row["intent_id"]: (row["verdict"], row["state"]) for row in answers},
            {one: (verdict, written.get(one)) for one, verdict in verdicts.items()},
        )
        work = self.model.serve(kept, kept if keep else [], free_idle=free_idle, begin=begin)
        found = self.work_in([row for row in rows if not row["verdict"]])
        expect(found, work | self.lost(chosen, kept))

    def record_verdict(
        self, intent_id: UUID, names: list[str], kept: list[str], state: str, number: int | None
    ) -> str:
        item = self.model.items.get(intent_id)
        if item is None or not item.is_pending:
            return self.model.absence(item)
        if item.lease_name not in names:
            return "not_found"
        if item.lease_name not in kept:
            return "lease_lost"
        if number not in (None, len(item.states) + 1):
            return "superseded"
        return self.model.record_verdict(item.lease_name, item, state)

    # Several steps of a correct executor in one rule, so that examples reach more states.

    @rule(holder=holders, grace=graces, state=stream_reports, retry_after=units, begin=booleans)
    def work_on_streams(
        self, holder: str, grace: int, state: str, retry_after: int, begin: bool
    ) -> None:
        """A holder claims what it can, makes the calls and records them."""
        known = len(self.stream_grants)
        self.claim_streams(holder, grace, begin=True)
        chosen = self.stream_grants[known:]
        if chosen:
            self.check_database()
            ids = [one.intent_id for grant in chosen for one in self.model.in_flight(grant.name)]
            states = dict.fromkeys(ids, state)
            self.record_rows(chosen, states, retry_after, (True, True, begin))

    @rule(state=stream_reports, retry_after=units)
    def record_begun_in_streams(self, state: str, retry_after: int) -> None:
        """The current holder reports the calls that it began."""
        if chosen := self.current_grants():
            ids = [one.intent_id for grant in chosen for one in self.model.in_flight(grant.name)]
            states = dict.fromkeys(ids, state)
            self.record_rows(chosen, states, retry_after, (True, True, False))

    def current_grants(self) -> list[Grant]:
        """Return the grants that one holder has now."""
        kept = [one for one in self.stream_grants if self.model.is_kept(one)]
        return list({one.name: one for one in kept if one.holder == kept[-1].holder}.values())

"""The state machine, part three: operators pause, resume, skip, cancel, resolve and redrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.database.machine import PHANTOM, expect, which_one
from tests.database.machine_streams import StreamMachine
from tests.database.model import NEVER, UNCERTAIN, UNIT_SECONDS

if TYPE_CHECKING:
    from uuid import UUID

    from tests.database.model import Item
    from tests.support.outbox import Outbox

resolutions = st.sampled_from(["DISPATCHED", "FAILED", "RETRYABLE"])
operators = st.sampled_from(["ada", "bob"])
stream_names = st.sampled_from(["a", "b"])


class OperatorMachine(StreamMachine):
    """What people do to intents of all scopes, and to streams."""

    def __init__(self, outbox: Outbox, number: int):
        super().__init__(outbox, number)
        self.redriven: dict[UUID, UUID] = {}

    def picked_item(self, which: int) -> Item:
        return list(self.model.items.values())[-1 - which % len(self.model.items)]

    @rule(which=which_one)
    def cancel(self, which: int) -> None:
        item = self.picked_item(which)
        verdict = self.model.cancel_verdict(item)
        rows = self.call("operator", "cancel_intent", item.intent_id, "operator", "not wanted")
        expect(rows, [{"cancel_intent": verdict}])
        if verdict == "cancelled":
            self.model.append(item, "CANCELLED")
            self.model.settle(item)

    @rule(which=which_one, state=resolutions)
    def resolve(self, which: int, state: str) -> None:
        doubted = [item for item in self.model.items.values() if item.last_state in UNCERTAIN]
        item = doubted[which % len(doubted)] if doubted else self.picked_item(which)
        expected = self.resolve_verdict(item, state)
        rows = self.call(
            "operator", "resolve_intent", item.intent_id, state, "operator", "asked the gateway"
        )
        expect(rows, expected if expected == "P7004" else [{"resolve_intent": expected}])
        if expected == "resolved":
            self.model.append(item, state)
            self.model.settle(item)

    def resolve_verdict(self, item: Item, state: str) -> str:
        if not item.is_pending:
            return "already_terminal"
        if self.model.is_in_flight(item):
            return "in_flight"
        if item.last_state not in UNCERTAIN:
            return "not_in_doubt"
        is_spent = len(item.states) + 1 >= item.terms.attempts_max
        is_late = item.deadline is not None and item.deadline <= self.model.now
        return "P7004" if state == "RETRYABLE" and (is_spent or is_late) else "resolved"

    @rule(which=which_one)
    def redrive(self, which: int) -> None:
        finished = [item for item in self.model.items.values() if not item.is_pending]
        finished.sort(key=lambda item: item.last_state == "DISPATCHED")
        item = finished[which % len(finished)] if finished else self.picked_item(which)
        rows: Any = self.call("operator", "redrive_intents", [item.intent_id], "operator", "again")
        [row] = rows
        if item.is_pending or item.last_state == "DISPATCHED":
            verdict = "not_terminal" if item.is_pending else "already_accepted"
            expect((row["verdict"], row["new_intent_id"]), (verdict, None))
        elif item.intent_id in self.redriven:
            first = self.redriven[item.intent_id]
            expect((row["verdict"], row["new_intent_id"]), ("already_redriven", first))
        else:
            expect(row["verdict"], "redriven")
            self.redriven[item.intent_id] = row["new_intent_id"]
            [kind] = [kind for kind, name in self.names.items() if name == item.target]
            stream = (item.lease_name or "").rpartition("/")[2]
            self.accept(kind, row["new_intent_id"], stream).states.append("RETRYABLE")

    # Streams.

    @rule(stream=stream_names, operator=operators, units=st.sampled_from([None, 1, 3]))
    def pause(self, stream: str, operator: str, units: int | None) -> None:
        name = self.stream_lease(stream)
        until = NEVER if units is None else self.model.now + units
        verdict = self.model.pause(name, operator, until)
        seconds = None if units is None else units * UNIT_SECONDS
        arguments = (self.names["stream"], stream, operator, "wait", seconds)
        expect(self.call("operator", "pause_stream", *arguments), [{"pause_stream": verdict}])

    @rule(stream=stream_names, operator=operators, paused_by=st.none() | operators)
    def resume(self, stream: str, operator: str, paused_by: str | None) -> None:
        """End the pause of a person, without a name the own one."""
        name = self.stream_lease(stream)
        verdict = self.model.resume(name, ("person", paused_by or operator))
        arguments = (self.names["stream"], stream, operator, "go on", paused_by)
        expect(self.call("operator", "resume_stream", *arguments), [{"resume_stream": verdict}])

    @rule(stream=stream_names, which=which_one)
    def resume_after_failure(self, stream: str, which: int) -> None:
        """End the pause for a failed intent, or try to for an intent that pauses nothing."""
        name = self.stream_lease(stream)
        pauses = self.model.leases[name].pauses if name in self.model.leases else {}
        failed = sorted(key for kind, key in pauses if kind == "failure")
        intent_id = failed[which % len(failed)] if failed else str(PHANTOM)
        verdict = self.model.resume(name, ("failure", intent_id))
        arguments = (self.names["stream"], stream, "ada", "go on", None, intent_id)
        expect(self.call("operator", "resume_stream", *arguments), [{"resume_stream": verdict}])

    @rule(stream=stream_names, which=st.integers(0, 3))
    def skip(self, stream: str, which: int) -> None:
        """Skip the head, or try to skip another intent."""
        name = self.stream_lease(stream)
        rows = self.model.rows(name) or list(self.model.items.values())
        item = rows[which % len(rows)] if which else rows[0]
        verdict = self.model.skip(name, item)
        arguments = (self.names["stream"], stream, item.intent_id, "operator", "not now")
        found = self.call("operator", "skip_stream_head", *arguments)
        expect(found, [{"skip_stream_head": verdict}])

"""The machine of pipelines: holders, operators and the reaper of one target of scope stream.

It has no other targets, and plays a list of moves. So its examples get further than those of the
state machine: into full pipelines, with failures, doubts and takeovers in the middle of them.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import note
from hypothesis import strategies as st

from tests.database.invariants import DisagreementError
from tests.database.machine import REPORTS, picks, units, which_one
from tests.database.machine_operators import (
    OperatorMachine,
    operators,
    resolutions,
    stream_names,
)
from tests.database.machine_streams import booleans, graces, grants, holders
from tests.database.model import UNIT_SECONDS, Grant, Terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.database.model import Item
    from tests.support.outbox import Outbox

TERMS = Terms(
    "stream", "lookup", deadline=20, can_look_up=True, on_failure="continue", pipeline_max=3
)
failures = st.sampled_from([*[("continue", None)] * 3, ("block_for", 2), ("block", None)])
all_terms = st.builds(
    lambda failure, **terms: replace(TERMS, on_failure=failure[0], block=failure[1], **terms),
    failures,
    pipeline_max=st.sampled_from([3, 3, 2, 1]),
    batch_max=st.sampled_from([1, 1, 2]),
    attempts_max=st.integers(2, 4),
    deadline=st.sampled_from([20, 20, 2]),
    confirm_within=st.sampled_from([1, 5, None]),
)
rows_of_streams = st.lists(
    st.fixed_dictionaries(
        {
            "stream": st.sampled_from(["a", "a", "b"]),
            "delay": st.sampled_from([0, 0, 0, 1]),
            "priority": st.integers(0, 3),
        }
    ),
    min_size=1,
    max_size=4,
)
# A gateway mostly says that it took the submission.
answers = st.sampled_from(["SUBMITTED", "SUBMITTED", "SUBMITTED", *REPORTS, "DEFERRED"])
# The arguments of each move, and how often it is made.
MOVES: dict[str, tuple[int, list[st.SearchStrategy[Any]]]] = {
    "answer": (10, [answers, answers, units, booleans]),
    "advance": (4, [st.sampled_from([1, 1, 1, 2, 4])]),
    "enqueue": (3, [rows_of_streams]),
    "begin_any": (2, [picks]),
    "resolve": (2, [which_one, resolutions]),
    "claim_streams": (1, [holders, graces, booleans]),
    "refresh_streams": (1, [grants, booleans, booleans]),
    "renew_streams": (1, [grants, graces]),
    "release_streams": (1, [grants, booleans]),
    "begin_in_streams": (1, [grants, picks]),
    "record_in_streams": (1, [grants, picks, answers, units, booleans, booleans, booleans]),
    "publish": (1, [all_terms]),
    "pause": (1, [stream_names, operators, st.sampled_from([None, 1, 3])]),
    "resume": (1, [stream_names, operators, st.none() | operators]),
    "resume_after_failure": (2, [stream_names, which_one]),
    "skip": (1, [stream_names, st.integers(0, 3)]),
    "cancel": (1, [which_one]),
    "redrive": (1, [which_one]),
    "repair_missed_deadlines": (1, []),
}
moves = st.lists(
    st.sampled_from([name for name, (often, _) in MOVES.items() for _ in range(often)]).flatmap(
        lambda name: st.tuples(st.just(name), *MOVES[name][1])
    ),
    min_size=30,
    max_size=40,
)
# The ledger of an example refuses changes, also of its times.
ADVANCE_LEDGER = """
UPDATE leasehold.outbox_attempts
   SET started_at = started_at - make_interval(secs => %(seconds)s),
       finished_at = finished_at - make_interval(secs => %(seconds)s)
 WHERE intent_id = ANY (%(ids)s)
"""


class PipelineMachine(OperatorMachine):
    """Streams whose rows start before the one in front of them is confirmed."""

    terms_of: ClassVar = {"stream": TERMS}

    def __init__(self, outbox: Outbox, number: int):
        super().__init__(outbox, number)
        self.numbers = itertools.count(100)

    def play(self, terms: Terms, moves: Sequence[tuple[Any, ...]]) -> None:
        note(str(terms))
        try:
            self.publish_all()
            self.publish(terms)
            self.enqueue([{"stream": "a", "delay": 0, "priority": 1}] * 6)
            for name, *arguments in moves:
                note(f"{name}{tuple(arguments)}")
                getattr(self, name)(*arguments)
                self.check_database()
            self.finish()
        finally:
            self.teardown()

    def publish(self, terms: Terms) -> None:
        self.publish_terms("stream", terms)

    def enqueue(self, batch: list[dict[str, Any]]) -> None:
        plain = {"kind": "stream", "payload": 0}
        self.enqueue_entries([one | plain | {"key": next(self.numbers)} for one in batch])

    def answer(self, first: str, others: str, retry_after: int, begin: bool) -> None:
        """A holder does what it was told: it reports calls and answers, and goes on."""
        chosen = self.grants_of_a_holder(begin=True)
        told = [self.told[one.name].heads for one in chosen]
        items = [self.model.items[head] for heads in told for head in heads]
        if unbegun := [one.intent_id for one in items if self.is_to_begin(one)]:
            self.begin_rows(chosen, unbegun)
            self.check_database()
        if chosen:
            states = {
                head: others if place else first
                for heads in told
                for place, head in enumerate(heads)
            }
            options = (True, True, begin)
            self.record_rows(chosen, states, retry_after, options, self.attempts)

    def is_to_begin(self, item: Item) -> bool:
        return item.is_pending and not item.begun and self.model.step(item) == "call"

    def begin_any(self, intents: list[int]) -> None:
        """A holder tries to begin some rows, whatever it was told."""
        if chosen := self.grants_of_a_holder(begin=False):
            self.begin_rows(chosen, self.picked_rows(intents, chosen))

    def grants_of_a_holder(self, *, begin: bool) -> list[Grant]:
        """Return what somebody holds. If nobody holds anything, somebody tries to."""
        if not self.current_grants():
            self.claim_streams("holder-1", 0, begin=begin)
            self.check_database()
        return self.current_grants()

    def finish(self) -> None:
        """A correct holder finishes everything: nothing is stuck, and nothing is lost."""
        for _ in range(50):
            if not any(one.is_pending for one in self.model.items.values()):
                return
            for stream in "ab":
                self.resume_after_all(stream)
            self.advance(4)
            self.claim_streams("holder-1", 0, begin=True)
            while chosen := [one for one in self.current_grants() if self.told[one.name].heads]:
                ids = [head for one in chosen for head in self.told[one.name].heads]
                is_late = any(self.model.step(self.model.items[one]) == "finish" for one in ids)
                state = "FAILED" if is_late else "DISPATCHED"
                self.record_rows(chosen, dict.fromkeys(ids, state), 0, (True, True, True))
            self.check_database()
        raise DisagreementError("a stream with work in it stands still")

    def resume_after_all(self, stream: str) -> None:
        """End every reason for which a stream stands still, the last failure first."""
        lease = self.model.leases.get(self.stream_lease(stream))
        while lease and (reasons := lease.reasons(self.model.now)):
            kinds = {one.split(" ")[0] for one in reasons}
            if "failure" in kinds:
                self.resume_after_failure(stream, len(reasons))
            for operator in ("ada", "bob"):
                self.resume(stream, operator, None)

    def advance(self, units: int) -> None:
        super().advance(units)
        execute = self.outbox.database.execute
        execute("SET session_replication_role = replica")
        execute(ADVANCE_LEDGER, {"seconds": units * UNIT_SECONDS, "ids": list(self.model.items)})
        execute("SET session_replication_role = origin")

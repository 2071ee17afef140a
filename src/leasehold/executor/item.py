"""An item is one piece of work in memory. All scopes share it: worker, stream holder and leader.

The state of an item only moves forward, each time by one method, and nobody revives an item that is
DONE:

            become_due    take        call           finish
    WAITING ─────► READY ────► MARKED ────► CALLING ────────► RECORDING ────► DONE
    due later      due now     claimed,     only an  give_back result or      recorded, given
                               or marked    outcome  put_back  return is      back, replaced by
                               by a leader  ends it            being written  a newer version,
                                                                              or dropped
    MARKED ───give_back──► RECORDING       any state but DONE ───end──► DONE
    MARKED ───leave_unmarked──► DONE       CALLING ───call──► CALLING, as nothing was sent

A worker's item starts as MARKED, for it comes with a claim. A leader's item starts as WAITING or
READY, for the leader reads rows before it marks them. Work that is given back continues as a new
item, so a task that still holds the old one cannot act on it.

From MARKED on, an item is in flight, and its `slot` says what it counts as (`slots.py` counts):

    NONE ──take──► OWN ──end_call──► RETURNED     its result waits, and the next call may begin
      └──share_call──┴──share_call──► SHARED      the call of another item is its call too

A transition that is not drawn is a defect. The test suite has it raise. In production it is logged,
nothing changes, and the item loses the trust in its lease: nothing more is sent or written for it,
and repair ends it.

An item carries the trust and the fence that it is worked on under. Runner and completer take both
from the item, so one of each serves any number of leases.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING
from uuid import UUID

from leasehold.domain.timing import ABORT_LEASES
from leasehold.observe.logs import get_logger
from leasehold.observe.traces import trace_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from leasehold.coordination.term import Trust
    from leasehold.domain.contract import Contract
    from leasehold.domain.intent import Claimed
    from leasehold.domain.outcome import Outcome
    from leasehold.executor.fences import Fence
    from leasehold.executor.leader.dispatcher import Mark
    from leasehold.executor.streams.held import HeldStream
    from leasehold.observe.traces import Span
    from leasehold.store.rows import DueRow


class ItemState(IntEnum):
    """How far work on an item has come."""

    WAITING = 0
    READY = 1
    MARKED = 2
    CALLING = 3
    RECORDING = 4
    DONE = 5


# By name, since states are compared several times for each item: on the enum that is a lookup.
WAITING, READY, MARKED, CALLING, RECORDING, DONE = ItemState

_LOG = get_logger(__name__)


class Slot(IntEnum):
    """What an item counts as while it is in flight."""

    NONE = 0
    OWN = 1
    SHARED = 2
    RETURNED = 3


class Transitions:
    """What follows a transition that is not drawn above. The test suite turns `are_strict` on."""

    are_strict = False


class IllegalTransition(Exception):
    """An item was to change its state in a way that is not drawn above."""


class _Lost:
    """The trust of an item whose lease is lost: there is none."""

    def is_over(self, now: float) -> bool:  # noqa: ARG002 (the protocol's argument)
        return True

    def may_start(self, now: float) -> bool:  # noqa: ARG002 (the protocol's argument)
        return False

    def may_start_later(self, now: float) -> bool:  # noqa: ARG002 (the protocol's argument)
        return False

    def seconds_left(self, now: float) -> float:  # noqa: ARG002 (the protocol's argument)
        return 0.0


_LOST: Trust = _Lost()


class Permit:
    """Says whether bytes of one call may leave now.

    The first ones need what a new call needs; after them, the call has begun and may finish for as
    long as the lease is trusted.
    """

    __slots__ = ("_clock", "_has_begun", "_item")

    def __init__(self, item: Item, clock: Callable[[], float]) -> None:
        self._item = item
        self._clock = clock
        self._has_begun = False

    def __call__(self) -> bool:
        """Ask right before each sending."""
        item, now = self._item, self._clock()
        if self._has_begun:
            return not item.trust.is_over(now)
        # In this order, because a gateway may ask in a thread: see Item.withdraw.
        item.is_sent = True
        self._has_begun = not item.is_withdrawn and item.trust.may_start(now)
        return self._has_begun


@dataclass(slots=True, eq=False)
class Item:
    """One intent in our hands. The fields without a default are set on the way, see below."""

    intent_no: int  # the integer of its id, as the key of maps: a UUID computes its hash each time
    target: str
    fence: Fence
    trust: Trust
    state: ItemState
    slot: Slot = Slot.NONE

    # Of a leader's items only: the row as it was read, a newer version that arrived while the item
    # was in flight (with the time of its arrival), and the mark in the database.
    row: DueRow = field(init=False)
    newer: tuple[DueRow, float] | None = None
    mark: Mark | None = None

    # From MARKED on.
    claimed: Claimed = field(init=False)
    lease_seconds: float = field(init=False)
    taken_at: float = field(init=False)
    abort_at: float = field(init=False)
    task: asyncio.Task[None] | None = None  # that makes the call
    trace: Span | None = None

    # The contract under which its gateway is being asked; None while it is submitted.
    lookup_contract: Contract | None = None

    # The attempt that its result is about, if it is not of a call: no mark in the database says
    # that we work on it, so an operator may decide about it meanwhile.
    attempt_no: int | None = None

    # Whether the database may have its call as begun: then it is un-begun when it is given back.
    is_begun: bool = False

    # Whether bytes of its call may have left, and whether they may not leave any more.
    is_sent: bool = False
    is_withdrawn: bool = False

    # Whether its call may have been made while its result is not on the ledger: its mark must stay.
    is_unsettled: bool = False

    # Whether an observer was told that its call is about to be made.
    is_observed: bool = False

    # Of an item of a stream only: the stream, and the next heads that the same call submits.
    stream: HeldStream | None = None
    followers: Sequence[Item] = ()

    # From RECORDING on: the outcome, or until when the item is given back without one.
    outcome: Outcome | None = None
    elapsed_seconds: float | None = None
    given_back_until: float | None = None

    def become_due(self) -> None:
        """Be ready to be taken."""
        self._move(READY, WAITING)

    def take(self) -> None:
        """Be about to be marked in the database; `work_under` follows."""
        self._move(MARKED, READY)

    def work_under(self, claimed: Claimed, lease_seconds: float, taken_at: float) -> None:
        """Know the claim or the mark: from `taken_at` on, it is worked on under its lease."""
        self.claimed = claimed
        self.lease_seconds = lease_seconds
        self.taken_at = taken_at
        self.abort_at = taken_at + ABORT_LEASES * lease_seconds

    def call(self) -> None:
        """Have its call made: only an outcome ends it."""
        self._move(CALLING, MARKED, CALLING)

    def finish(self, outcome: Outcome, elapsed_seconds: float | None) -> bool:
        """Have an outcome, which is to be recorded."""
        if not self._move(RECORDING, CALLING):
            return False
        self.outcome = outcome
        self.elapsed_seconds = elapsed_seconds
        self.is_unsettled = True
        return True

    def give_back(self, until: float) -> bool:
        """Be given back without an outcome, to be due again then."""
        if not self._move(RECORDING, MARKED, CALLING):
            return False
        self.given_back_until = until
        return True

    def put_back(self) -> bool:
        """Be given back together with the results of the others of its batch."""
        return self._move(RECORDING, CALLING)

    def leave_unmarked(self, until: float) -> None:
        """Go back to the due queue: no mark in the database is about it."""
        if self._move(DONE, MARKED):
            self.given_back_until = until

    def end(self) -> None:
        """Be over: recorded, given back, replaced or dropped."""
        self._move(DONE, WAITING, READY, MARKED, CALLING, RECORDING)
        self.slot = Slot.NONE

    def _move(self, state: ItemState, *allowed: ItemState) -> bool:
        if self.state in allowed:
            self.state = state
            return True
        if Transitions.are_strict:
            raise IllegalTransition(f"{self.target}: from {self.state.name} to {state.name}")
        _LOG.error(
            "transition_refused",
            intent_id=str(UUID(int=self.intent_no)),
            target=self.target,
            state=self.state.name,
            refused=state.name,
            advice="a defect: report it; the intent is repaired when its lease has expired",
        )
        self.lose()
        return False

    def bind_result(self) -> None:
        """Let the results of this batch count only for the attempts that we have read."""
        for one in (self, *self.followers):
            one.attempt_no = one.claimed.attempt_no

    def withdraw(self) -> bool:
        """Make no call that has not been sent. Say whether that was in time for the whole batch."""
        batch = (self, *self.followers)
        for one in batch:
            one.is_withdrawn = True
        return not any(one.is_sent for one in batch)

    def note_unsent(self) -> None:
        """Know that nothing of its call was sent."""
        self.is_unsettled = False
        for one in (self, *self.followers):
            one.is_sent = False

    @property
    def is_unsent(self) -> bool:
        """Whether its call was begun in the database, and certainly not sent."""
        return self.is_begun and not self.is_sent

    @property
    def has_slot(self) -> bool:
        """Whether it has a slot of its own."""
        return self.slot is Slot.OWN

    @property
    def is_put_back(self) -> bool:
        """Whether it returns without a result: it was not sent, or is to be asked about later."""
        return self.state is RECORDING and self.outcome is None

    def delay_left(self, now: float) -> float:
        """Return after how long it is due again, if it is put back."""
        return 0.0 if self.given_back_until is None else max(0.0, self.given_back_until - now)

    @property
    def is_lost(self) -> bool:
        """Whether its lease is known to be lost."""
        return self.trust is _LOST

    def lose(self) -> None:
        """Stop trusting its lease for good, and cancel its call."""
        self.trust = _LOST
        if self.task is not None:
            self.task.cancel()

    @property
    def trace_id(self) -> str:
        """The id of the trace that its calls belong to."""
        if self.trace is None:
            self.trace = trace_of(self.claimed.trace_context)
        return self.trace.trace_id

    def log_fields(self) -> dict[str, object]:
        """Return the fields that every log line about an item carries."""
        return {
            "worker_id": self.fence.holder_id,
            "intent_id": str(self.claimed.intent_id),
            "attempt_no": self.claimed.attempt_no,
            "target": self.target,
            "trace_id": self.trace_id,
        }


def claimed_items(
    claimed: Iterable[Claimed], fence: Fence, trust: Trust, lease_seconds: float, taken_at: float
) -> list[Item]:
    """Make items of what a claim returned."""
    items: list[Item] = []
    for one in claimed:
        item = Item(one.intent_id.int, one.target, fence, trust, MARKED)
        item.work_under(one, lease_seconds, taken_at)
        items.append(item)
    return items

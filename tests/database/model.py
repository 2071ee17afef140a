"""A small model of the database, which the state machine compares with the real one.

Time is a number of units, and the test moves it by whole ones. A unit is much longer than an
example runs. Of the real time that passes only the order matters: each look at the clock is a tick
later than the one before. A delay of one second (SOON) is over after the next move.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from uuid import UUID

UNIT_SECONDS = 600
TICK_UNITS = 2.0**-30  # a power of two, so that sums are exact
SOON = 1 / UNIT_SECONDS
NEVER = float("inf")
TERMINAL = ("DISPATCHED", "FAILED", "CANCELLED")
UNCERTAIN = ("IN_DOUBT", "SUBMITTED")
LEASE_UNITS = 2
GRACE_UNITS = 2


@dataclass(frozen=True)
class Terms:
    """The terms of a contract that the model uses; times are in units."""

    scope: str
    guarantee: str
    attempts_max: int = 3
    policy: str = "max_attempts"
    deadline: int | None = None
    quarantine: int = 4
    key_window: int | None = None
    can_look_up: bool = False
    lease: str = "executor"
    on_failure: str | None = None
    block: int | None = None
    batch_max: int = 1
    pipeline_max: int = 1
    confirm_within: int | None = None

    def as_contract(self, lease_name: str) -> dict[str, object]:
        terms: dict[str, object] = {
            "scope": self.scope,
            "guarantee": self.guarantee,
            "gateway": None,
            "retry_policy": self.policy,
            "attempts_max": self.attempts_max,
            "lease_seconds": LEASE_UNITS * UNIT_SECONDS,
            "quarantine_seconds": self.quarantine * UNIT_SECONDS,
            "can_look_up": self.can_look_up,
        }
        if self.deadline is not None:
            terms["deadline_seconds"] = self.deadline * UNIT_SECONDS
        if self.key_window is not None:
            terms["key_window_seconds"] = self.key_window * UNIT_SECONDS
        if self.on_failure is not None:
            terms |= {"on_failure": self.on_failure, "batch_max": self.batch_max}
        if self.block is not None:
            terms["block_seconds"] = self.block * UNIT_SECONDS
        if self.pipeline_max > 1:
            terms["pipeline_max"] = self.pipeline_max
        if self.confirm_within is not None:
            terms["confirm_within_seconds"] = self.confirm_within * UNIT_SECONDS
        return terms | ({"lease_name": lease_name} if self.scope == "cluster" else {})


@dataclass(frozen=True)
class Claim:
    """A claim as its worker remembers it, whether it is still held or not."""

    intent_id: UUID
    worker: str
    token: UUID


@dataclass(frozen=True)
class Grant:
    """A lease as its holder remembers it."""

    name: str
    holder: str
    epoch: int


Reason = tuple[str, str]  # person and operator, or failure and intent


class Pause(NamedTuple):
    """A reason for which a stream stands still."""

    since: float
    until: float


@dataclass
class Lease:
    holder: str = ""
    epoch: int = 0
    expires: float = -NEVER
    grace_expires: float = -NEVER
    renewed: float = -NEVER
    granted: int = 0
    grace_granted: int = 0
    pauses: dict[Reason, Pause] = field(default_factory=dict["Reason", "Pause"])

    @property
    def paused_until(self) -> float:
        return max((one.until for one in self.pauses.values()), default=-NEVER)

    def reasons(self, now: float) -> set[str]:
        """Return for what the stream stands still."""
        return {" ".join(key) for key, one in self.pauses.items() if one.until > now}

    def forget_pauses(self, now: float) -> None:
        """Forget those that are over."""
        self.pauses = {key: one for key, one in self.pauses.items() if one.until > now}

    def is_held_by(self, grant: Grant) -> bool:
        return (self.holder, self.epoch) == (grant.holder, grant.epoch)


@dataclass
class Item:
    """One intent: its ledger states, and its pending row if it has one."""

    intent_id: UUID
    target: str
    terms: Terms
    due: float
    priority: int = 1
    lease_name: str | None = None
    stream_seq: int | None = None
    version: int = 0
    claimable: bool = False  # leads a claim to its stream
    deadline: float | None = None
    states: list[str] = field(default_factory=list)
    reason: str | None = None
    first_tried: float | None = None
    submitted: float = -NEVER  # when the last SUBMITTED was written
    begun: bool = False
    begun_epoch: int | None = None
    claim: Claim | None = None
    claim_expires: float = -NEVER

    @property
    def last_state(self) -> str | None:
        return self.states[-1] if self.states else None

    @property
    def is_pending(self) -> bool:
        return self.last_state not in TERMINAL

    @property
    def awaits_confirmation(self) -> bool:
        """Say whether rows behind this one go on although it is not confirmed yet."""
        is_submitted = self.last_state == "SUBMITTED" and self.due < NEVER
        return is_submitted and self.terms.pipeline_max > 1

    @property
    def is_marked_when_called(self) -> bool:
        """Say whether a call is marked. Other calls are begun one by one, or are only lookups."""
        terms = self.terms
        is_repeatable = terms.guarantee in ("keyed", "fenced") and terms.key_window is None
        return is_repeatable and self.last_state != "SUBMITTED"

    @property
    def status(self) -> str:
        match self.last_state:
            case "DISPATCHED":
                return "accepted"
            case "CANCELLED":
                return "cancelled"
            case "FAILED":
                spent = ("max_attempts", "one_shot", "deadline_exceeded")
                return "exhausted" if self.reason in spent else "rejected"
            case "IN_DOUBT":
                return "held" if self.due == NEVER else "in_doubt"
            case "SUBMITTED":
                return "confirming"
            case _:
                return "pending"


class Model:
    """All items and leases of one example, and the rules for their changes."""

    def __init__(self) -> None:
        self.units = 0
        self.ticks = 0
        self.items: dict[UUID, Item] = {}
        self.leases: dict[str, Lease] = {}
        # Under each lease, by the number of the mark: which attempt of which intents may be being
        # called.
        self.marks: dict[str, dict[int, dict[UUID, int]]] = {}

    @property
    def now(self) -> float:
        return self.units + self.ticks * TICK_UNITS

    def tick(self) -> None:
        """Somebody looks at the clock anew."""
        self.ticks += 1

    # What is possible now.

    def is_lost(self, claim: Claim, worker: str) -> bool:
        item = self.items.get(claim.intent_id)
        if item is None or item.claim != claim:
            return True
        return worker != claim.worker or item.claim_expires <= self.now

    def claimable(self, targets: Collection[str]) -> list[Item]:
        return [
            item
            for item in self.items.values()
            if item.is_pending and item.terms.scope == "item" and item.target in targets
            if item.claim is None and item.due <= self.now
        ]

    def expired(self) -> list[Item]:
        return [
            item
            for item in self.items.values()
            if item.is_pending and item.claim is not None and item.claim_expires <= self.now
        ]

    def requeueable(self, targets: Collection[str]) -> list[Item]:
        """Return the expired claims that a claim may requeue itself; repair finishes all others."""
        return [
            item
            for item in self.expired()
            if item.target in targets and not item.begun
            if len(item.states) + 1 < item.terms.attempts_max
            if item.deadline is None or item.deadline > self.now
        ]

    def past_deadline(self) -> list[Item]:
        return [
            item
            for item in self.items.values()
            if item.is_pending and not self.is_in_flight(item)
            if item.deadline is not None and item.deadline <= self.now
            if item.last_state not in UNCERTAIN
            if item.terms.scope != "stream" or self.is_free_head(item)
        ]

    def is_free_head(self, item: Item) -> bool:
        raise NotImplementedError

    def in_flight(self, lease_name: str) -> list[Item]:
        return [
            item
            for item in self.items.values()
            if item.is_pending and item.lease_name == lease_name and item.begun
        ]

    def called(self, lease_name: str) -> list[Item]:
        """Return the marked calls of a lease that may be in flight."""
        marks = self.marks.get(lease_name, {}).values()
        return [
            item
            for intent_id, attempt_no in {call for calls in marks for call in calls.items()}
            if (item := self.items[intent_id]).is_pending and not item.begun
            if attempt_no == len(item.states) + 1
        ]

    def is_free(self, lease_name: str) -> bool:
        """Free after phase one if no call is in flight, and after phase two always."""
        lease = self.leases.get(lease_name, Lease())
        return lease.expires <= self.now and (
            lease.grace_expires <= self.now or not self.in_flight(lease_name)
        )

    # Verdicts.

    def absence(self, item: Item | None) -> str:
        return "not_found" if item is None else "already_terminal"

    def begin_verdict(self, claim: Claim, worker: str) -> str:
        item = self.items.get(claim.intent_id)
        if item is None or not item.is_pending:
            return self.absence(item)
        return "lease_lost" if self.is_lost(claim, worker) else "begun"

    def complete_verdict(self, claim: Claim, worker: str, state: str) -> str:
        """Return the verdict; not_begun means P7003, which refuses the whole batch."""
        item = self.items.get(claim.intent_id)
        if item is None or not item.is_pending:
            return self.absence(item)
        if self.is_lost(claim, worker):
            return "lease_lost"
        return "not_begun" if is_unbegun_call(item, state) else "applied"

    def begin_leased_verdict(self, lease_name: str, item: Item | None) -> str:
        if item is None or not item.is_pending:
            return self.absence(item)
        if item.lease_name != lease_name:
            return "not_found"
        if item.begun:
            return "already_begun"
        if item.due > self.now:
            return "not_due"
        return "begun"

    def record_verdict(self, lease_name: str, item: Item | None, state: str) -> str:
        if item is None or not item.is_pending:
            return self.absence(item)
        if item.lease_name != lease_name:
            return "not_found"
        return "not_begun" if is_unbegun_call(item, state) else "applied"

    def is_in_flight(self, item: Item) -> bool:
        return (
            item.begun
            or item.claim is not None
            or (item.lease_name is not None and item in self.called(item.lease_name))
        )

    def cancel_verdict(self, item: Item) -> str:
        if not item.is_pending:
            return self.absence(item)
        if self.is_in_flight(item):
            return "in_flight"
        return {"IN_DOUBT": "in_doubt", "SUBMITTED": "confirming"}.get(
            item.last_state or "", "cancelled"
        )

    # Changes.

    def hand_out(self, claim: Claim) -> None:
        item = self.items[claim.intent_id]
        item.claim, item.claim_expires = claim, self.now + LEASE_UNITS
        item.first_tried = self.now if item.first_tried is None else item.first_tried

    def unsend(self, item: Item) -> None:
        """Know that a call was not made. Without a row on the ledger there was never one."""
        item.begun, item.begun_epoch = False, None
        if not item.states:
            item.first_tried = None

    def take(self, name: str, holder: str, grace: int) -> Grant:
        """Give a free lease to a holder, and put the calls of the previous holder in doubt."""
        for item in [*self.in_flight(name), *self.called(name)]:
            self.append(item, "IN_DOUBT", SOON, "lease_taken_over")
        self.marks.pop(name, None)
        lease = self.leases.setdefault(name, Lease())
        lease.holder, lease.epoch = holder, lease.epoch + 1
        self.extend(lease, grace)
        return Grant(name, holder, lease.epoch)

    def extend(self, lease: Lease, grace: int) -> None:
        lease.renewed, lease.granted, lease.grace_granted = self.now, LEASE_UNITS, grace
        lease.expires = self.now + LEASE_UNITS
        lease.grace_expires = lease.expires + grace

    def release(self, lease: Lease) -> None:
        lease.expires = min(lease.expires, self.now)
        lease.grace_expires = self.now
        lease.granted = lease.grace_granted = 0

    def set_clock_back(self, units: int) -> None:
        for lease in self.leases.values():
            lease.renewed += units
            lease.expires += units
            lease.grace_expires += units
            lease.pauses = {
                key: Pause(one.since + units, one.until + units)
                for key, one in lease.pauses.items()
            }

    def repair_times(self, lease: Lease) -> None:
        """Whoever wants a lease counts impossible times from now on."""
        if lease.renewed > self.now or lease.expires > self.now + lease.granted:
            lease.renewed = min(lease.renewed, self.now)
            lease.expires = min(lease.expires, self.now + lease.granted)
            ends = self.now + lease.granted + lease.grace_granted
            lease.grace_expires = min(lease.grace_expires, ends)

    def end_expired(self, items: Iterable[Item]) -> None:
        for item in items:
            self.append(item, zombie_state(item), SOON, "lease_expired")

    def report(self, item: Item, state: str, retry_after: float) -> str | None:
        """Record the result of a holder. A question without news writes nothing to the ledger."""
        is_asked = item.last_state == "SUBMITTED" and not item.begun
        is_unconfirmed = is_asked and (
            state == "DEFERRED" or (state == "SUBMITTED" and item.terms.can_look_up)
        )
        within = item.terms.confirm_within if is_unconfirmed else None
        ends = NEVER if within is None else item.submitted + within
        if ends <= self.now:
            return self.append(item, "IN_DOUBT", retry_after, "unconfirmed")
        if state == "DEFERRED" or is_unconfirmed:
            item.due = min(self.now + retry_after, ends)
            self.unsend(item)
            item.claim = None
            return None if state == "DEFERRED" else state
        written = self.append(item, state, retry_after)
        self.pause_after(item)
        return written

    def pause_after(self, item: Item) -> None:
        """Pause the stream of an item that failed, if its contract says so."""
        if item.last_state == "FAILED" and item.terms.on_failure in ("block", "block_for"):
            block = item.terms.block
            until = NEVER if block is None else self.now + block
            lease = self.leases[item.lease_name or ""]
            lease.pauses["failure", str(item.intent_id)] = Pause(self.now, until)
            lease.forget_pauses(self.now)

    def append(
        self, item: Item, state: str, retry_after: float = 0, reason: str | None = None
    ) -> str:
        """Append a ledger row and update the pending row. Returns the state that was written."""
        again = self.now + retry_after
        spent = len(item.states) + 1 >= item.terms.attempts_max
        exhausted_by = None
        if state in ("RETRYABLE", "ZOMBIE_REQUEUE"):
            if spent:
                exhausted_by = "one_shot" if item.terms.policy == "one_shot" else "max_attempts"
            elif item.deadline is not None and again >= item.deadline:
                exhausted_by = "deadline_exceeded"
        item.states.append("FAILED" if exhausted_by else state)
        item.reason = exhausted_by or reason
        item.due = self.doubt_due(item, again, spent=spent) if state == "IN_DOUBT" else again
        if state == "SUBMITTED":
            item.submitted = self.now
            if item.terms.confirm_within is not None:
                item.due = min(item.due, self.now + item.terms.confirm_within)
        item.first_tried = self.now if item.first_tried is None else item.first_tried
        item.begun, item.begun_epoch, item.claim = False, None, None
        return item.states[-1]

    def doubt_due(self, item: Item, again: float, *, spent: bool) -> float:
        """Return when an intent in doubt is due, by the guarantee of its gateway."""
        terms = item.terms
        if terms.guarantee == "blind":
            return NEVER
        past_window = (
            terms.key_window is not None
            and item.first_tried is not None
            and self.now >= item.first_tried + terms.key_window
        )
        if terms.guarantee == "lookup" or past_window:
            return self.now + terms.quarantine if terms.can_look_up else NEVER
        return NEVER if spent else again


def zombie_state(item: Item) -> str:
    """Return the state that repair writes for a silent holder; a doubt stays a doubt."""
    if item.begun or item.last_state == "IN_DOUBT":
        return "IN_DOUBT"
    return "SUBMITTED" if item.last_state == "SUBMITTED" else "ZOMBIE_REQUEUE"


def is_unbegun_call(item: Item, state: str) -> bool:
    return (
        not item.begun
        and state in ("DISPATCHED", "IN_DOUBT", "SUBMITTED")
        and (item.terms.scope == "stream" or item.terms.guarantee in ("lookup", "blind"))
        and item.last_state not in UNCERTAIN
    )

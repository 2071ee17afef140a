"""The model of streams: who may claim them, what is next in them, and what pauses them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from tests.database.model import (
    LEASE_UNITS,
    NEVER,
    SOON,
    UNCERTAIN,
    Grant,
    Lease,
    Model,
    Pause,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from uuid import UUID

    from tests.database.model import Item, Reason


class Work(NamedTuple):
    """What a call says about one stream."""

    epoch: int
    state: str
    is_held: bool
    heads: tuple[UUID, ...]
    is_begun: bool


class StreamModel(Model):
    """Items and leases, with streams."""

    def rows(self, name: str) -> list[Item]:
        """Return the pending rows of a stream in order."""
        found = [one for one in self.items.values() if one.is_pending and one.lease_name == name]
        return sorted(found, key=lambda one: one.stream_seq or 0)

    def create_stream(self, name: str) -> None:
        self.leases.setdefault(name, Lease(holder="nobody"))

    def accept_in_stream(self, item: Item) -> None:
        """Make the first row of an idle stream claimable."""
        name = item.lease_name or ""
        self.create_stream(name)
        item.claimable = self.head(name) is None and self.leases[name].paused_until != NEVER

    def head(self, name: str) -> Item | None:
        """Return the first row that does not await its confirmation."""
        return next(iter(self.rows_from_head(name)), None)

    def rows_from_head(self, name: str) -> list[Item]:
        return list(itertools.dropwhile(lambda one: one.awaits_confirmation, self.rows(name)))

    def room(self, item: Item) -> int:
        """Return how many rows from this one on may be called now."""
        awaited = sum(one.awaits_confirmation for one in self.rows(item.lease_name or ""))
        if awaited == 0 and item.terms.pipeline_max == 1:
            return item.terms.batch_max
        return item.terms.pipeline_max - awaited

    def to_ask(self, name: str) -> Item | None:
        """Return the first row to ask about, if that comes before the head."""
        head = self.head(name)
        awaited = [one for one in self.rows(name) if one.awaits_confirmation]
        first = min(awaited, key=lambda one: (one.due, one.stream_seq), default=None)
        if first is None or head is None:
            return first
        is_full = self.step(head) == "call" and self.room(head) <= 0
        return first if is_full or first.due < head.due else None

    def next_row(self, name: str) -> Item | None:
        """Return the row that is due next; it leads a claim to the stream."""
        return self.to_ask(name) or self.head(name)

    def next_due(self, name: str) -> float:
        """Return when the next row is due. A head that waits for others ends at its deadline."""
        asked, head = self.to_ask(name), self.head(name)
        row = asked or head
        due = NEVER if row is None else row.due
        if asked is None or head is None or head.deadline is None or self.step(head) != "call":
            return due
        return min(due, head.deadline)

    def stream_state(self, name: str) -> str:
        if self.in_flight(name):
            return "begun"
        if self.leases[name].paused_until > self.now:
            return "paused"
        if self.next_row(name) is None:
            return "drained"
        return "ready" if self.next_due(name) <= self.now else "waiting"

    def batch(self, name: str) -> list[Item]:
        """Return the rows that a call returns: to ask about, or heads in order."""
        if (first := self.to_ask(name)) is not None:
            return [
                one
                for one in self.rows(name)
                if one.awaits_confirmation and one.due <= self.now and one.version == first.version
            ]
        [head, *others] = self.rows_from_head(name)
        batch = [head]
        for one in others[: max(min(head.terms.batch_max, self.room(head)), 1) - 1]:
            is_one_batch = one.due <= self.now and one.version == head.version
            if not is_one_batch or self.step(one) != self.step(head) or self.step(one) == "finish":
                break
            batch.append(one)
        return batch

    def step(self, item: Item) -> str:
        if item.last_state in UNCERTAIN:
            return item.last_state
        is_late = item.deadline is not None and item.deadline <= self.now
        return "finish" if is_late else "call"

    def serve(
        self, names: Collection[str], kept: Collection[str], *, free_idle: bool, begin: bool
    ) -> dict[str, Work]:
        """Say what is next in these streams, free those that are not kept, and begin."""
        self.tick()
        return {
            name: self.serve_one(name, is_kept=name in kept, free_idle=free_idle, begin=begin)
            for name in names
        }

    def serve_one(self, name: str, *, is_kept: bool, free_idle: bool, begin: bool) -> Work:
        lease, state = self.leases[name], self.stream_state(name)
        is_held = is_kept and (state in ("ready", "begun") or not free_idle)
        heads = self.batch(name) if is_held and state == "ready" else []
        asked, head, row = self.to_ask(name), self.head(name), self.next_row(name)
        due, was_held = self.next_due(name), lease.expires > -NEVER
        may_begin = begin and asked is None and lease.expires > self.now
        begun = [one for one in heads if may_begin and self.step(one) == "call"]
        if not is_held:
            lease.granted = lease.grace_granted = 0
            if state == "begun":
                lease.expires, lease.grace_expires = min(lease.expires, self.now), self.now
            else:
                lease.expires = lease.grace_expires = -NEVER
        if asked is not None and head is not None:
            head.claimable = False
        if row is not None and not is_held and state != "begun" and lease.paused_until != NEVER:
            # Behind the heads of other streams that are due.
            earliest = self.now if was_held or not row.claimable else -NEVER
            row.due = max(min(row.due, due), lease.paused_until, earliest)
            row.claimable = True
        else:
            for one in heads or ([] if row is None else [row]):
                one.claimable = False
        for one in begun:
            one.begun = True
            one.first_tried = self.now if one.first_tried is None else one.first_tried
        return Work(lease.epoch, state, is_held, tuple(one.intent_id for one in heads), bool(begun))

    def claim_streams(
        self, target: str, holder: str, grace: int, *, begin: bool
    ) -> dict[str, Work]:
        """Claim all streams that can be claimed, by a complete walk."""
        names = [name for name in self.leases if name.startswith(f"stream/{target}/")]
        for name in names:
            if self.leases[name].expires > self.now + LEASE_UNITS:
                self.repair_times(self.leases[name])
        expired = [
            name
            for name in names
            if -NEVER < self.leases[name].expires <= self.now
            if self.leases[name].grace_expires <= self.now or not self.in_flight(name)
        ]
        led_by = [
            one
            for one in self.items.values()
            if one.is_pending and one.claimable and one.due <= self.now
            if self.leases[one.lease_name or ""].expires <= self.now
        ]
        due = [
            one.lease_name
            for one in led_by
            if not self.in_flight(one.lease_name or "")
            or self.leases[one.lease_name or ""].grace_expires <= self.now
        ]
        found = {name for name in [*expired, *due] if name in names}
        for name in sorted(found):
            self.take_stream(name, holder, grace)
        for one in led_by:
            is_first = self.rows(one.lease_name or "")[0] is one
            one.claimable = is_first and one.last_state != "SUBMITTED"
        return self.serve(found, found, free_idle=True, begin=begin)

    def take_stream(self, name: str, holder: str, grace: int) -> None:
        for item in self.in_flight(name):
            self.append(item, "IN_DOUBT", SOON, "lease_taken_over")
        lease = self.leases[name]
        lease.holder, lease.epoch = holder, lease.epoch + 1
        lease.forget_pauses(self.now)
        self.extend(lease, grace)

    def is_free_head(self, item: Item) -> bool:
        name = item.lease_name or ""
        return item.claimable and item is self.head(name) and self.leases[name].expires == -NEVER

    def is_kept(self, grant: Grant, *, in_grace: bool = True) -> bool:
        lease = self.leases.get(grant.name)
        if lease is None or not lease.is_held_by(grant):
            return False
        return (lease.grace_expires if in_grace else lease.expires) > self.now

    def begin_in_stream_verdict(
        self, grants: Collection[Grant], item: Item | None, batch: Collection[UUID]
    ) -> str:
        if item is None or not item.is_pending:
            return self.absence(item)
        [grant, *_] = [one for one in grants if one.name == item.lease_name] or [None]
        if grant is None:
            return "not_found"
        if not self.is_kept(grant, in_grace=False):
            return "lease_lost"
        if item.begun:
            return "already_begun"
        if self.leases[grant.name].paused_until > self.now:
            return "paused"
        if item.due > self.now:
            return "not_due"
        if item.awaits_confirmation or self.in_flight(grant.name):
            return "out_of_order"
        rows = self.rows_from_head(grant.name)
        earlier = list(itertools.takewhile(lambda one: one is not item, rows))
        is_blocked = any(
            one.awaits_confirmation
            or one.due > self.now
            or one.version != item.version
            or one.intent_id not in batch
            for one in earlier
        )
        # Whoever is in doubt was counted when it was called first.
        room = item.terms.batch_max if item.last_state in UNCERTAIN else self.room(item)
        is_too_much = len(earlier) >= min(item.terms.batch_max, room)
        return "out_of_order" if is_blocked or is_too_much else "begun"

    def pause(self, name: str, operator: str, until: float) -> str:
        if name not in self.leases:
            return "not_found"
        self.change_pauses(name, [("person", operator)], {("person", operator): until})
        return "paused"

    def resume(self, name: str, reason: Reason) -> str:
        lease = self.leases.get(name)
        if lease is None:
            return "not_found"
        named = lease.pauses.get(reason)
        if named is None or named.until <= self.now:
            return "not_paused"
        ended = [
            key
            for key, one in lease.pauses.items()
            if key == reason or (key[0] == reason[0] == "failure" and one.since <= named.since)
        ]
        self.change_pauses(name, ended, {})
        return "still_paused" if lease.pauses else "resumed"

    def change_pauses(
        self, name: str, ended: Collection[Reason], begun: Mapping[Reason, float]
    ) -> None:
        """End pauses, which have moved due times, and begin others."""
        lease = self.leases[name]
        ends = {lease.pauses.pop(key).until for key in ended if key in lease.pauses}
        for one in self.rows(name):
            if self.now < one.due < NEVER and one.due in ends:
                one.due = self.now
        lease.pauses |= {key: Pause(self.now, until) for key, until in begun.items()}
        lease.forget_pauses(self.now)
        self.settle_stream(name)

    def skip(self, name: str, item: Item) -> str:
        if name not in self.leases or item.lease_name != name:
            return "not_found"
        if self.head(name) is not item:
            return "not_head" if item.is_pending else "already_terminal"
        if item.begun:
            return "in_flight"
        if item.last_state in UNCERTAIN:
            return {"IN_DOUBT": "in_doubt", "SUBMITTED": "confirming"}[item.last_state]
        self.append(item, "CANCELLED")
        self.settle_stream(name)
        is_paused = self.leases[name].paused_until > self.now
        return "skipped_paused" if is_paused else "skipped"

    def settle_stream(self, name: str) -> None:
        self.tick()
        if self.leases[name].expires == -NEVER:
            self.serve_one(name, is_kept=False, free_idle=True, begin=False)

    def settle(self, item: Item) -> None:
        """After a change by no holder: a stream that nobody holds gets its next head."""
        if item.terms.scope == "stream":
            self.settle_stream(item.lease_name or "")

"""The model of streams: who may claim them, what is next in them, and what pauses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.database.model import LEASE_UNITS, NEVER, SOON, UNCERTAIN, Grant, Lease, Model

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from tests.database.model import Item


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
        item.claimable = not self.rows(name) and self.leases[name].paused_until != NEVER

    def stream_state(self, name: str) -> str:
        rows = self.rows(name)
        if rows and any(one.begun for one in rows[: rows[0].terms.batch_max]):
            return "begun"
        if self.leases[name].paused_until > self.now:
            return "paused"
        if not rows:
            return "drained"
        return "ready" if rows[0].due <= self.now else "waiting"

    def batch(self, name: str) -> list[Item]:
        """Return the heads that a call returns: due rows in order, under one contract."""
        head, *others = self.rows(name)
        batch = [head]
        for one in others[: head.terms.batch_max - 1]:
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
        return {
            name: self.serve_one(name, is_kept=name in kept, free_idle=free_idle, begin=begin)
            for name in names
        }

    def serve_one(self, name: str, *, is_kept: bool, free_idle: bool, begin: bool) -> Work:
        lease, state = self.leases[name], self.stream_state(name)
        is_held = is_kept and (state in ("ready", "begun") or not free_idle)
        heads = self.batch(name) if is_held and state == "ready" else []
        begun = [
            one for one in heads if begin and lease.expires > self.now and self.step(one) == "call"
        ]
        if not is_held:
            lease.granted = lease.grace_granted = 0
            if state == "begun":
                lease.expires, lease.grace_expires = min(lease.expires, self.now), self.now
            else:
                lease.expires = lease.grace_expires = -NEVER
        for head in self.rows(name)[:1]:
            may_be_claimed = not is_held and state != "begun" and lease.paused_until != NEVER
            if may_be_claimed:
                if not head.claimable:
                    head.due = max(head.due, self.now)
                if lease.paused_until > head.due:
                    head.due = head.due_after_pause = lease.paused_until
            head.claimable = may_be_claimed
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
        due = [
            one.lease_name
            for one in self.items.values()
            if one.is_pending and one.claimable and one.due <= self.now
            if self.leases[one.lease_name].expires <= self.now
        ]
        found = {name for name in [*expired, *due] if name in names}
        for name in sorted(found):
            self.take_stream(name, holder, grace)
        return self.serve(found, found, free_idle=True, begin=begin)

    def take_stream(self, name: str, holder: str, grace: int) -> None:
        for item in self.in_flight(name):
            self.append(item, "IN_DOUBT", SOON, "lease_taken_over")
        lease = self.leases[name]
        lease.holder, lease.epoch = holder, lease.epoch + 1
        if lease.paused_until <= self.now:
            lease.paused_until = -NEVER
        self.extend(lease, grace)

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
        rows = self.rows(grant.name)
        earlier = rows[: rows.index(item)]
        is_blocked = len(earlier) >= item.terms.batch_max or any(
            one.begun
            or one.due > self.now
            or one.version != item.version
            or one.intent_id not in batch
            for one in earlier
        )
        return "out_of_order" if is_blocked else "begun"

    def pause(self, name: str, until: float) -> str:
        if name not in self.leases:
            return "not_found"
        self.end_pause(name, until)
        return "paused"

    def resume(self, name: str) -> str:
        lease = self.leases.get(name)
        if lease is None:
            return "not_found"
        if lease.paused_until == -NEVER:
            return "not_paused"
        self.end_pause(name, -NEVER)
        return "resumed"

    def end_pause(self, name: str, next_until: float) -> None:
        """End a pause, if there is one, which has moved the head; another one may follow."""
        lease = self.leases[name]
        for head in self.rows(name)[:1]:
            is_moved = head.due == head.due_after_pause == lease.paused_until
            if is_moved and self.is_free_head(head):
                head.due = self.now
        lease.paused_until = next_until
        self.settle_stream(name)

    def skip(self, name: str, item: Item) -> str:
        if name not in self.leases or item.lease_name != name:
            return "not_found"
        if self.rows(name)[:1] != [item]:
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
        if self.leases[name].expires == -NEVER:
            self.serve_one(name, is_kept=False, free_idle=True, begin=False)

    def settle(self, item: Item) -> None:
        """After a change by no holder: a stream that nobody holds gets its next head."""
        if item.terms.scope == "stream":
            self.settle_stream(item.lease_name or "")

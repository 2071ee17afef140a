"""The streams that this instance holds.

A stream is held while one of its heads is being worked on, or while it must be looked at again. It
has two expiries. After the first, nothing new may begin; after the second, no result is written.
So a slow call keeps its stream, and a dead holder loses it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from leasehold.domain.lease import TrustWindow

if TYPE_CHECKING:
    from leasehold.domain.lease import Lease, StreamLease
    from leasehold.executor.item import Item

STREAMS_MAX = 2000  # in one call; more may be held, because those to look at need no slot


@dataclass(slots=True, eq=False)
class HeldStream:
    """A stream that we hold. It is the trust of the items that are worked on under its lease."""

    target: str
    lease: Lease
    first: TrustWindow
    second: TrustWindow
    since: float  # when the claim was sent

    # What is being worked on: the heads that the database's last answer gave. Each answer replaces
    # them before their predecessors are let go. So if an item that is let go is still here, the
    # database has not said what became of it, and the stream is left to expire.
    items: list[Item] = field(default_factory=list["Item"])

    recheck_at: float | None = None  # when to look at it again; then it has no items
    is_surplus: bool = False  # it is given up after its present call, for others

    def extend(
        self, now: float, sent_at: float, lease_seconds: float, grace_seconds: float
    ) -> bool:
        """Trust the lease anew after an answer that came now, counted from before the renewal.

        Return whether it came in time: trust that has ended never comes back.
        """
        if self.is_over(now):
            return False
        self.trust(sent_at, lease_seconds, grace_seconds)
        return True

    def trust(self, sent_at: float, lease_seconds: float, grace_seconds: float) -> None:
        """Trust the lease for this long, counted from before the statement was sent."""
        self.first = TrustWindow.counted_from(sent_at, lease_seconds)
        self.second = TrustWindow.counted_from(sent_at, lease_seconds + grace_seconds)

    def is_over(self, now: float) -> bool:
        """Whether no result may be written any more."""
        return self.second.is_over(now)

    def may_start(self, now: float) -> bool:
        """Whether a new call may begin."""
        return self.first.may_start(now)

    def may_start_later(self, now: float) -> bool:
        """Whether a call may begin when a late renewal is answered."""
        return not self.is_over(now)

    def seconds_left(self, now: float) -> float:
        """How long results may be written."""
        return self.second.seconds_left(now)


class HeldStreams:
    """The streams of this instance, by the names of their leases."""

    def __init__(self, holder_id: str) -> None:
        self.holder_id = holder_id
        self.is_closing = False
        self.freed_targets: set[str] = set()  # of which others can take streams over
        self._held: dict[str, HeldStream] = {}

    def __len__(self) -> int:
        return len(self._held)

    def all(self) -> list[HeldStream]:
        """Return all streams that we hold."""
        return list(self._held.values())

    def find(self, lease_name: str) -> HeldStream | None:
        """Return a stream that we hold."""
        return self._held.get(lease_name)

    def hold(
        self, lease: StreamLease, sent_at: float, lease_seconds: float, grace_seconds: float
    ) -> HeldStream:
        """Hold a stream that was claimed."""
        window = TrustWindow.counted_from(sent_at, 0)
        held = HeldStream(lease.target, lease.lease, window, window, sent_at)
        held.trust(sent_at, lease_seconds, grace_seconds)
        self._held[lease.lease.name] = held
        return held

    def forget(self, held: HeldStream) -> None:
        """Hold a stream no longer: it is freed, or lost, or left to expire."""
        if self._held.get(held.lease.name) is held:
            del self._held[held.lease.name]
            held.items = []

    def end(self, item: Item) -> None:
        """Leave a stream to expire whose item ended without a word from the database."""
        if item.stream is not None and item in item.stream.items:
            self.forget(item.stream)

    def may_continue(self, held: HeldStream) -> bool:
        """Say whether we may go on with a stream after its present call."""
        return not self.is_closing and not held.is_surplus

    def due_for_recheck(self, now: float) -> list[HeldStream]:
        """Return the streams that must be looked at again now."""
        return [
            one
            for one in self._held.values()
            if one.recheck_at is not None and one.recheck_at <= now
        ]

    def next_recheck_at(self) -> float | None:
        """Return when the next stream must be looked at again."""
        return min(
            (one.recheck_at for one in self._held.values() if one.recheck_at is not None),
            default=None,
        )

    def count(self) -> Counter[str]:
        """Count the streams by target."""
        return Counter(one.target for one in self._held.values())

    def keep_at_most(self, target: str, count: int) -> None:
        """Give up the streams of a target beyond this number, each after its present call."""
        kept = [one for one in self._held.values() if one.target == target and not one.is_surplus]
        for one in kept[count:]:
            one.is_surplus = True

    def give_up(self) -> None:
        """Give up all streams, each after its present call."""
        for one in self._held.values():
            one.is_surplus = True

    def end_turns(self, target: str, count: int, since: float) -> None:
        """Give up as many streams of a target as others of it wait, those first that we have had
        for longest, and none that we have had for a shorter time.

        Their heads go to the end of the line. Otherwise streams that always have work would keep
        their slots for ever.
        """
        streams = [one for one in self._held.values() if one.target == target and one.items]
        ending = sum(one.is_surplus for one in streams)
        over = [one for one in streams if one.since <= since and not one.is_surplus]
        for one in sorted(over, key=attrgetter("since"))[: max(0, count - ending)]:
            one.is_surplus = True

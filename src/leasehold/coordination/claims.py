"""What we hold: every claim from the answer that granted it to the verdict that ended it.

A claim takes a slot for all of that time, so there is never more in memory than slots. Nothing is
removed from here behind the back of whoever works on it: losing a claim marks it and cancels its
call, and the next one who looks at it lets go.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Literal, TypeAlias

from leasehold.domain.timing import ABORT_LEASES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, KeysView

    from leasehold.coordination.term import Trust
    from leasehold.domain.intent import Claimed

    Clock = Callable[[], float]


# How far work on a claim has come. Claimed: nothing was called, it may be given back. Calling: only
# an outcome ends it. Recording: its result is on the way to the ledger.
Stage: TypeAlias = Literal["claimed", "calling", "recording"]


class Held:
    """Work in our hands, and for how long we may believe so."""

    __slots__ = (
        "abort_at",
        "call",
        "claimed",
        "is_lost",
        "lease_seconds",
        "stage",
        "taken_at",
        "trust",
    )

    def __init__(
        self, claimed: Claimed, trust: Trust, lease_seconds: float, taken_at: float
    ) -> None:
        self.claimed = claimed
        self.trust = trust
        self.lease_seconds = lease_seconds
        self.taken_at = taken_at
        self.abort_at = taken_at + ABORT_LEASES * lease_seconds
        self.stage: Stage = "claimed"
        self.is_lost = False
        self.call: asyncio.Task[None] | None = None

    def is_trusted(self, now: float) -> bool:
        """Whether we may act under it."""
        return not self.is_lost and not self.trust.is_over(now)

    def may_call(self, now: float) -> bool:
        """Whether we may make its call now; one that was made may go on for longer."""
        return not self.is_lost and self.trust.may_start(now)

    def may_call_later(self, now: float) -> bool:
        """Whether a renewal that is late may allow it yet."""
        return not self.is_lost and self.trust.may_start_later(now)


class Claims:
    """The claims of one worker, at most `slots` at a time."""

    def __init__(self, worker_id: str, slots: int, clock: Clock = time.monotonic) -> None:
        self.worker_id = worker_id
        self.slots = slots
        self.clock = clock
        # By the number of the id: the hash of a UUID itself is made anew, in Python, on each look.
        self._held: dict[int, Held] = {}
        self._by_target: Counter[str] = Counter()
        self._on_free: list[Callable[[Iterable[int]], None]] = []
        self._stuck: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def free_slots(self) -> int:
        """How many more claims there is room for."""
        return max(0, self.slots - len(self._held) - len(self._stuck))

    @property
    def stuck_calls(self) -> int:
        """How many calls were given up and have not ended all the same."""
        return len(self._stuck)

    def without(self, numbers: KeysView[int]) -> set[int]:
        """Say which of these intents, by the numbers of their ids, are not in our hands."""
        return numbers - self._held.keys()

    def in_flight(self, target: str) -> int:
        """How many of a target's items we hold."""
        return self._by_target[target]

    def on_free(self, told: Callable[[Iterable[int]], None]) -> None:
        """Have somebody told whenever slots become free, and by which intents, by their numbers."""
        self._on_free.append(told)

    def take(
        self,
        claimed: Iterable[Claimed],
        trust: Trust,
        lease_seconds: float,
        taken_at: float,
    ) -> list[Held]:
        """Hold what was granted."""
        taken = [Held(one, trust, lease_seconds, taken_at) for one in claimed]
        for held in taken:
            number = held.claimed.intent_id.int
            # What we gave back may be ours again before we hear that it was taken back.
            self._by_target[held.claimed.target] += number not in self._held
            self._held[number] = held
        return taken

    def let_go(self, gone: Iterable[Held]) -> None:
        """Give slots back: these were recorded, given back, or dropped."""
        freed: list[int] = []
        for held in gone:
            # The same intent may be ours again under a newer claim.
            number = held.claimed.intent_id.int
            if self._held.get(number) is held:
                del self._held[number]
                self._by_target[held.claimed.target] -= 1
                freed.append(number)
        for told in self._on_free:
            told(freed)

    def all(self) -> list[Held]:
        """Give all that is held now, lost or not."""
        return list(self._held.values())

    def renewable(self) -> list[Held]:
        """Give what a heartbeat is for: not lost, and not so old that it is to be aborted."""
        now = self.clock()
        return [held for held in self._held.values() if not held.is_lost and now < held.abort_at]

    def overdue(self) -> list[Held]:
        """Give what is to be aborted: it has been worked on for longer than anything may be."""
        now = self.clock()
        return [
            held
            for held in self._held.values()
            if not held.is_lost and held.stage != "recording" and now >= held.abort_at
        ]

    def outlived(self, call: asyncio.Task[None]) -> None:
        """Keep the slot of a call that was given up, for as long as it does not end."""
        call.cancel()
        self._stuck.add(call)
        call.add_done_callback(self._stuck.discard)

    def lose(self, lost: Iterable[Held]) -> int:
        """Stop believing in these: their calls are cancelled. Returns how many were new."""
        count = 0
        for held in lost:
            if not held.is_lost:
                held.is_lost = True
                count += 1
                if held.call is not None:
                    held.call.cancel()
        return count

    def lose_untrusted(self) -> int:
        """Stop believing in what we could not renew in time, as after a stall of this process."""
        now = self.clock()
        return self.lose([held for held in self._held.values() if held.trust.is_over(now)])

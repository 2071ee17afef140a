"""The scene of `leasehold demo --kill`: a worker dies during its calls, and the others recover."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.demo.sandbox import SLOW, TROUBLE
from leasehold.demo.trickle import TARGETS
from leasehold.domain.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from leasehold.demo.read import ClaimLeft, Reader, Recovered
    from leasehold.demo.sandbox import SandboxClient
    from leasehold.demo.stage import Child, Stage
    from leasehold.demo.trickle import Trickle
    from leasehold.domain.contract import Guarantee

BURST = 16
_CLAIMS_WANTED = 4
_PATIENCE_SECONDS = 5.0
_RECOVERY_SECONDS = 30.0
_POLL_SECONDS = 0.1
# What follows, by the class of the gateway and by whether a call may have been made.
_FOLLOWS: Mapping[Guarantee, str] = {
    "keyed": "sent again under the same key",
    "fenced": "sent again under a newer token",
    "lookup": "sent, as no call had begun",
    "blind": "sent, as no call had begun",
}
_FOLLOWS_DOUBT: Mapping[Guarantee, str] = {
    "keyed": "sent again under the same key",
    "fenced": "sent again under a newer token",
    "lookup": "asked for after its quarantine",
    "blind": "held for a person",
}


@dataclass(frozen=True, slots=True)
class Victim:
    """The worker that is to die, and its name in the database."""

    worker: Child
    instance_id: str


class KillScene:
    """Kills the busiest worker and follows what it held."""

    def __init__(
        self,
        stage: Stage,
        reader: Reader,
        sandbox: SandboxClient,
        trickle: Trickle,
        say: Callable[[str], None],
    ) -> None:
        self._stage = stage
        self._reader = reader
        self._sandbox = sandbox
        self._trickle = trickle
        self._say = say
        self._left: Sequence[ClaimLeft] = ()

    async def play(self) -> None:
        """Slow the gateway down, kill, start a replacement, and tell each recovery."""
        await self._sandbox.set_faults(SLOW)
        await self._trickle.enqueue(BURST)
        victim = await self._busiest()
        self._stage.kill(victim.worker)
        killed_at = await self._reader.clock()
        await self._sandbox.set_faults(TROUBLE)
        self._left = await self._reader.claims_of(victim.instance_id)
        self._tell_death(victim)
        self._say(f"{self._stage.start_worker().name} starts as its replacement")
        await self._follow(victim, killed_at)

    async def tell_end(self) -> None:
        """Say what became of the claims that the dead worker held."""
        if self._left:
            statuses = Counter(await self._reader.statuses([one.intent_id for one in self._left]))
            told = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
            self._say(f"of the {len(self._left)} claims that the killed worker held: {told}")

    async def _busiest(self) -> Victim:
        """Wait until a worker has enough calls under way; after a while, take what there is."""
        ends_at = time.monotonic() + _PATIENCE_SECONDS
        while True:
            workers = {one.process.pid: one for one in self._stage.workers if one.is_alive}
            seen = [one for one in await self._reader.instances() if one.pid in workers]
            busiest = max(seen, key=lambda one: one.claims, default=None)
            if busiest is not None:
                is_late = time.monotonic() > ends_at
                if busiest.claims >= _CLAIMS_WANTED or is_late:
                    return Victim(workers[busiest.pid], busiest.instance_id)
            await asyncio.sleep(_POLL_SECONDS)

    def _tell_death(self, victim: Victim) -> None:
        held = Counter(one.target for one in self._left)
        told = ", ".join(f"{count} {target}" for target, count in sorted(held.items()))
        self._say(
            f"KILLED {victim.worker.name} (process {victim.worker.process.pid}) in the middle of "
            f"{len(self._left)} claims: {told or 'none'}"
        )
        if self._left:
            longest = max(one.left_seconds for one in self._left)
            self._say(f"nobody may touch them before their leases run out, in {longest:.1f} s")

    async def _follow(self, victim: Victim, killed_at: datetime) -> None:
        waiting = {one.intent_id: one for one in self._left}
        after: list[float] = []
        ends_at = time.monotonic() + _RECOVERY_SECONDS
        while waiting and time.monotonic() < ends_at:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                claimed = {
                    one.intent_id for one in await self._reader.claims_of(victim.instance_id)
                }
                found = await self._reader.recovered(victim.instance_id, list(waiting), killed_at)
            except DatabaseUnavailable:
                continue
            for one in found:
                self._say(_told(waiting.pop(one.intent_id), one))
                after.append(one.after_seconds)
            # Claimed no more when we looked, and yet no row that ended the claim since.
            for intent_id in waiting.keys() - claimed:
                claim = waiting.pop(intent_id)
                self._say(f"{claim.target} {_short(intent_id)} was complete: its last word arrived")
        self._tell_recovery(after, list(waiting))

    def _tell_recovery(self, after: Sequence[float], not_recovered: Sequence[UUID]) -> None:
        if after:
            between = f"{min(after):.1f} to {max(after):.1f} s"
            self._say(f"recovered {len(after)} claims {between} after the kill")
        for intent_id in not_recovered:
            self._say(f"NOT recovered in {_RECOVERY_SECONDS:.0f} s: {_short(intent_id)}")


def _told(claim: ClaimLeft, recovered: Recovered) -> str:
    by_class = _FOLLOWS_DOUBT if recovered.state == "IN_DOUBT" else _FOLLOWS
    follows = by_class[TARGETS[claim.target]]
    return (
        f"recovered {claim.target} {_short(claim.intent_id)} "
        f"after {recovered.after_seconds:.1f} s: {recovered.state}, {follows}"
    )


def _short(intent_id: UUID) -> str:
    """Shorten an id to its random end: its beginning is the time, alike for all of a burst."""
    return f"..{intent_id.hex[-8:]}"

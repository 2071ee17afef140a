"""`leasehold demo --kill`: kill a worker in the middle of its calls and follow the recovery."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

from leasehold.demo.traffic import SLOW, SOME_FAULTS, TARGETS
from leasehold.demo.view import short_id
from leasehold.domain.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from leasehold.demo.processes import Child, Processes
    from leasehold.demo.traffic import SandboxClient, Traffic
    from leasehold.domain.contract import Guarantee
    from leasehold.store.demo import ClaimRow, DemoStore, InstanceRow, RecoveryRow

BURST = 20
_CLAIMS_WANTED = 4
_CLAIMS_WAIT_SECONDS = 5.0
_RECOVERY_SECONDS = 30.0
_POLL_SECONDS = 0.1
# What happens next to a recovered intent, if no call may have been made.
_NEXT_STEP: Mapping[Guarantee, str] = {
    "keyed": "sent again under the same key",
    "fenced": "sent again under a newer token",
    "lookup": "sent, because no call had begun",
    "blind": "sent, because no call had begun",
}
# The same, if its outcome is in doubt.
_NEXT_STEP_IN_DOUBT: Mapping[Guarantee, str] = {
    "keyed": "sent again under the same key",
    "fenced": "sent again under a newer token",
    "lookup": "looked up after its quarantine",
    "blind": "held for a person",
}


class WorkerKill:
    """Kills the busiest worker and reports what becomes of its claims."""

    def __init__(
        self,
        processes: Processes,
        queries: DemoStore,
        sandbox: SandboxClient,
        traffic: Traffic,
        report: Callable[[str], None],
    ) -> None:
        self._processes = processes
        self._queries = queries
        self._sandbox = sandbox
        self._traffic = traffic
        self._report = report
        self._claims: Sequence[ClaimRow] = ()

    async def run(self) -> None:
        """Slow the gateway down, kill, start a replacement, and report each recovery."""
        await self._sandbox.set_faults(SLOW)
        await self._traffic.enqueue(BURST)
        worker, instance = await self._busiest_worker()
        instance_id = instance.instance_id
        self._processes.kill(worker)
        killed_at = await self._queries.clock()
        await self._sandbox.set_faults(SOME_FAULTS)
        self._claims = await self._queries.claims_of(instance_id)
        self._report_kill(worker, instance.streams)
        self._report(f"{self._processes.start_worker().name} starts as its replacement")
        await self._follow(instance_id, killed_at)

    async def report_end(self) -> None:
        """Report the final status of the claims that the killed worker held."""
        if self._claims:
            ids = [one.intent_id for one in self._claims]
            counts = _counts(await self._queries.statuses(ids))
            self._report(f"the {len(self._claims)} claims of the killed worker ended as: {counts}")

    async def _busiest_worker(self) -> tuple[Child, InstanceRow]:
        """Wait until a worker has enough calls in flight; after 5 s take the busiest."""
        deadline = time.monotonic() + _CLAIMS_WAIT_SECONDS
        while True:
            workers = {one.process.pid: one for one in self._processes.workers if one.is_alive}
            rows = [one for one in await self._queries.instances() if one.pid in workers]
            busiest = max(rows, key=lambda one: one.claims, default=None)
            if busiest is not None:
                is_late = time.monotonic() > deadline
                if busiest.claims >= _CLAIMS_WANTED or is_late:
                    return workers[busiest.pid], busiest
            await asyncio.sleep(_POLL_SECONDS)

    def _report_kill(self, worker: Child, streams: int) -> None:
        counts = _counts(one.target for one in self._claims)
        self._report(
            f"KILLED {worker.name} (process {worker.process.pid}) while it held "
            f"{len(self._claims)} claims: {counts or 'none'}; and {streams} streams"
        )
        if self._claims:
            longest = max(one.left_seconds for one in self._claims)
            self._report(f"they can be recovered when their leases expire, within {longest:.1f} s")

    async def _follow(self, instance_id: str, killed_at: datetime) -> None:
        waiting = {one.intent_id: one for one in self._claims}
        recovered_after: list[float] = []
        deadline = time.monotonic() + _RECOVERY_SECONDS
        while waiting and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                claimed = {one.intent_id for one in await self._queries.claims_of(instance_id)}
                rows = await self._queries.recoveries(instance_id, list(waiting), killed_at)
            except DatabaseUnavailable:
                continue
            for row in rows:
                self._report(_recovery_line(waiting.pop(row.intent_id), row))
                recovered_after.append(row.after_seconds)
            # No longer claimed, but not recovered either: the worker's last result arrived.
            for intent_id in waiting.keys() - claimed:
                claim = waiting.pop(intent_id)
                name = f"{claim.target} {short_id(intent_id)}"
                self._report(f"{name} was complete: its result had been recorded")
        self._report_recovery(recovered_after, list(waiting))

    def _report_recovery(self, after: Sequence[float], not_recovered: Sequence[UUID]) -> None:
        if after:
            between = f"{min(after):.1f} to {max(after):.1f} s"
            self._report(f"recovered {len(after)} claims {between} after the kill")
        for intent_id in not_recovered:
            self._report(f"NOT recovered within {_RECOVERY_SECONDS:.0f} s: {short_id(intent_id)}")


def _recovery_line(claim: ClaimRow, recovery: RecoveryRow) -> str:
    steps = _NEXT_STEP_IN_DOUBT if recovery.state == "IN_DOUBT" else _NEXT_STEP
    return (
        f"recovered {claim.target} {short_id(claim.intent_id)} "
        f"after {recovery.after_seconds:.1f} s: {recovery.state}, {steps[TARGETS[claim.target]]}"
    )


def _counts(values: Iterable[str]) -> str:
    return ", ".join(f"{count} {value}" for value, count in sorted(Counter(values).items()))

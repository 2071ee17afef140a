"""The play of `leasehold demo`: who enters when, and in which order they leave."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasehold.demo.audit import audit
from leasehold.demo.kill import KillScene
from leasehold.demo.read import Reader, Snapshot
from leasehold.demo.sandbox import TROUBLE, SandboxClient
from leasehold.demo.stage import START_SECONDS, Stage
from leasehold.demo.trickle import Trickle, contracts
from leasehold.domain.errors import DatabaseUnavailable, LeaseholdError
from leasehold.store.postgres.pool import PoolSettings
from leasehold.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from leasehold.demo.audit import Audit
    from leasehold.demo.signals import Interruption
    from leasehold.demo.view import Teller

VIEW_SECONDS = 0.5
# A quarantine, a few tries and a reserve for a busy machine.
SETTLE_SECONDS = 60.0
# The part of the time after which a worker is killed.
KILL_AFTER = 0.3
RATE_SECONDS = 10.0
# Impatient, so that the view says soon when the database is gone.
POOL = PoolSettings(
    application_name="leasehold demo", wait_seconds=2.0, statement_seconds=3.0, lock_seconds=2.0
)
LEDGER_ROWS = 40
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for. `seconds` is None where only a signal ends it."""

    seconds: float | None
    is_kill: bool
    workers: int
    rate_per_second: float


class Play:
    """One performance, from an empty database to the summary."""

    def __init__(
        self,
        plan: Plan,
        database_url: str,
        logs: Path,
        teller: Teller,
        mend: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._database_url = database_url
        self._logs = logs
        self._teller = teller
        self._mend = mend
        self._stage = Stage(logs, database_url, teller.say)
        self._acting: asyncio.Task[None] | None = None
        self._requests = 0
        self._api_url = ""
        self._is_settled = False

    async def perform(self, interruption: Interruption) -> Audit | None:
        """Play until the time is over or somebody interrupts; None: there is nothing to audit."""
        with interruption.told(self._interrupt):
            try:
                async with PostgresStore(self._database_url, POOL) as store:
                    return await self._perform(store)
            finally:
                await self._stage.stop()

    async def _perform(self, store: PostgresStore) -> Audit | None:
        urls: list[str] = []
        if not await self._completes(self._open(store, urls)):
            return None
        async with SandboxClient(urls[0]) as sandbox:
            trickle = Trickle(store, self._plan.rate_per_second)
            reader = Reader(store.pool)
            self._is_settled = await self._completes(self._play(reader, sandbox, trickle))
            self._teller.write("stopping: the API, the workers, the gateway, the database")
            await self._stage.stop_intake()
            await self._stage.stop_workers()
            if self._requests > 1:
                return None
            return await self._audit(reader, sandbox, trickle)

    def _interrupt(self) -> None:
        """Stop in order the first time, at once the second."""
        self._requests += 1
        if self._requests > 1:
            self._stage.kill_all()
        elif self._acting is not None:
            self._acting.cancel()

    async def _completes(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do a part of the play; false where it was interrupted. Raises what it raises."""
        self._acting = asyncio.create_task(work)
        if self._requests:
            self._acting.cancel()
        await asyncio.wait([self._acting])
        if self._acting.cancelled():
            return False
        self._acting.result()
        return True

    async def _open(self, store: PostgresStore, urls: list[str]) -> None:
        """Start the gateway, publish contracts for it, start the workers."""
        urls.append(await self._stage.start_sandbox())
        async with SandboxClient(urls[0]) as sandbox:
            await sandbox.set_faults(TROUBLE)
        for contract in contracts(urls[0]):
            await store.publish_contract(contract.target, contract.terms(), "demo")
        for _ in range(self._plan.workers):
            self._stage.start_worker()
        self._api_url = await self._stage.start_api()
        await self._wait_for_workers(Reader(store.pool))

    async def _wait_for_workers(self, reader: Reader) -> None:
        ends_at = time.monotonic() + START_SECONDS
        while True:
            self._stage.supervise()
            seen = {one.pid for one in await reader.instances() if one.is_alive}
            if {one.process.pid for one in self._stage.workers} <= seen:
                return
            if time.monotonic() > ends_at:
                raise LeaseholdError(f"the workers did not start: see the logs in {self._logs}")
            await asyncio.sleep(_POLL_SECONDS)

    async def _play(self, reader: Reader, sandbox: SandboxClient, trickle: Trickle) -> None:
        places = {
            "database": self._database_url,
            "API": self._api_url,
            "gateway": sandbox.url,
            "logs": str(self._logs),
        }
        with self._teller.playing(places):
            # Only the timeline comes to an end; the others can but fail.
            tasks = [
                asyncio.create_task(self._timeline(reader, sandbox, trickle)),
                asyncio.create_task(self._watch(reader, sandbox, trickle)),
                asyncio.create_task(trickle.run()),
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _timeline(self, reader: Reader, sandbox: SandboxClient, trickle: Trickle) -> None:
        seconds = self._plan.seconds
        if seconds is None:
            await asyncio.Event().wait()
            return
        scene = KillScene(self._stage, reader, sandbox, trickle, self._teller.say)
        if self._plan.is_kill:
            await asyncio.sleep(seconds * KILL_AFTER)
            await scene.play()
        await asyncio.sleep(max(0.0, seconds - self._teller.elapsed_seconds))
        trickle.close()
        self._teller.say("no more intents; waiting until each is finished, or held for a person")
        await self._settle(reader, trickle)
        await scene.tell_end()

    async def _settle(self, reader: Reader, trickle: Trickle) -> None:
        ends_at = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < ends_at:
            try:
                if trickle.is_quiet and await reader.unsettled() == 0:
                    return
            except DatabaseUnavailable:
                pass  # whoever watches mends it
            await asyncio.sleep(_POLL_SECONDS)
        self._teller.say(f"not all came to an end within {SETTLE_SECONDS:.0f} s")

    async def _watch(self, reader: Reader, sandbox: SandboxClient, trickle: Trickle) -> None:
        while True:
            self._stage.supervise()
            if self._teller.is_due:
                await self._show(reader, sandbox, trickle)
            await asyncio.sleep(VIEW_SECONDS)

    async def _show(self, reader: Reader, sandbox: SandboxClient, trickle: Trickle) -> None:
        try:
            snapshot = await self._snapshot(reader, sandbox, trickle)
        except DatabaseUnavailable:
            self._teller.say("the database does not answer; the workers do nothing until it does")
            await asyncio.to_thread(self._mend)
        except LeaseholdError as error:
            self._teller.say(str(error))  # a slow answer; a dead gateway is found by supervising
        else:
            self._teller.show(snapshot)

    async def _snapshot(self, reader: Reader, sandbox: SandboxClient, trickle: Trickle) -> Snapshot:
        rate_seconds = min(max(self._teller.elapsed_seconds, 1.0), RATE_SECONDS)
        return Snapshot(
            instances=await reader.instances(),
            leases=await reader.leases(),
            work=await reader.work(),
            finished_per_second=await reader.finished_per_second(rate_seconds),
            ledger=await reader.ledger(LEDGER_ROWS),
            effects=await sandbox.effects(),
            accepted=dict(trickle.accepted),
            elapsed_seconds=self._teller.elapsed_seconds,
        )

    async def _audit(self, reader: Reader, sandbox: SandboxClient, trickle: Trickle) -> Audit:
        """Compare what stands in the database with what happened at the gateway, and tell it."""
        found = audit(
            [one async for one in reader.all_intents()],
            await sandbox.effects_per_key(),
            trickle.accepted.total(),
            is_settled=self._is_settled,
        )
        self._teller.write("")
        for line in found.lines():
            self._teller.write(line)
        return found

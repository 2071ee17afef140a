"""One run of the demo: start everything, run the timeline, stop everything in order, audit."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasehold.demo.audit import audit
from leasehold.demo.kill import WorkerKill
from leasehold.demo.processes import START_SECONDS, Processes
from leasehold.demo.traffic import SOME_FAULTS, SandboxClient, Traffic, contracts
from leasehold.demo.view import Snapshot
from leasehold.domain.errors import DatabaseUnavailable, LeaseholdError
from leasehold.store.database import database_at
from leasehold.store.pool_settings import PoolSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence
    from pathlib import Path
    from types import FrameType

    from leasehold.demo.audit import Audit
    from leasehold.demo.view import View
    from leasehold.store.database import Database
    from leasehold.store.demo import DemoStore

VIEW_SECONDS = 0.5
# Long enough for a quarantine and several retries on a busy machine.
SETTLE_SECONDS = 60.0
# A worker is killed after this fraction of the time.
KILL_AFTER = 0.3
# The period over which the view computes its rate.
RATE_SECONDS = 10.0
LEDGER_ROWS = 40
# Short timeouts, so that the view reports a lost database soon.
POOL = PoolSettings(
    application_name="leasehold demo", wait_seconds=2.0, statement_seconds=3.0, lock_seconds=2.0
)
_POLL_SECONDS = 0.1
_CANCEL_SECONDS = 1.0


class Interrupts:
    """How the demo handles SIGINT, SIGTERM and SIGHUP; must be created in the main thread.

    | phase | a signal |
    |---|---|
    | before the event loop | raises KeyboardInterrupt |
    | while the event loop is created | is deferred: that cannot be interrupted cleanly |
    | while the demo runs | calls a function in the event loop, each time |
    | at the end | is ignored: stopping the database takes a bounded time |
    """

    def __init__(self) -> None:
        self._notify: Callable[[], None] | None = None
        self._is_ignoring = False
        self._is_deferring = False
        self._is_deferred = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)
        # With nohup, the demo must outlive its terminal.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._receive)

    def defer(self) -> None:
        """Defer signals from now on, until there is a function to call."""
        self._is_deferring = True

    @contextmanager
    def calling(self, function: Callable[[], None]) -> Generator[None]:
        """Call `function` in the running event loop for each signal; afterwards ignore signals."""
        loop = asyncio.get_running_loop()
        self._notify = lambda: loop.call_soon_threadsafe(function) and None
        if self._is_deferred:
            self._notify()
        try:
            yield
        finally:
            self._is_ignoring = True
            self._notify = None

    def interrupt(self) -> None:
        """Act as if a signal had arrived."""
        if self._is_ignoring:
            return
        if self._notify is not None:
            self._notify()
            return
        if self._is_deferring:
            self._is_deferred = True
            return
        self._is_ignoring = True
        raise KeyboardInterrupt

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.interrupt()


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of the command. `seconds` is None if only a signal ends the run."""

    seconds: float | None
    is_kill: bool
    workers: int
    rate_per_second: float
    shows_password: bool = False


class Demo:
    """Starts and stops the parts; the first interrupt stops in order, the second kills."""

    def __init__(
        self,
        options: DemoOptions,
        database_url: str,
        logs: Path,
        view: View,
        restart_database: Callable[[], None],
    ) -> None:
        self._options = options
        self._database_url = database_url
        self._logs = logs
        self._view = view
        self._restart_database = restart_database
        self._processes = Processes(logs, database_url, view.report)
        self._phase: asyncio.Task[None] | None = None
        self._interrupts = 0

    async def run(self, interrupts: Interrupts) -> Audit | None:
        """Run until the time is over or an interrupt; None if there is nothing to audit."""
        with interrupts.calling(self._interrupt):
            try:
                async with database_at(self._database_url, POOL) as database:
                    return await self._run(database)
            finally:
                await self._processes.stop()

    async def _run(self, database: Database) -> Audit | None:
        url = self._database_url
        shown = url.partition("?")[0] if self._options.shows_password else database.public_url
        addresses = {"database": shown}
        if not await self._completes(self._start(database, addresses)):
            return None
        async with SandboxClient(addresses["gateway"]) as sandbox:
            timeline = Timeline(
                options=self._options,
                processes=self._processes,
                queries=database.demo_store(),
                sandbox=sandbox,
                traffic=Traffic(database.store, self._options.rate_per_second),
                view=self._view,
                restart_database=self._restart_database,
            )
            password = f"in {self._logs.parent / 'password'}; --show-password shows it"
            if not self._options.shows_password:
                addresses["password"] = password
            with self._view.running(addresses | {"logs": str(self._logs)}):
                is_settled = await self._completes(timeline.run())
            self._view.write("stopping: the API, the workers, the gateway, the database")
            await self._processes.stop_api()
            await self._processes.stop_workers()
            if self._interrupts > 1:
                return None
            return await timeline.audit(is_settled=is_settled)

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            self._processes.kill_all()
        elif self._phase is not None:
            self._phase.cancel()

    async def _completes(self, phase: Coroutine[Any, Any, None]) -> bool:
        """Run a phase; return False if it was interrupted, and raise its error."""
        self._phase = asyncio.create_task(phase)
        if self._interrupts:
            self._phase.cancel()
        await asyncio.wait([self._phase])
        if self._phase.cancelled():
            return False
        self._phase.result()
        return True

    async def _start(self, database: Database, addresses: dict[str, str]) -> None:
        """Start the gateway, publish its contracts, start the workers and the API."""
        gateway_url = await self._processes.start_sandbox()
        async with SandboxClient(gateway_url) as sandbox:
            await sandbox.set_faults(SOME_FAULTS)
        for contract in contracts(gateway_url):
            await database.store.publish_contract(contract.target, contract.terms(), "demo")
        for _ in range(self._options.workers):
            self._processes.start_worker()
        addresses["API"] = await self._processes.start_api()
        addresses["gateway"] = gateway_url
        await self._wait_for_workers(database.demo_store())

    async def _wait_for_workers(self, queries: DemoStore) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            self._processes.supervise()
            registered = {one.pid for one in await queries.instances() if one.is_alive}
            if {one.process.pid for one in self._processes.workers} <= registered:
                return
            if time.monotonic() > deadline:
                raise LeaseholdError(f"the workers did not start: see the logs in {self._logs}")
            await asyncio.sleep(_POLL_SECONDS)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks until they have ended: `asyncio.wait_for` of Python 3.11 can lose one."""
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_CANCEL_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What happens between start and stop: traffic, the view, a kill, and waiting for the end."""

    options: DemoOptions
    processes: Processes
    queries: DemoStore
    sandbox: SandboxClient
    traffic: Traffic
    view: View
    restart_database: Callable[[], None]

    async def run(self) -> None:
        """Run until the time is over and every intent is finished or held."""
        # Only the first one returns; the others end by an error or when cancelled.
        tasks = [
            asyncio.create_task(self._follow_plan()),
            asyncio.create_task(self._watch()),
            asyncio.create_task(self.traffic.run()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _cancel(tasks)

    async def audit(self, *, is_settled: bool) -> Audit:
        """Compare the intents in the database with the effects at the gateway, and print it."""
        result = audit(
            [one async for one in self.queries.all_intents()],
            (await self.sandbox.effects()).per_key,
            self.traffic.enqueued.total(),
            is_settled=is_settled,
        )
        self.view.write("")
        for line in result.lines():
            self.view.write(line)
        return result

    async def _follow_plan(self) -> None:
        seconds = self.options.seconds
        if seconds is None:
            await asyncio.Event().wait()
            return
        kill = WorkerKill(
            self.processes, self.queries, self.sandbox, self.traffic, self.view.report
        )
        if self.options.is_kill:
            await asyncio.sleep(seconds * KILL_AFTER)
            await kill.run()
        await asyncio.sleep(max(0.0, seconds - self.view.elapsed_seconds))
        self.traffic.close()
        self.view.report("no more intents; waiting until each one is finished or held")
        await self._settle()
        await kill.report_end()

    async def _settle(self) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            try:
                if self.traffic.is_finished and await self.queries.unsettled() == 0:
                    return
            except DatabaseUnavailable:
                pass  # _show restarts it
            await asyncio.sleep(_POLL_SECONDS)
        self.view.report(f"some intents are still unfinished after {SETTLE_SECONDS:.0f} s")

    async def _watch(self) -> None:
        while True:
            self.processes.supervise()
            if self.view.is_due:
                await self._show()
            await asyncio.sleep(VIEW_SECONDS)

    async def _show(self) -> None:
        try:
            snapshot = await self._snapshot()
        except DatabaseUnavailable:
            self.view.report("the database does not answer; the workers wait for it")
            await asyncio.to_thread(self.restart_database)
        except LeaseholdError as error:
            self.view.report(str(error))  # a slow gateway; `supervise` detects a dead one
        else:
            self.view.show(snapshot)

    async def _snapshot(self) -> Snapshot:
        rate_seconds = min(max(self.view.elapsed_seconds, 1.0), RATE_SECONDS)
        return Snapshot(
            # Read first: an intent enqueued after this must not count as finished.
            enqueued=dict(self.traffic.enqueued),
            instances=await self.queries.instances(),
            leases=await self.queries.leases(),
            unfinished=await self.queries.unfinished(),
            finished_per_second=await self.queries.finished_per_second(rate_seconds),
            ledger=await self.queries.ledger(LEDGER_ROWS),
            effects=(await self.sandbox.effects()).per_target,
            elapsed_seconds=self.view.elapsed_seconds,
        )

"""The processes of `leasehold demo`: a gateway and workers, as a user would start them.

Each is in a session of its own, so that a Ctrl-C in the terminal reaches the demo alone: it decides
in which order they stop. Their logs go to files.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.config import PREFIX
from leasehold.domain.errors import LeaseholdError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

LEASE_SECONDS = 5.0
# What a lease of five seconds asks of a worker: to notice a lost database before the lease is over.
WORKER_SETTINGS: Mapping[str, str] = {
    "LEASE_SECONDS": f"{LEASE_SECONDS:g}",
    "HEARTBEAT_SECONDS": "1",
    "REAPER_SECONDS": "1",
    "SHUTDOWN_SECONDS": "3",
    "POLL_SECONDS": "0.5",
    "POOL_WAIT_SECONDS": "1",
    "STATEMENT_SECONDS": "1.5",
    "LOCK_SECONDS": "1",
    "IDLE_IN_TRANSACTION_SECONDS": "2",
    "CONNECT_SECONDS": "2",
    "LOG_FORMAT": "json",
}
# An API that only takes intents in: the workers submit them.
API_SETTINGS: Mapping[str, str] = {
    "HTTP_AUTH": "false",
    "EXECUTE": "false",
    "HTTP_DRAIN_SECONDS": "0",
    "LOG_FORMAT": "json",
}
API_PORT = 8080
START_SECONDS = 30.0
STOP_SECONDS = 8.0
# One that ends sooner than this after its start would do so again.
WELL_SECONDS = 5.0
REPLACE_SECONDS = 2.0
_POLL_SECONDS = 0.05
_LOG_LINES_SHOWN = 3
_SERVING = re.compile(r'"event": "server_started".*"url": "([^"]+)"')


@dataclass(slots=True, eq=False)
class Child:
    """One process and its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    started_at: float = field(default_factory=time.monotonic)

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    @property
    def how_it_ended(self) -> str:
        """How it ended, in words."""
        code = self.process.poll()
        if code is None:
            return "it runs"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def log_end(self) -> str:
        """Give the last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return " / ".join(lines[-_LOG_LINES_SHOWN:]) or "nothing"


class Stage:
    """Starts, watches and stops the processes of one demo."""

    def __init__(self, folder: Path, database_url: str, say: Callable[[str], None]) -> None:
        self.workers: list[Child] = []
        self.sandbox: Child | None = None
        self.api: Child | None = None
        self._folder = folder
        self._database_url = database_url
        self._say = say
        self._started_workers = 0
        self._dead_since: dict[Child, float] = {}

    async def start_sandbox(self) -> str:
        """Start the gateway, and give its address."""
        self.sandbox = sandbox = self._start("sandbox", "sandbox", {})
        ends_at = time.monotonic() + START_SECONDS
        while True:
            # The first line says where it is; a line is whole only with its end.
            first, ended, _ = sandbox.log.read_text().partition("\n")
            if ended and first.startswith("http://"):
                return first
            self._require_alive(sandbox)
            if time.monotonic() > ends_at:
                raise LeaseholdError(f"the sandbox did not start: see {sandbox.log}")
            await asyncio.sleep(_POLL_SECONDS)

    async def start_api(self) -> str:
        """Start the HTTP API, and give its address: its usual one, unless somebody is there."""
        for port in (API_PORT, 0):
            settings = {**API_SETTINGS, "HTTP_PORT": str(port)}
            self.api = api = self._start("api", "serve", settings)
            ends_at = time.monotonic() + START_SECONDS
            while api.is_alive and time.monotonic() < ends_at:
                if served := _SERVING.search(api.log.read_text()):
                    return served[1]
                await asyncio.sleep(_POLL_SECONDS)
            if "Address already in use" not in api.log_end():
                break
        self._require_alive(api)
        raise LeaseholdError(f"the API did not start: see {api.log}")

    def start_worker(self) -> Child:
        """Start one more worker; it reports itself in `leasehold.instances`."""
        self._started_workers += 1
        worker = self._start(f"worker {self._started_workers}", "worker", WORKER_SETTINGS)
        self.workers.append(worker)
        return worker

    def supervise(self) -> None:
        """Replace a worker that died; refuse to go on where that would not help."""
        for child in (self.sandbox, self.api):
            if child is not None:
                self._require_alive(child)
        for worker in [one for one in self.workers if not one.is_alive]:
            if worker not in self._dead_since:
                self._dead_since[worker] = time.monotonic()
                self._say(
                    f"{worker.name} (process {worker.process.pid}) died: "
                    f"{worker.how_it_ended}; a replacement follows"
                )
            if self._dead_since[worker] - worker.started_at < WELL_SECONDS:
                self._require_alive(worker)
            if time.monotonic() - self._dead_since[worker] >= REPLACE_SECONDS:
                self.workers.remove(worker)
                self._say(f"{self.start_worker().name} replaces {worker.name}")

    def kill(self, worker: Child) -> None:
        """Kill a worker as a machine does that loses its power, and leave it out from now on."""
        worker.process.kill()
        worker.process.wait()
        self.workers.remove(worker)

    def kill_all(self) -> None:
        """End everything without another word; for a second Ctrl-C."""
        for child in self._all():
            child.process.kill()

    async def stop_intake(self) -> None:
        """Let nobody hand anything in any more."""
        await _end([self.api] if self.api else [])

    async def stop_workers(self) -> None:
        """Let workers finish their calls and give back the rest."""
        await _end(self.workers)

    async def stop(self) -> None:
        """Stop all that still runs: workers first, so that none calls a gateway that is gone."""
        await _end(self.workers)
        await _end(self._all())

    def _all(self) -> list[Child]:
        others = [child for child in (self.api, self.sandbox) if child is not None]
        return [*self.workers, *others]

    def _start(self, name: str, command: str, settings: Mapping[str, str]) -> Child:
        # Settings that somebody exported for another deployment are not for these.
        environment = {key: value for key, value in os.environ.items() if key[:10] != PREFIX}
        environment |= {f"{PREFIX}{key}": value for key, value in settings.items()}
        environment[f"{PREFIX}DATABASE_URL"] = self._database_url
        log = self._folder / f"{name.replace(' ', '-')}.log"
        module = "leasehold.demo.child"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 (no shell, and every argument is ours)
                [sys.executable, "-m", module, str(os.getpid()), command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return Child(name, process, log)

    def _require_alive(self, child: Child) -> None:
        if not child.is_alive:
            raise LeaseholdError(
                f"the demo's {child.name} ended ({child.how_it_ended}); the end of {child.log}: "
                f"{child.log_end()}"
            )


async def _end(children: Iterable[Child]) -> None:
    """Ask for an orderly end, and kill what does not come to one."""
    living = [child for child in children if child.is_alive]
    for child in living:
        child.process.send_signal(signal.SIGTERM)
    ends_at = time.monotonic() + STOP_SECONDS
    while any(child.is_alive for child in living):
        if time.monotonic() > ends_at:
            for child in living:
                child.process.kill()
                child.process.wait()
        await asyncio.sleep(_POLL_SECONDS)

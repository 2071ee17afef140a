"""The child processes of the demo: a sandbox gateway, an API and workers, as a user starts them.

Each child has its own session, so Ctrl-C in the terminal reaches only the demo, which stops the
children in order. Each child asks the kernel for a SIGTERM when the demo dies, so that even a demo
killed with SIGKILL leaves no child behind (Linux only). Their logs go to files.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.domain.errors import LeaseholdError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

LEASE_SECONDS = 5.0
# Short enough for a worker to notice a lost database before its lease of 5 seconds expires.
WORKER_SETTINGS: Mapping[str, str] = {
    "LEASE_SECONDS": f"{LEASE_SECONDS:g}",
    "STREAM_CLAIM_SECONDS": f"{LEASE_SECONDS:g}",
    "STREAM_GRACE_SECONDS": f"{LEASE_SECONDS:g}",
    "HEARTBEAT_SECONDS": "1",
    "REAPER_SECONDS": "1",
    "SHUTDOWN_SECONDS": "3",
    "POLL_SECONDS": "0.5",
    "POOL_WAIT_SECONDS": "1",
    "STATEMENT_SECONDS": "1.2",
    "LOCK_SECONDS": "1",
    "IDLE_IN_TRANSACTION_SECONDS": "2",
    "CONNECT_SECONDS": "2",
    "LOG_FORMAT": "json",
}
# The API only accepts intents; the workers submit them.
API_SETTINGS: Mapping[str, str] = {
    "HTTP_AUTH": "false",
    "EXECUTE": "false",
    "HTTP_DRAIN_SECONDS": "0",
    "LOG_FORMAT": "json",
}
API_PORT = 8080
START_SECONDS = 30.0
STOP_SECONDS = 8.0
# A worker that dies sooner than this after its start is broken, and is not replaced.
HEALTHY_SECONDS = 5.0
REPLACE_SECONDS = 2.0
_POLL_SECONDS = 0.05
_LOG_LINES_SHOWN = 3
_API_STARTED = re.compile(r'"event": "server_started".*"url": "([^"]+)"')
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True, eq=False)
class Child:
    """One child process and its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    started_at: float = field(default_factory=time.monotonic)

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    @property
    def end(self) -> str:
        """How it ended: a signal or an exit code."""
        code = self.process.poll()
        if code is None:
            return "running"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def last_log_lines(self) -> str:
        """Return the last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return " / ".join(lines[-_LOG_LINES_SHOWN:]) or "(empty)"


class Processes:
    """Starts, watches and stops the children of one demo."""

    def __init__(self, folder: Path, database_url: str, report: Callable[[str], None]) -> None:
        self.workers: list[Child] = []
        self.sandbox: Child | None = None
        self.api: Child | None = None
        self._folder = folder
        self._database_url = database_url
        self._report = report
        self._workers_started = 0
        self._dead_since: dict[Child, float] = {}

    async def start_sandbox(self) -> str:
        """Start the gateway; return its URL."""
        self.sandbox = sandbox = self._start("sandbox", "sandbox", {})
        deadline = time.monotonic() + START_SECONDS
        while True:
            # The first line is its URL; without a newline it is not complete yet.
            first, newline, _ = sandbox.log.read_text().partition("\n")
            if newline and first.startswith("http://"):
                return first
            _require_alive(sandbox)
            if time.monotonic() > deadline:
                raise LeaseholdError(f"the sandbox did not start: see {sandbox.log}")
            await asyncio.sleep(_POLL_SECONDS)

    async def start_api(self) -> str:
        """Start the HTTP API; return its URL. If its usual port is taken, use a free one."""
        for port in (API_PORT, 0):
            settings = {**API_SETTINGS, "HTTP_PORT": str(port)}
            self.api = api = self._start("api", "serve", settings)
            deadline = time.monotonic() + START_SECONDS
            while api.is_alive and time.monotonic() < deadline:
                if started := _API_STARTED.search(api.log.read_text()):
                    return started[1]
                await asyncio.sleep(_POLL_SECONDS)
            if "Address already in use" not in api.last_log_lines():
                break
        _require_alive(api)
        raise LeaseholdError(f"the API did not start: see {api.log}")

    def start_worker(self) -> Child:
        """Start one more worker; it registers itself in the table `instances`."""
        self._workers_started += 1
        worker = self._start(f"worker {self._workers_started}", "worker", WORKER_SETTINGS)
        self.workers.append(worker)
        return worker

    def supervise(self) -> None:
        """Replace a dead worker. Raise if another child died, or a worker died at its start."""
        for child in (self.sandbox, self.api):
            if child is not None:
                _require_alive(child)
        for worker in [one for one in self.workers if not one.is_alive]:
            if worker not in self._dead_since:
                self._dead_since[worker] = time.monotonic()
                self._report(
                    f"{worker.name} (process {worker.process.pid}) died: {worker.end}; "
                    f"a replacement starts in {REPLACE_SECONDS:g} s"
                )
            if self._dead_since[worker] - worker.started_at < HEALTHY_SECONDS:
                _require_alive(worker)
            if time.monotonic() - self._dead_since[worker] >= REPLACE_SECONDS:
                self.workers.remove(worker)
                self._report(f"{self.start_worker().name} replaces {worker.name}")

    def kill(self, worker: Child) -> None:
        """Kill a worker with SIGKILL, as a power failure would; do not replace it."""
        worker.process.kill()
        worker.process.wait()
        self.workers.remove(worker)

    def kill_all(self) -> None:
        """Kill every child with SIGKILL."""
        for child in self._all():
            child.process.kill()

    async def stop_api(self) -> None:
        """Stop the API, so that no more intents arrive."""
        await _stop([self.api] if self.api else [])

    async def stop_workers(self) -> None:
        """Stop the workers: they finish their calls and give back their other claims."""
        await _stop(self.workers)

    async def stop(self) -> None:
        """Stop every child; the workers first, because they call the gateway."""
        await _stop(self.workers)
        await _stop(self._all())

    def _all(self) -> list[Child]:
        others = [child for child in (self.api, self.sandbox) if child is not None]
        return [*self.workers, *others]

    def _start(self, name: str, command: str, settings: Mapping[str, str]) -> Child:
        from leasehold.config import PREFIX  # imported late: children of this module start faster

        # Settings exported for another deployment are not for the demo.
        environment = {key: value for key, value in os.environ.items() if key[:10] != PREFIX}
        environment |= {f"{PREFIX}{key}": value for key, value in settings.items()}
        environment[f"{PREFIX}DATABASE_URL"] = self._database_url
        log = self._folder / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 (no shell, and every argument is ours)
                [sys.executable, "-m", "leasehold.demo.processes", str(os.getpid()), command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return Child(name, process, log)


def _require_alive(child: Child) -> None:
    if not child.is_alive:
        raise LeaseholdError(
            f"the {child.name} of the demo ended ({child.end}); last lines of {child.log}: "
            f"{child.last_log_lines()}"
        )


async def _stop(children: Iterable[Child]) -> None:
    """Send SIGTERM and wait; kill those that do not end in time."""
    alive = [child for child in children if child.is_alive]
    for child in alive:
        child.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while any(child.is_alive for child in alive):
        if time.monotonic() > deadline:
            for child in alive:
                child.process.kill()
                child.process.wait()
        await asyncio.sleep(_POLL_SECONDS)


def main() -> None:
    """Run in a child: `python -m leasehold.demo.processes PARENT_PID COMMAND`."""
    parent, *arguments = sys.argv[1:]
    _end_with_parent(int(parent))
    from leasehold.cli.main import app

    app(args=arguments, prog_name="leasehold")


def _end_with_parent(parent: int) -> None:
    """Ask the kernel for a SIGTERM at the parent's death; exit if the parent is dead already.

    The kernel watches the thread that started us, so that must be the parent's main thread.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

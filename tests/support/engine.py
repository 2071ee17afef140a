"""Worker processes of a test, and `until`, which polls for a condition with a deadline."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests.support.forked_process import ForkedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from leasehold.sandbox import Sandbox
    from tests.support.database import Database
    from tests.support.outbox import Outbox

Found = TypeVar("Found")

ROOT = Path(__file__).parents[2]
# Long enough for a busy machine.
WAIT_SECONDS = 40.0
LEASE_SECONDS = 2.0
# Worker settings that fit a lease of two seconds.
FAST = {
    "LEASEHOLD_HEARTBEAT_SECONDS": "0.4",
    "LEASEHOLD_REAPER_SECONDS": "0.3",
    "LEASEHOLD_SHUTDOWN_SECONDS": "2",
    "LEASEHOLD_POLL_SECONDS": "0.2",
    "LEASEHOLD_CONTRACTS_SECONDS": "0.3",
    "LEASEHOLD_POOL_WAIT_SECONDS": "0.4",
    "LEASEHOLD_STATEMENT_SECONDS": "0.5",
    "LEASEHOLD_LOCK_SECONDS": "0.3",
    "LEASEHOLD_IDLE_IN_TRANSACTION_SECONDS": "1",
    "LEASEHOLD_CONNECT_SECONDS": "2",
    "LEASEHOLD_LOG_FORMAT": "json",
}
# The part of them that bounds database calls, for an Instance in the test's own process.
FAST_CALLS = {
    name.removeprefix("LEASEHOLD_").lower(): float(FAST[name])
    for name in FAST
    if name.endswith(("POOL_WAIT_SECONDS", "STATEMENT_SECONDS", "LOCK_SECONDS"))
}


async def until(look: Callable[[], Found], *, context: Callable[[], object] | None = None) -> Found:
    """Poll `look` until it returns something true, and return that; fail after WAIT_SECONDS."""
    ends_at = time.monotonic() + WAIT_SECONDS
    while not (seen := look()):
        if time.monotonic() > ends_at:
            raise AssertionError(f"timed out waiting for {look}: {context() if context else ''}")
        await asyncio.sleep(0.02)
    return seen


class Worker:
    """A process that runs `leasehold worker`, or a worker with a fault point armed."""

    def __init__(
        self,
        database_url: str,
        log: Path,
        *arguments: str,
        module: str,
        environment: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        """With `folder`, run the installed command there: it does not find our tests."""
        self.log = log
        log.touch()
        given = os.environ | FAST | {"LEASEHOLD_DATABASE_URL": database_url} | dict(environment)
        self.process: ForkedProcess | subprocess.Popen[bytes]
        if folder is None and not any(name.startswith("PYTHON") for name in environment):
            files = [Path(os.devnull), log, log]
            self.process = ForkedProcess(module, arguments, given, ROOT, files)
            return
        command = [sys.executable, "-m", module]
        if folder is not None:
            command = [str(Path(sys.executable).parent / "leasehold")]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, *arguments], cwd=folder or ROOT, env=given, stdout=out, stderr=out
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return its log entries, all or those of one event."""
        found: list[dict[str, Any]] = []
        for line in self.log.read_text().splitlines(keepends=True):
            if line.startswith("{") and line.endswith("\n"):
                entry = json.loads(line)
                if event in (None, entry.get("event")):
                    found.append(entry)
        return found

    async def started(self) -> str:
        """Wait until it has started; return its worker id."""
        lines = await until(lambda: self.lines("worker_started") or self._fail_if_dead())
        return lines[0]["worker_id"]

    async def logged(self, event: str) -> dict[str, Any]:
        return (await until(lambda: self.lines(event), context=self.log.read_text))[0]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Wait until it exits; return the exit code."""
        await until(lambda: self.process.poll() is not None, context=self.log.read_text)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)

    def _fail_if_dead(self) -> list[dict[str, Any]]:
        assert self.process.poll() is None, self.log.read_text()
        return []


class Engine:
    """Starts workers on the test's database, with the sandbox as gateway."""

    def __init__(self, database: Database, outbox: Outbox, sandbox: Sandbox, folder: Path) -> None:
        self.database = database
        self.outbox = outbox
        self.sandbox = sandbox
        self._folder = folder
        self._workers: list[Worker] = []

    def publish(self, target: str = "sms", guarantee: str = "keyed", **terms: Any) -> int:
        """Publish a contract with the sandbox as gateway and short timings."""
        gateway: dict[str, Any] = {
            "kind": "http",
            "url": f"{self.sandbox.url}/{guarantee}",
            "allow_private": True,
        }
        if guarantee == "lookup":
            gateway["lookup_url"] = f"{self.sandbox.url}/{guarantee}/{{key}}"
        given: dict[str, Any] = {
            "guarantee": guarantee,
            "gateway": gateway,
            "lease_seconds": LEASE_SECONDS,
            "call_timeout_seconds": 1.5,
            "connect_timeout_seconds": 1.0,
            "retry": {"first_seconds": 0.1, "longest_seconds": 0.2},
        }
        if terms.get("scope") == "cluster":
            given["quarantine_seconds"] = 2 * LEASE_SECONDS
        return self.outbox.publish(target, **(given | terms))

    def worker(
        self,
        *arguments: str,
        url: str | None = None,
        fault: str | None = None,
        folder: Path | None = None,
        **environment: str,
    ) -> Worker:
        """Start a worker; `fault` is `<fault point>:<action>`, see faulty_worker."""
        module = "leasehold" if fault is None else "tests.support.faulty_worker"
        more = {
            name.upper()
            if name.startswith(("test_", "python"))
            else f"LEASEHOLD_{name.upper()}": value
            for name, value in environment.items()
        }
        if fault is not None:
            more["TEST_FAULT"] = fault
        started = Worker(
            url or self.database.url_as("executor"),
            self._folder / f"worker-{len(self._workers)}.log",
            *(() if fault else ("worker",)),
            *arguments,
            module=module,
            environment=more,
            folder=folder,
        )
        self._workers.append(started)
        return started

    def assert_none_failed(self) -> bool:
        """Fail at once if a worker has failed, instead of waiting for it."""
        for worker in self._workers:
            assert worker.process.poll() in (None, 0, -signal.SIGKILL), worker.log.read_text()
        return True

    def statuses(self, intent_ids: list[UUID]) -> list[str]:
        rows = self.database.execute(
            "SELECT status FROM leasehold.intent_status WHERE intent_id = ANY (%s)", [intent_ids]
        )
        return [row["status"] for row in rows]

    async def until_status(self, intent_ids: list[UUID], status: str = "accepted") -> None:
        """Wait until all intents have this status; fail when none changes for WAIT_SECONDS."""

        def seen() -> Counter[str]:
            self.assert_none_failed()
            return Counter(self.statuses(intent_ids))

        def context() -> object:
            return [before, *(one.log.read_text() for one in self._workers)]

        before = seen()
        while before.keys() != {status}:
            before = await until(
                lambda before=before: (now := seen()) != before and now, context=context
            )

    async def until_claimed(self, intent_id: UUID) -> dict[str, Any]:
        return await until(
            lambda: (row := self.outbox.pending(intent_id)) and row["claimed_by"] and row,
            context=lambda: [one.log.read_text() for one in self._workers],
        )

    async def until_in_flight(self, worker_id: str, count: int) -> None:
        """Wait until a worker reports this many calls in flight."""
        await until(
            lambda: self.database.execute(
                "SELECT 1 FROM leasehold.instances"
                " WHERE instance_id = %s AND (detail ->> 'in_flight')::integer = %s",
                [worker_id, count],
            ),
            context=lambda: [one.log.read_text() for one in self._workers],
        )

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

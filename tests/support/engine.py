"""Worker processes of a test, and `until`, which polls for a condition with a deadline."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
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
# Longer than any test: nothing expires by itself, and no call ends by its timeout.
LEASE_SECONDS = 60.0
CALLS = {"call_timeout_seconds": 50.0, "connect_timeout_seconds": 10.0}
# For the few tests in which time passes: a lease of two seconds, and calls that fit it.
SHORT_LEASE_SECONDS = 2.0
SHORT_LEASE = {
    "lease_seconds": SHORT_LEASE_SECONDS,
    "call_timeout_seconds": 1.5,
    "connect_timeout_seconds": 1.0,
}
# Worker settings that fit it.
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
# Settings of the workers of an engine: no database call fails because the machine is busy.
PATIENT = {
    "shutdown_seconds": "20",
    "pool_wait_seconds": "8",
    "statement_seconds": "10",
    "lock_seconds": "9",
    "idle_in_transaction_seconds": "20",
    "connect_seconds": "10",
}
# The part of them that bounds database calls, for an Instance in the test's own process.
PATIENT_CALLS = {
    name: float(PATIENT[name])
    for name in ("pool_wait_seconds", "statement_seconds", "lock_seconds")
}
# For a worker whose database stops answering.
CUT_OFF = {"pool_wait_seconds": "1", "statement_seconds": "2", "lock_seconds": "1"}
# For workers with leases of two seconds.
SHORT_CALLS = {
    "shutdown_seconds": "2",
    "pool_wait_seconds": "0.4",
    "statement_seconds": "0.5",
    "lock_seconds": "0.3",
    "idle_in_transaction_seconds": "1",
    "connect_seconds": "2",
}


async def until(look: Callable[[], Found], *, context: Callable[[], object] | None = None) -> Found:
    """Poll `look` until it returns something true, and return that; fail after WAIT_SECONDS.

    Looking takes a third of the time at most: the sandbox answers in the same event loop.
    """
    looked_at = time.monotonic()
    ends_at = looked_at + WAIT_SECONDS
    while not (seen := look()):
        now = time.monotonic()
        if now > ends_at:
            raise AssertionError(f"timed out waiting for {look}: {context() if context else ''}")
        await asyncio.sleep(max(0.02, 2 * (now - looked_at)))
        looked_at = time.monotonic()
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

    async def fault_after(self, look: Callable[[], Found]) -> Found:
        """Let a fault that comes during a request happen when this has been seen."""
        seen = await until(look, context=self.log.read_text)
        self.log.with_suffix(".seen").touch()
        await self.logged("fault")
        return seen

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wake_later(self) -> None:
        """Continue a stopped worker with the fault `none:stop:<seconds>`: so long has passed."""
        self.send(signal.SIGUSR1)
        self.send(signal.SIGCONT)

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
        """Publish a contract with the sandbox as gateway."""
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
            **CALLS,
            "retry": {"first_seconds": 0.1, "longest_seconds": 0.2},
        }
        return self.outbox.publish(target, **(given | terms))

    def worker(
        self,
        *arguments: str,
        url: str | None = None,
        fault: str | None = None,
        folder: Path | None = None,
        module: str = "leasehold",
        **environment: str,
    ) -> Worker:
        """Start a worker; `fault` is `<fault point>:<action>`, see faulty_worker."""
        module = module if fault is None else "tests.support.faulty_worker"
        log = self._folder / f"worker-{len(self._workers)}.log"
        more = {
            name.upper()
            if name.startswith(("test_", "python"))
            else f"LEASEHOLD_{name.upper()}": value
            for name, value in (PATIENT | environment).items()
        }
        if fault is not None:
            more |= {"TEST_FAULT": fault, "TEST_FAULT_SEEN": str(log.with_suffix(".seen"))}
        started = Worker(
            url or self.database.url_as("executor"),
            log,
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

    async def until_status(self, intent_ids: list[UUID], *wanted: str) -> None:
        """Wait until all intents have one of these statuses, by default `accepted`; fail when none
        changes for WAIT_SECONDS.
        """

        def seen() -> dict[str, int]:
            self.assert_none_failed()
            rows = self.database.execute(
                "SELECT status, count(*) AS intents FROM leasehold.intent_status"
                " WHERE intent_id = ANY (%s) GROUP BY status",
                [intent_ids],
            )
            return {row["status"]: row["intents"] for row in rows}

        def context() -> object:
            return [before, *(one.log.read_text() for one in self._workers)]

        before = seen()
        while not before.keys() <= set(wanted or ["accepted"]):
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

    def expire_held(self, holder_id: str, *, grace: bool = True) -> None:
        """Let all leases and claims of a dead or stopped holder end now.

        With grace=False, the second expiry of its streams does not come yet.
        """
        self.database.owner_execute(
            "UPDATE leasehold.leases SET expires_at = clock_timestamp() - interval '1 second',"
            " grace_expires_at = CASE WHEN stream IS NULL OR %s"
            "   THEN clock_timestamp() - interval '1 second' ELSE grace_expires_at END"
            " WHERE holder_id = %s AND expires_at > '-infinity'",
            [grace, holder_id],
        )
        self.database.owner_execute(
            # Locked by id, as everybody does.
            "WITH held AS MATERIALIZED (SELECT intent_id FROM leasehold.outbox_pending"
            "  WHERE claimed_by = %s ORDER BY intent_id FOR NO KEY UPDATE)"
            " UPDATE leasehold.outbox_pending AS pending"
            "   SET lease_expires_at = clock_timestamp() - interval '1 second'"
            "  FROM held WHERE pending.intent_id = held.intent_id",
            [holder_id],
        )

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

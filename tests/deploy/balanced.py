"""HAProxy with its real configuration in front of three instances with their own database."""

from __future__ import annotations

import asyncio
import csv
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg.conninfo import make_conninfo

from leasehold.embedded.server import EmbeddedPostgres
from tests.support.api import make_token
from tests.support.database import Database
from tests.support.engine import until
from tests.support.outbox import Outbox
from tests.support.ram_disk import ram_disk
from tests.support.required_programs import find_program
from tests.support.serve_process import Serving
from tests.support.servers import Server, available_binaries

if TYPE_CHECKING:
    from uuid import UUID

    from leasehold.sandbox import Sandbox

DEPLOY = Path(__file__).parents[2] / "deploy"
INSTANCES = 3
LEASE_SECONDS = 5.0
DRAIN_SECONDS = 3.0
PASSWORD = "of a throwaway server"
# An acknowledged commit must survive a crash of the server, but not one of the machine.
SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "150"}
ENVIRONMENT = {
    "http_drain_seconds": str(DRAIN_SECONDS),
    "heartbeat_seconds": "1",
    "reaper_seconds": "0.5",
    "shutdown_seconds": "4",
    "pool_size_max": "5",
    "pool_wait_seconds": "1",
    "statement_seconds": "1.2",
    "lock_seconds": "1",
    "idle_in_transaction_seconds": "2",
    "cluster_lease_seconds": "10",
    "cluster_renew_seconds": "2",
    "cluster_acquire_seconds": "0.5",
    "log_level": "warning",
}


class Balanced:
    """The database, the instances and HAProxy, as a context manager."""

    def __init__(self) -> None:
        # As root, the server runs as another user, who must be able to enter this folder.
        self.folder = Path(tempfile.mkdtemp(prefix="leasehold-balanced-", dir=ram_disk()))
        self.folder.chmod(0o711)
        binaries = next(iter(available_binaries().values()))
        self._postgres = EmbeddedPostgres(
            self.folder / "data", binaries=binaries, settings=SETTINGS
        )
        self._version = binaries.version
        self._ports = free_ports(INSTANCES + 2)
        self.url = f"http://127.0.0.1:{self._ports[0]}"
        self.instances: list[Serving] = []
        self._starts = 0
        self._haproxy: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._postgres.start()
        server = Server(self._postgres.url, self._version)
        self.database = Database(server, server.create_database())
        self.outbox = Outbox(self.database)
        self.database.execute((DEPLOY / "instance.sql").read_text())
        self.database.execute(f"ALTER ROLE leasehold_instance PASSWORD '{PASSWORD}'")
        self.token = make_token(self.database, "ingest", "read", "operate", name="balanced")
        self.instances = [self._started(number) for number in range(INSTANCES)]
        self._haproxy = start_haproxy(self.folder, self._ports)
        return self

    def __exit__(self, *_: object) -> None:
        if self._haproxy is not None:
            self._haproxy.kill()
            self._haproxy.wait(10)
        for one in self.instances:
            one.close()
        with suppress(psycopg.Error):
            self.database.close()
        self.database.server.close()
        self._postgres.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def publish(self, target: str, sandbox: Sandbox, **terms: Any) -> None:
        """Publish a contract with a keyed gateway."""
        given: dict[str, Any] = {
            "guarantee": "keyed",
            "gateway": {"kind": "http", "url": f"{sandbox.url}/keyed", "allow_private": True},
            "lease_seconds": LEASE_SECONDS,
            "call_timeout_seconds": 3.0,
            "connect_timeout_seconds": 1.0,
            "concurrency": 20,
            "retry": {"first_seconds": 0.1, "longest_seconds": 0.5},
        }
        self.outbox.publish(target, **(given | terms))

    async def ready(self) -> None:
        """Wait until HAProxy sends requests to every instance."""
        await until(
            lambda: self.revive() or set(self.states().values()) == {"UP"}, context=self.logs
        )

    def revive(self) -> None:
        """Restart instances that found no database at their start, as systemd would."""
        for number, one in enumerate(self.instances):
            if one.process.poll() is not None:
                self.restart(number)

    def states(self) -> dict[str, str]:
        """The state of each instance according to HAProxy."""
        assert self._haproxy is None or self._haproxy.poll() is None, self.logs()
        return states(self.folder)

    def stats(self) -> list[dict[str, str]]:
        """HAProxy's statistics of each instance."""
        return stats(self.folder)

    def restart(self, number: int) -> None:
        """Restart an instance that has ended."""
        self.instances[number].close()
        self.instances[number] = self._started(number)

    def instance_url(self, number: int) -> str:
        """The URL of an instance, past HAProxy."""
        return f"http://127.0.0.1:{self._port(number)}"

    def kill(self, number: int) -> None:
        """Kill an instance."""
        self.instances[number].send(signal.SIGKILL)
        self.instances[number].process.wait(10)

    async def crash_database(self) -> None:
        """Crash the database and start it again."""
        [written] = (self.folder / "data").rglob("postmaster.pid")
        os.kill(int(written.read_text().splitlines()[0]), signal.SIGQUIT)
        await asyncio.to_thread(self._postgres.ensure_running)
        self.database._cached.clear()  # these connections are broken
        self.outbox = Outbox(self.database)
        await until(self._is_database_back)

    def unfinished(self, ids: list[UUID]) -> list[dict[str, Any]]:
        """Those of these intents that are not accepted yet, according to the database."""
        return self.database.execute(
            "SELECT asked.id, s.status FROM unnest(%s::uuid[]) AS asked (id)"
            "  LEFT JOIN leasehold.intent_status s ON s.intent_id = asked.id"
            " WHERE s.status IS DISTINCT FROM 'accepted'",
            [ids],
        )

    def logs(self) -> str:
        """The ends of all logs, for a failed test."""
        logs = [self.folder / "haproxy.log", *sorted(self.folder.glob("serve-*.log"))]
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in logs)

    def _is_database_back(self) -> bool:
        try:
            return bool(self.database.execute("SELECT 1 AS one"))
        except psycopg.OperationalError:
            return False

    def _started(self, number: int) -> Serving:
        self._starts += 1
        return Serving(
            self.database,
            self.folder / f"serve-{number}-{self._starts}.log",
            *("--port", str(self._port(number))),
            url=make_conninfo(self.database.url, user="leasehold_instance", password=PASSWORD),
            **ENVIRONMENT,
        )

    def _port(self, number: int) -> int:
        return self._ports[2 + number]


def start_haproxy(
    folder: Path, ports: list[int], config: Path = DEPLOY / "haproxy.cfg"
) -> subprocess.Popen[bytes]:
    """Start HAProxy: its own two ports come first, then one for each instance."""
    listen, status_listen, *instances = [f"127.0.0.1:{port}" for port in ports]
    environment = {
        "LISTEN": listen,
        "STATUS_LISTEN": status_listen,
        "ADMIN_SOCKET": str(folder / "admin.sock"),
    }
    for number, address in enumerate(instances, start=1):
        environment[f"INSTANCE_{number}"] = address
    with (folder / "haproxy.log").open("wb") as log:
        return subprocess.Popen(
            [str(find_program("haproxy")), "-f", config],
            env=environment,
            stdout=log,
            stderr=log,
        )


def states(folder: Path) -> dict[str, str]:
    """The state of each instance according to the HAProxy of this folder."""
    return {row["svname"]: row["status"].split()[0] for row in stats(folder)}


def stats(folder: Path) -> list[dict[str, str]]:
    """The statistics of each instance of the HAProxy of this folder."""
    address = folder / "admin.sock"
    if not address.exists():
        return []  # it is still starting
    with socket.socket(socket.AF_UNIX) as admin:
        admin.settimeout(10)
        admin.connect(str(address))
        admin.sendall(b"show stat\n")
        text = b"".join(iter(lambda: admin.recv(65536), b"")).decode()
    rows = csv.DictReader(text.removeprefix("# ").splitlines())
    return [row for row in rows if row["pxname"] == "instances" and row["type"] == "2"]


def free_ports(count: int) -> list[int]:
    """Ports outside the ephemeral range, so that no connection takes one during a restart."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(15_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found

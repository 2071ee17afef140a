"""A private PostgreSQL with the current schema, and pgbench runs against it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from leasehold.embedded.binaries import find_binaries
from leasehold.embedded.server import EmbeddedPostgres
from leasehold.store.postgres.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.scripts import Script

_NO_FAILURES = "number of failed transactions: 0"

# Durable as in production (fsync and synchronous_commit stay on); everything fits in memory.
SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "max_connections": "100",
}
# A server with less memory than its tables need: pages are written out and read again.
SMALL_SETTINGS = SETTINGS | {"shared_buffers": "256MB", "max_wal_size": "1GB"}


class BenchmarkServer:
    """One server, one connection for setup, and pgbench runs against it."""

    def __init__(self, postgres: EmbeddedPostgres, pgbench: Path) -> None:
        self.url = postgres.url
        self.pgbench = pgbench
        self.connection = psycopg.connect(self.url, autocommit=True)

    def execute(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement, params or None)
        return cursor.fetchall() if cursor.description else []

    def transactions_per_second(
        self, script: Script, *, transactions: int, clients: int = 1
    ) -> float:
        """Run a pgbench script a fixed number of times per client."""
        variables = [f"--define={name}={value}" for name, value in script.variables.items()]
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
            file.write(script.text)
            file.flush()
            command = [
                *(str(self.pgbench), "-n", "-M", "prepared", "-f", file.name, *variables),
                *("-c", str(clients), "-j", str(min(clients, 2)), "-t", str(transactions)),
                self.url,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.search(r"^tps = ([0-9.]+)", done.stdout, re.MULTILINE)
        if done.returncode != 0 or found is None or _NO_FAILURES not in done.stdout:
            raise RuntimeError(f"pgbench failed: {done.stdout}\n{done.stderr}\n{script.text}")
        return float(found.group(1))

    def version(self) -> str:
        return self.execute("SHOW server_version")[0][0]


@contextmanager
def benchmark_server(settings: dict[str, str] = SETTINGS) -> Iterator[BenchmarkServer]:
    """A fresh server in a temporary folder, removed afterwards."""
    binaries = find_binaries()
    # As root, the server runs as another user, who must be able to enter the folder.
    folder = Path(tempfile.mkdtemp(prefix="leasehold-bench-"))
    folder.chmod(0o711)
    postgres = EmbeddedPostgres(folder / "postgres", binaries=binaries, settings=settings)
    try:
        postgres.start()
        migrate(postgres.url)
        yield BenchmarkServer(postgres, binaries.bin_dir / "pgbench")
    finally:
        postgres.stop()
        shutil.rmtree(folder, ignore_errors=True)

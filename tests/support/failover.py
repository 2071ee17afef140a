"""PostgreSQL clusters that a test copies, promotes and loses, and dumps of a database.

They run at the port that the test says, so that a copy can take the place of the original.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import make_conninfo

from leasehold.embedded.account import choose_account
from leasehold.embedded.binaries import initialize_cluster, runnable_programs
from tests.support.ram_disk import ram_disk
from tests.support.servers import PASSWORD, SETTINGS, available_binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 60
_POLL_SECONDS = 0.02


class Cluster:
    """One data folder, and the server on it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self._binaries = next(iter(available_binaries().values()))
        self._account = choose_account(folder / "cluster")
        self._programs = runnable_programs(self._binaries, self._account, folder)

    @classmethod
    def create(cls, folder: Path) -> Cluster:
        """Create a cluster with an empty database `postgres`."""
        folder.mkdir()
        folder.chmod(0o755)
        cluster = cls(folder, _free_port())
        staging = folder / "staging"
        staging.mkdir()
        created = initialize_cluster(
            cluster._programs,
            cluster._binaries.version,
            cluster._account,
            staging,
            PASSWORD,
            durable=False,
        )
        created.rename(cluster._data)
        return cluster

    @property
    def url(self) -> str:
        """The URL of the database `postgres`, as superuser."""
        return make_conninfo(
            host="127.0.0.1", port=self.port, dbname="postgres", user="leasehold", password=PASSWORD
        )

    def start(self) -> None:
        """Start the server unless it runs, and wait until it answers."""
        if self._is_running():
            return
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        settings = SETTINGS | {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "shared_buffers": "16MB",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [self._programs / "postgres", "-D", self._data, *options]
        with (self.folder / "server.log").open("ab") as log:
            # The shell exits at once, so the server is not our child.
            self._account.run(["/bin/sh", "-c", '"$@" &', "sh", *command], output=log.fileno())
        wait_until(self._answers, self._log_end)

    def stop(self) -> None:
        """Shut the server down with a checkpoint."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """End the server at once, without a word to its standby."""
        self._end(signal.SIGQUIT)

    def copy(self, folder: Path, port: int | None = None) -> Cluster:
        """Copy the data folder of a server that does not run."""
        folder.mkdir()
        folder.chmod(0o755)
        shutil.copytree(self._data, folder / "cluster", symlinks=True)
        return self._adopted(folder, port)

    def standby(self, folder: Path) -> Cluster:
        """Start a standby that streams from this server, and wait until it does."""
        folder.mkdir()
        folder.chmod(0o755)
        run(
            *(self._binaries.bin_dir / "pg_basebackup", "--write-recovery-conf"),
            *("--checkpoint=fast", "--no-sync", "--wal-method=stream"),
            *("--pgdata", folder / "cluster", "--dbname", self.url),
        )
        standby = self._adopted(folder, None)
        standby.start()
        self.wait_for_standby(standby)
        return standby

    def wait_for_standby(self, standby: Cluster) -> None:
        """Wait until the standby has replayed everything that is committed here."""
        # Commits of the tests do not wait for their WAL. One that does writes that of the others.
        self.query(
            "SELECT set_config('synchronous_commit', 'on', false),"
            "       pg_logical_emit_message(true, 'tests', '')"
        )
        [[position]] = self.query("SELECT pg_current_wal_lsn()::text")
        wait_until(
            lambda: standby.query("SELECT pg_last_wal_replay_lsn() >= %s", position) == [(True,)],
            standby._log_end,
        )

    def disconnect(self) -> None:
        """Receive nothing more from the primary: what it commits from now on is lost with it."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")
        wait_until(lambda: self.query("SELECT FROM pg_stat_wal_receiver") == [], self._log_end)

    def promote(self) -> None:
        """Become the primary, and wait for it."""
        assert self.query("SELECT pg_promote(true, %s)", SECONDS) == [(True,)]

    def query(self, statement: str, *arguments: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(statement, arguments).fetchall()

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)

    @property
    def _data(self) -> Path:
        return self.folder / "cluster"

    def _adopted(self, folder: Path, port: int | None) -> Cluster:
        """Return the cluster in a folder that we filled, as the user who runs servers."""
        account = self._account
        if not account.is_us():
            for path in (folder / "cluster", *(folder / "cluster").rglob("*")):
                os.chown(path, account.uid, account.gid, follow_symlinks=False)
        (folder / "cluster").chmod(0o700)
        return Cluster(folder, port or _free_port())

    def _is_running(self) -> bool:
        pid = self._pid()
        return pid is not None and _is_alive(pid)

    def _end(self, number: signal.Signals) -> None:
        pid = self._pid()
        if pid is not None and _is_alive(pid):
            os.kill(pid, number)
            wait_until(lambda: not _is_alive(pid), self._log_end)

    def _pid(self) -> int | None:
        file = self._data / "postmaster.pid"
        return int(file.read_text().splitlines()[0]) if file.exists() else None

    def _answers(self) -> bool:
        try:
            self.query("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _log_end(self) -> str:
        return (self.folder / "server.log").read_text()[-3000:]


@contextmanager
def cluster_folder() -> Iterator[Path]:
    """A folder for clusters that the user who runs servers can enter."""
    folder = Path(mkdtemp(prefix="leasehold-failover-", dir=ram_disk()))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """Start the server unless it runs; end it at once afterwards."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.crash()


def dump(url: str, file: Path) -> None:
    """Dump a database, as `pg_dump --format=custom` does."""
    run(_program("pg_dump"), "--format=custom", "--file", file, "--dbname", url)


def load(file: Path, url: str) -> None:
    """Restore a dump into an empty database."""
    run(_program("pg_restore"), "--exit-on-error", "--dbname", url, file)


def run(*command: object) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def wait_until(look, context) -> None:
    """Poll until something is true; fail after a time that only a hang reaches."""
    ends_at = time.monotonic() + SECONDS
    while not look():
        assert time.monotonic() < ends_at, context()
        time.sleep(_POLL_SECONDS)


def _program(name: str) -> Path:
    return next(iter(available_binaries().values())).bin_dir / name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # An orphan that nobody has waited for yet counts as dead.
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()

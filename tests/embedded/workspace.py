"""A folder for the servers of one test, and the processes that use them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from leasehold.embedded.data_folder import DataFolder
from leasehold.embedded.server import EmbeddedPostgres
from tests.support.ram_disk import ram_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasehold.embedded.binaries import PostgresBinaries

QUICK = {"fsync": "off", "shared_buffers": "16MB", "max_connections": "20"}
PROGRAM = Path(__file__).with_name("database_user.py")


class Workspace:
    """A folder that the server's user can enter, and the servers that a test starts in it."""

    def __init__(self, binaries: PostgresBinaries, template: Path | None = None):
        self.binaries = binaries
        self.root = Path(tempfile.mkdtemp(prefix="leasehold-embedded-", dir=ram_disk()))
        self.root.chmod(0o711)
        self.data_dir = self.root / "data"
        self.folder = DataFolder(self.data_dir)
        self.progress: list[str] = []
        self._users: list[UserProcess] = []
        self._others: list[subprocess.Popen[bytes]] = []
        if template is not None:
            self.folder.create()
            parts = [template / name for name in ("start.lock", "cluster", "password")]
            subprocess.run(["cp", "-a", *parts, self.data_dir], check=True)

    def postgres(
        self, data_dir: Path | None = None, *, settings: Mapping[str, str] = QUICK, **options: Any
    ) -> EmbeddedPostgres:
        return EmbeddedPostgres(
            data_dir or self.data_dir,
            settings=settings,
            progress=self.progress.append,
            **{"binaries": self.binaries, **options},
        )

    def user_process(self, **options: Any) -> UserProcess:
        """Start a process that starts the server. Does not wait for the server."""
        user = UserProcess(self, **options)
        self._users.append(user)
        return user

    def bystander(self, *arguments: str, **options: Any) -> int:
        """Start a process that has nothing to do with the server."""
        options.setdefault("executable", "/bin/sleep")
        other = subprocess.Popen(arguments or ("sleep", "1000"), **options)
        self._others.append(other)
        return other.pid

    def server_processes(self) -> list[int]:
        postmaster = self.folder.postmaster_pid()
        return [] if postmaster is None else [postmaster, *children_of(postmaster)]

    def kill_server(self) -> None:
        """Kill the postmaster and all its children at once, like a power cut."""
        for pid in self.server_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def is_served(self) -> bool:
        return self.data_dir.exists() and self.folder.is_served()

    def log(self) -> str:
        return self.folder.log.read_text()

    def close(self) -> None:
        for user in self._users:
            user.kill()
        for other in self._others:
            other.kill()
            other.wait()
        for lock in self.root.rglob("server.lock"):
            end_server(DataFolder(lock.parent))
        shutil.rmtree(self.root)


class UserProcess:
    """A process that runs database_user.py, in a process group of its own."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        settings: Mapping[str, str] = QUICK,
        prefix: tuple[str, ...] = (),
        interpreter: str = sys.executable,
        ignores_ctrl_c: bool = False,
        forks_a_child: bool = False,
        **options: Any,
    ):
        order = {
            "data_dir": str(workspace.data_dir),
            "bin_dir": str(workspace.binaries.bin_dir),
            "version": workspace.binaries.version,
            "wheel": workspace.binaries.source == "wheel",
            "settings": dict(settings),
            "ignores_ctrl_c": ignores_ctrl_c,
            "forks_a_child": forks_a_child,
        }
        self.process = subprocess.Popen(
            [*prefix, interpreter, str(PROGRAM), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            text=True,
            **options,
        )

    def answer(self) -> dict[str, Any]:
        """Wait until the process has started the server or has failed; return what it printed."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process ended without an answer"
        return json.loads(line)

    @property
    def pid(self) -> int:
        return self.process.pid

    def finish(self) -> int:
        """Let the process end by itself; return its exit code."""
        self._close_pipes()
        return self.process.wait(60)

    def send(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def children_of(parent: int) -> list[int]:
    children: list[int] = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                children.append(int(status.parent.name))
    return children


def end_server(folder: DataFolder) -> None:
    """Kill whatever a failed test left of the server."""
    for pid in [folder.postmaster_pid()]:
        if pid is not None:
            for process in (*children_of(pid), pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
    wait_until(lambda: not folder.is_served(), "the server's processes are gone")


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s, and still not: {what}"
        time.sleep(0.01)


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def answers(url: str) -> bool:
    try:
        return query(url, "SELECT 1") == [(1,)]
    except psycopg.OperationalError:
        return False


@contextlib.contextmanager
def locked(file: Path, *, shared: bool = False):
    """Hold a lock file, as another process would."""
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield

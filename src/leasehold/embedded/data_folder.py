"""The data folder of a private PostgreSQL: its locks, its small files, and who serves it.

What lies in it: `cluster` (PostgreSQL's own data), `password`, `port`, `server.log`, three lock
files, and `programs-*` where the programs had to be copied.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import secrets
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.domain.errors import EmbeddedDatabaseError

if TYPE_CHECKING:
    from collections.abc import Generator

START_SECONDS = 180.0  # a crash recovery replays up to max_wal_size, on any disk
POLL_SECONDS = 0.05
LOG_BYTES_MAX = 10 * 1024 * 1024
LOG_LINES_SHOWN = 15
# Below the range that the kernel gives to outgoing connections, which would take a remembered port.
PORTS = range(15432, 32768)


class DataFolder:
    """Paths, locks and small files; every file in it is for its owner alone."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.cluster = self.path / "cluster"
        self.log = self.path / "server.log"

    def make(self) -> None:
        """Make the folder and its missing parents; those that exist keep their permissions.

        What root makes may be entered (not listed) by others, since another user runs the server.
        """
        mode = 0o711 if os.geteuid() == 0 else 0o700
        for folder in reversed([self.path, *self.path.parents]):
            try:
                if not folder.exists():
                    folder.mkdir()
                    folder.chmod(mode)
            except FileExistsError:
                continue  # another process that starts at the same moment made it
            except OSError as error:
                raise self._unusable(error) from error

    @contextlib.contextmanager
    def alone(self) -> Generator[None]:
        """Keep every other process of this folder from starting or stopping its server."""
        held = self.lock_within("start.lock", fcntl.LOCK_EX, START_SECONDS)
        if held is None:
            raise EmbeddedDatabaseError(
                f"another process has been starting or stopping the database in {self.path} for"
                f" {START_SECONDS:.0f} seconds: look at {self.log}, then try again"
            )
        try:
            yield
        finally:
            release(held)

    @contextlib.contextmanager
    def server_lock(self) -> Generator[int]:
        """Lend the lock to the program started meanwhile: it keeps the lock when we close ours."""
        held = self.try_lock("server.lock", fcntl.LOCK_EX)
        if held is None:
            raise EmbeddedDatabaseError(f"processes of an earlier server still live on {self.path}")
        try:
            yield held
        finally:
            os.close(held)

    def is_served(self) -> bool:
        """Say whether any part of a server lives on this folder, well or not."""
        free = self.try_lock("server.lock", fcntl.LOCK_EX)
        release(free)
        return free is None or self.postmaster_pid() is not None

    def lock_within(self, name: str, how: int, seconds: float) -> int | None:
        """Take a lock, waiting for it at most so long."""
        deadline = time.monotonic() + seconds
        while (held := self.try_lock(name, how)) is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return held

    def try_lock(self, name: str, how: int) -> int | None:
        """Take a lock if it is free just now."""
        file = self._open(self.path / name, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        return file

    def password(self) -> str:
        """Return the password of the server's only role, making one up for a new database."""
        file = self.path / "password"
        with contextlib.suppress(FileNotFoundError):
            return file.read_text("ascii").strip()
        if self.cluster.exists():
            raise EmbeddedDatabaseError(
                f"{file} is missing, and without it nobody can enter the database in {self.path}:"
                " put it back from your copy, or choose a new folder with --data-dir"
            )
        password = secrets.token_urlsafe(24)
        self._write(file, password)
        return password

    def choose_port(self) -> int:
        """Return the port of last time, or a new one if somebody else has taken it."""
        file = self.path / "port"
        with contextlib.suppress(FileNotFoundError, ValueError):
            remembered = int(file.read_text("ascii"))
            if _is_free(remembered):
                return remembered
        # A user's tools may point at this port, so it is remembered, but it guards nothing.
        offered = random.sample(PORTS, 200)
        port = next((port for port in offered if _is_free(port)), None)
        if port is None:
            raise EmbeddedDatabaseError(
                f"no free port was found on 127.0.0.1 among 200 tried of {PORTS[0]}-{PORTS[-1]}"
            )
        self._write(file, str(port))
        return port

    @contextlib.contextmanager
    def opened_log(self) -> Generator[int]:
        """Open the server's log to append to, putting a long one aside first."""
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES_MAX:
            self.log.replace(self.log.with_suffix(".log.1"))
        log = self._open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            yield log
        finally:
            os.close(log)

    def log_end(self) -> str:
        """Return the last lines of the server's log, for an error to show."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - 8192))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return "(no log was written)"
        return "\n".join(text.splitlines()[-LOG_LINES_SHOWN:])

    def served_port(self) -> int | None:
        """Return the port that the server says it listens on; believe it when it answers."""
        lines = self._pid_file()
        return int(lines[3]) if len(lines) > 3 and lines[3].isdigit() else None

    def postmaster_pid(self) -> int | None:
        """Return the number of this folder's living server, or None if another process has it."""
        lines = self._pid_file()
        if not lines or not lines[0].isdigit():
            return None
        process = Path("/proc", lines[0])
        try:
            arguments = (
                process.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
            )
        except OSError:
            return None
        program = arguments[0]
        # Root without CAP_SYS_PTRACE (a container) may not look at another user's program file.
        with contextlib.suppress(OSError):
            program = str(process.joinpath("exe").readlink()).removesuffix(" (deleted)")
        ours = Path(program).name == "postgres" and arguments[1:3] == ["-D", str(self.cluster)]
        return int(lines[0]) if ours else None

    def _pid_file(self) -> list[str]:
        try:
            return (self.cluster / "postmaster.pid").read_text("utf-8", "replace").splitlines()
        except OSError:
            return []

    def _write(self, file: Path, text: str) -> None:
        """Replace a small file as a whole, and have it on the disk before going on."""
        new = file.with_name(f"{file.name}.new")
        new.unlink(missing_ok=True)
        with os.fdopen(self._open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as opened:
            opened.write(f"{text}\n")
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(file)
        self.sync()

    def sync(self) -> None:
        """Make the names in this folder survive a power cut."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _open(self, file: Path, flags: int) -> int:
        """Open a private file, which belongs to the folder's owner also when root makes it."""
        try:
            opened = os.open(file, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        if os.geteuid() == 0:
            owner = self.path.stat()
            os.fchown(opened, owner.st_uid, owner.st_gid)
        return opened

    def _unusable(self, error: OSError) -> EmbeddedDatabaseError:
        return EmbeddedDatabaseError(
            f"the data folder {self.path} cannot be used ({error.strerror}: {error.filename}):"
            " choose a folder of your own with --data-dir"
        )


def release(lock: int | None) -> None:
    """Give a lock back; closing it is not enough where a forked child has it open too."""
    if lock is not None:
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _is_free(port: int) -> bool:
    """Try to listen where the server will; what an ended connection left behind does not count."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
            trial.listen()
        except (OSError, OverflowError):
            return False
    return True

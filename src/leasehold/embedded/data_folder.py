"""The data folder of the embedded server: its locks, its files, and whether a server runs on it.

It contains `cluster` (PostgreSQL's own data), `password`, `port`, `server.log`, three lock files,
and `programs-*` if the programs had to be copied.
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

START_SECONDS = 180.0  # a crash recovery replays up to max_wal_size, perhaps on a slow disk
POLL_SECONDS = 0.05
LOG_BYTES_MAX = 10 * 1024 * 1024
LOG_LINES_SHOWN = 15
# Below the kernel's range for outgoing connections, which could take a remembered port.
PORTS = range(15432, 32768)
FIRST_FILE = "start.lock"  # we create it before anything else, and never remove it


class DataFolder:
    """Paths, locks and files of a data folder. Only the owner can read the files."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.cluster = self.path / "cluster"
        self.log = self.path / "server.log"

    def create(self) -> None:
        """Create the folder and its missing parents. Existing ones keep their permissions.

        Others may enter (not list) what root creates, because another user runs the server. Raises
        if the folder has foreign content.
        """
        mode = 0o711 if os.geteuid() == 0 else 0o700
        for folder in reversed([self.path, *self.path.parents]):
            try:
                if not folder.exists():
                    folder.mkdir()
                    folder.chmod(mode)
            except FileExistsError:
                continue  # another process that starts at the same moment created it
            except OSError as error:
                raise self._unusable(error) from error
        self._refuse_foreign_content()

    def _refuse_foreign_content(self) -> None:
        """Raise if the folder is neither empty nor a data folder. We change only what is ours."""
        try:
            # A new volume of a disk has `lost+found`.
            content = sorted({file.name for file in self.path.iterdir()} - {"lost+found"})
        except OSError as error:
            raise self._unusable(error) from error
        # Looked for after the listing: another process may be creating the database right now.
        is_ours = (self.path / FIRST_FILE).is_file()
        is_backup = (self.cluster / "PG_VERSION").is_file() and (self.path / "password").is_file()
        if content and not is_ours and not is_backup:
            raise EmbeddedDatabaseError(
                f"{self.path} is not empty (it contains {content[0]!r}) and is not a data folder of"
                " Leasehold, so it was left as it is: choose a new or an empty folder with"
                " --data-dir or LEASEHOLD_DATA_DIR"
            )

    @contextlib.contextmanager
    def exclusive(self) -> Generator[None]:
        """Hold the lock for starting and stopping the server of this folder."""
        held = self._lock_within(FIRST_FILE, fcntl.LOCK_EX, START_SECONDS)
        if held is None:
            raise EmbeddedDatabaseError(
                f"another process has been starting or stopping the database in {self.path} for"
                f" {START_SECONDS:.0f} seconds: read {self.log}, then try again"
            )
        try:
            yield
        finally:
            release(held)

    @contextlib.contextmanager
    def server_lock(self) -> Generator[int]:
        """Hold the server's lock. A program started meanwhile inherits it and keeps it."""
        held = self.try_lock("server.lock", fcntl.LOCK_EX)
        if held is None:
            raise EmbeddedDatabaseError(f"processes of an earlier server still run on {self.path}")
        try:
            yield held
        finally:
            os.close(held)

    def is_served(self) -> bool:
        """Return whether any process of a server runs on this folder, healthy or not."""
        free = self.try_lock("server.lock", fcntl.LOCK_EX)
        release(free)
        return free is None or self.postmaster_pid() is not None

    def _lock_within(self, name: str, how: int, seconds: float) -> int | None:
        """Take a lock, waiting for it at most this long; None if it stays taken."""
        deadline = time.monotonic() + seconds
        while (held := self.try_lock(name, how)) is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return held

    def try_lock(self, name: str, how: int) -> int | None:
        """Take a lock if it is free; else return None."""
        file = self._open(self.path / name, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        return file

    def password(self) -> str:
        """Return the password of the server's only role; generate it for a new database."""
        file = self.path / "password"
        with contextlib.suppress(FileNotFoundError):
            return file.read_text("ascii").strip()
        if self.cluster.exists():
            raise EmbeddedDatabaseError(
                f"{file} is missing, and the database in {self.path} cannot be used without it:"
                " restore it from a backup, or choose a new folder with --data-dir"
            )
        password = secrets.token_urlsafe(24)
        self._write(file, password)
        return password

    def choose_port(self) -> int:
        """Return the port of the last start, or a new one if another process has taken it."""
        file = self.path / "port"
        with contextlib.suppress(FileNotFoundError, ValueError):
            remembered = int(file.read_text("ascii"))
            if _is_free(remembered):
                return remembered
        # Remembered, because a user's tools may point at it. Chosen at random, not for secrecy.
        offered = random.sample(PORTS, 200)
        port = next((port for port in offered if _is_free(port)), None)
        if port is None:
            raise EmbeddedDatabaseError(
                f"no free port on 127.0.0.1: 200 ports of {PORTS[0]}-{PORTS[-1]} are all taken"
            )
        self._write(file, str(port))
        return port

    @contextlib.contextmanager
    def opened_log(self) -> Generator[int]:
        """Open the server's log for appending. Rotates a long one first."""
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES_MAX:
            self.log.replace(self.log.with_suffix(".log.1"))
        log = self._open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            yield log
        finally:
            os.close(log)

    def log_end(self) -> str:
        """Return the last lines of the server's log, for error messages."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - 8192))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return "(no log was written)"
        return "\n".join(text.splitlines()[-LOG_LINES_SHOWN:])

    def served_port(self) -> int | None:
        """Return the port in postmaster.pid. It may be stale until the server answers there."""
        lines = self._pid_file()
        return int(lines[3]) if len(lines) > 3 and lines[3].isdigit() else None

    def postmaster_pid(self) -> int | None:
        """Return the process id of this folder's running server; None if there is none.

        The id in postmaster.pid may by now belong to another process, so its program is checked.
        """
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
        # Root without CAP_SYS_PTRACE (a container) cannot read the link of another user's process.
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
        """Replace a small file atomically, and flush it to disk."""
        new = file.with_name(f"{file.name}.new")
        new.unlink(missing_ok=True)
        with os.fdopen(self._open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as opened:
            opened.write(f"{text}\n")
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(file)
        self.sync()

    def sync(self) -> None:
        """Flush the folder's entries to disk, so that a rename survives a power cut."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _open(self, file: Path, flags: int) -> int:
        """Open a private file. It belongs to the folder's owner, even if root creates it."""
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
    """Release a lock. Closing alone is not enough if a forked child has the file open too."""
    if lock is not None:
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _is_free(port: int) -> bool:
    """Return whether the server could listen there. Ports in TIME_WAIT count as free."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
            trial.listen()
        except (OSError, OverflowError):
            return False
    return True

"""An embedded PostgreSQL server in a data folder: the first user starts it, the last one stops it.

Three locks in the data folder carry the whole state. The kernel releases each of them with its
holder, however the holder ends:

- `start.lock`, exclusive: held by the process that is starting or stopping the server.
- `users.lock`, shared: held by every process that uses the server. A process that gets it
  exclusively is the last user and stops the server.
- `server.lock`, exclusive: inherited by the server and all its children. If it is free, no process
  of a server runs on this folder, whatever an old postmaster.pid says. If it is held, no second
  server is started, even if its process is not visible from here (another container).

A process id alone is never trusted. It is used only for signals, after a check of its program.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from leasehold.domain.errors import EmbeddedDatabaseError
from leasehold.embedded.account import choose_account
from leasehold.embedded.binaries import (
    find_binaries,
    initialize_cluster,
    require_version,
    runnable_programs,
)
from leasehold.embedded.data_folder import POLL_SECONDS, START_SECONDS, DataFolder, release
from leasehold.store.database import server_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from leasehold.embedded.account import Account
    from leasehold.embedded.binaries import PostgresBinaries

ROLE = "leasehold"
FAST_STOP_SECONDS = 30.0
IMMEDIATE_STOP_SECONDS = 20.0  # after 5 of them the server kills its remaining children
LAUNCHES_MAX = 3
STAGING = "new-"
# Another process may listen on the port of a stopped server. With SCRAM it must prove that it knows
# the password, and does not learn it.
_REQUIRED = "require_auth=scram-sha-256"
NOT_STARTED = "the embedded database is not running: call start() first"


def default_data_dir() -> Path:
    """Return the default data folder; for root one that another user can enter."""
    if os.geteuid() == 0:
        return Path("/var/lib/leasehold/postgres")
    chosen = Path(os.environ.get("XDG_DATA_HOME", ""))
    base = chosen if chosen.is_absolute() else Path.home() / ".local" / "share"
    return base / "leasehold" / "postgres"


class EmbeddedPostgres:
    """One process's use of the server in a data folder."""

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        binaries: PostgresBinaries | None = None,
        settings: Mapping[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Configure the server; nothing happens before start().

        `settings` are those of postgresql.conf. They apply if this process starts the server, not
        if it joins a running one.
        """
        self._folder = DataFolder(data_dir or default_data_dir())
        self._binaries = binaries
        self._settings = dict(settings or {})
        self._progress = progress or _ignore
        self._users_lock: int | None = None
        self._process = 0
        self._port: int | None = None
        self._password = ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The server's port on 127.0.0.1."""
        if self._port is None:
            raise EmbeddedDatabaseError(NOT_STARTED)
        return self._port

    @property
    def url(self) -> str:
        """The database URL, for a superuser of this server."""
        return self._url(self.port, ROLE)

    def start(self) -> Self:
        """Use the server of this folder. Creates and starts it if necessary."""
        if self._is_user():
            self.ensure_running()
            return self
        server_at(f"postgresql://?{_REQUIRED}")  # refuses a libpq that does not know the option
        self._folder.create()
        _exit_cleanly_on_signals()
        with self._folder.exclusive():
            self._users_lock = self._folder.try_lock("users.lock", fcntl.LOCK_SH)
            self._process = os.getpid()
            try:
                self._bring_up()
            except BaseException:
                self._leave()
                raise
        atexit.register(self.stop)
        return self

    def is_running(self) -> bool:
        """Return whether some server runs on this folder, even one that does not answer yet."""
        return self._folder.is_served()

    def ensure_running(self) -> None:
        """Restart the server if it is gone; cheap if it runs. The port may change."""
        if not self._is_user():
            raise EmbeddedDatabaseError(NOT_STARTED)
        with self._folder.exclusive():
            self._bring_up()

    def stop(self) -> None:
        """Stop using the server; the last user stops it. Does nothing before start()."""
        if self._is_user():
            atexit.unregister(self.stop)
            with self._folder.exclusive():
                self._leave()

    def _is_user(self) -> bool:
        """Return whether this process uses the server. A forked child of a user does not."""
        return self._users_lock is not None and self._process == os.getpid()

    def _leave(self) -> None:
        """Release our users.lock, and stop the server if nobody else holds it."""
        held, self._users_lock, self._port = self._users_lock, None, None
        release(held)
        last_user = self._folder.try_lock("users.lock", fcntl.LOCK_EX)
        if last_user is not None:
            try:
                self._shut_down()
            finally:
                release(last_user)

    def _shut_down(self) -> None:
        """Stop the server with a checkpoint (fast); if it cannot, without one (immediate)."""
        for request, seconds in (
            (signal.SIGINT, FAST_STOP_SECONDS),
            (signal.SIGQUIT, IMMEDIATE_STOP_SECONDS),
        ):
            signalled = None
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                if not self._folder.is_served():
                    return
                # A server that was just launched gets the signal once it has written its id.
                postmaster = self._folder.postmaster_pid()
                if postmaster not in (None, signalled):
                    signalled = postmaster
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(postmaster, request)
                time.sleep(POLL_SECONDS)
        raise self._failure("did not stop (committed data is safe): stop it by hand")

    def _bring_up(self) -> None:
        """Return once the server of this folder answers. Launches one while there is none."""
        deadline = time.monotonic() + START_SECONDS
        launches = 0
        while True:
            if not self._folder.is_served():
                self._check_last_launch(launches)
                self._launch()
                launches += 1
            elif self._answers():
                return
            if time.monotonic() > deadline:
                raise self._failure(
                    f"did not answer for {START_SECONDS:.0f} seconds: if it runs in another"
                    " container, use it there"
                )
            time.sleep(POLL_SECONDS)

    def _check_last_launch(self, launches: int) -> None:
        """Raise unless the last launch failed because another process took the port."""
        if launches == LAUNCHES_MAX or (
            launches and "could not bind" not in self._folder.log_end()
        ):
            raise self._failure("could not be started")

    def _failure(self, what: str) -> EmbeddedDatabaseError:
        return EmbeddedDatabaseError(
            f"the database in {self._folder.path} {what}. The end of {self._folder.log}:\n"
            f"{self._folder.log_end()}"
        )

    def _url(self, port: int, database: str) -> str:
        password = quote(self._password, safe="")
        return f"postgresql://{ROLE}:{password}@127.0.0.1:{port}/{database}?{_REQUIRED}"

    def _answers(self) -> bool:
        """Return whether our server answers: with our password and from our data folder."""
        port = self._folder.served_port()
        if port is None:
            return False
        self._password = self._folder.password()
        try:
            if not self._is_ours(port):
                return False
        except Exception as error:  # noqa: BLE001 (whatever failed, it does not answer yet)
            self._refuse_wrong_password(error)
            return False
        self._port = port
        return True

    def _is_ours(self, port: int) -> bool:
        """Compare the data folder. Then create our database if an earlier start was interrupted."""
        url = f"{self._url(port, 'postgres')}&hostaddr=127.0.0.1&sslmode=disable&connect_timeout=5"
        return server_at(url).prepare(self._folder.cluster, ROLE)

    def _refuse_wrong_password(self, error: Exception) -> None:
        """Raise at once if the password is wrong: waiting would not help."""
        is_wrong = "password authentication failed" in str(error)
        if is_wrong and self._folder.postmaster_pid() is not None:
            raise EmbeddedDatabaseError(
                f"the database in {self._folder.path} refuses the password in its file `password`:"
                f" write the password of the role {ROLE} to that file"
            ) from error

    def _launch(self) -> None:
        """Start the server where none runs. The caller waits until it answers."""
        cluster = self._folder.cluster
        account = choose_account(cluster)
        self._refuse_closed_folder(account)
        binaries = self._binaries or find_binaries()
        require_version(binaries, cluster)
        programs = runnable_programs(binaries, account, self._folder.path)
        for leftover in self._folder.path.glob(f"{STAGING}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if not cluster.exists():
            self._create(programs, binaries.version, account)
        stale = cluster / "postmaster.pid"
        self._progress("recovering after a crash" if stale.exists() else "starting the database")
        # It is stale, because no server runs on the folder. PostgreSQL itself would believe it if
        # another process has the id by now.
        stale.unlink(missing_ok=True)
        # The shell exits at once, so that the server is not our child and can outlive us.
        command = ["/bin/sh", "-c", '"$@" &', "sh", programs / "postgres", "-D", cluster]
        with self._folder.opened_log() as log, self._folder.server_lock() as lock:
            account.run([*command, *self._options()], output=log, keep=lock)

    def _options(self) -> list[str]:
        """Return the settings as options: loopback only, no socket file in a shared folder."""
        settings = {
            **self._settings,
            "listen_addresses": "127.0.0.1",
            "port": str(self._folder.choose_port()),
            "unix_socket_directories": "",
        }
        return [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

    def _create(self, programs: Path, version: int, account: Account) -> None:
        """Create the cluster in a staging folder; only the final rename makes it this folder's."""
        self._progress(f"creating the database in {self._folder.path}")
        staging = Path(tempfile.mkdtemp(dir=self._folder.path, prefix=STAGING))
        durable = self._settings.get("fsync") != "off"
        try:
            created = initialize_cluster(
                programs, version, account, staging, self._folder.password(), durable=durable
            )
            created.rename(self._folder.cluster)
            self._folder.sync()
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _refuse_closed_folder(self, account: Account) -> None:
        """Raise if the user cannot enter the data folder. We do not open folders to others."""
        closed = None if account.is_us() else account.first_closed_folder(self._folder.path)
        if closed is not None:
            raise EmbeddedDatabaseError(
                f"PostgreSQL does not run as root, and the user {account.name!r}, who would run it,"
                f" cannot enter {closed}: choose a folder outside of it with --data-dir (such as"
                f" {default_data_dir()}), or start Leasehold as a normal user"
            )


def _ignore(_line: str) -> None:
    """Show no progress."""


def _exit_cleanly_on_signals() -> None:
    """Exit through SystemExit on SIGTERM and SIGHUP, unless the process has its own handler.

    Python's default ends the process at once, without `finally` and atexit: the server would stay.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _exit_cleanly)


def _exit_cleanly(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)

"""A private PostgreSQL in a data folder, started for whoever uses it and stopped by the last one.

Three locks in the data folder carry all that must be known, and the kernel drops each of them with
its holder, however that one ends:

- `start.lock`, exclusive: held by the process that starts or stops the server just now.
- `users.lock`, shared: held by every process that uses the server. Who can have it for himself is
  the last one out, and stops the server.
- `server.lock`, exclusive: inherited by the server and all its children. Where it is free, no part
  of a server lives on this folder, whatever an old postmaster.pid says; where it is held, no second
  server is started, even if its process cannot be seen from here (another container).

A process number alone is never trusted: it serves only for signals, after a look at its program.
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

import psycopg

from leasehold.domain.errors import EmbeddedDatabaseError
from leasehold.embedded.binaries import (
    Account,
    PostgresBinaries,
    choose_account,
    find_binaries,
    reachable_programs,
    system_binaries,
    wheel_binaries,
)
from leasehold.embedded.data_folder import POLL_SECONDS, START_SECONDS, DataFolder, release

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType, TracebackType

__all__ = [
    "EmbeddedPostgres",
    "PostgresBinaries",
    "default_data_dir",
    "find_binaries",
    "system_binaries",
    "wheel_binaries",
]

ROLE = "leasehold"
FAST_STOP_SECONDS = 30.0
IMMEDIATE_STOP_SECONDS = 20.0  # after 5 of them the server kills what is left of its children
LAUNCHES_MAX = 3
STAGING = "new-"
NOT_STARTED = "the embedded database is not started: call start() first"


def default_data_dir() -> Path:
    """Return where the data lies unless told otherwise; for root, where another user can enter."""
    if os.geteuid() == 0:
        return Path("/var/lib/leasehold/postgres")
    chosen = Path(os.environ.get("XDG_DATA_HOME", ""))
    base = chosen if chosen.is_absolute() else Path.home() / ".local" / "share"
    return base / "leasehold" / "postgres"


class EmbeddedPostgres:
    """One process's share in the private server of a data folder."""

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        binaries: PostgresBinaries | None = None,
        settings: Mapping[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Describe the server; nothing is touched before start().

        `settings` are those of postgresql.conf. They apply to a server that this process starts,
        not to one that it joins.
        """
        self._folder = DataFolder(data_dir or default_data_dir())
        self._binaries = binaries
        self._settings = dict(settings or {})
        self._progress = progress or _say_nothing
        self._share: int | None = None
        self._process = 0
        self._port: int | None = None
        self._password = ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The server's port on 127.0.0.1."""
        if self._port is None:
            raise EmbeddedDatabaseError(NOT_STARTED)
        return self._port

    @property
    def url(self) -> str:
        """The address of the database, for a superuser of this private server."""
        return f"postgresql://{ROLE}:{self._password}@127.0.0.1:{self.port}/{ROLE}"

    def start(self) -> Self:
        """Join the server of this folder, starting or creating it first where needed."""
        if self._has_share():
            self.ensure_running()
            return self
        self._folder.make()
        _exit_in_order_on_signals()
        with self._folder.alone():
            self._share = self._folder.try_lock("users.lock", fcntl.LOCK_SH)
            self._process = os.getpid()
            try:
                self._bring_up()
            except BaseException:
                self._leave()
                raise
        atexit.register(self.stop)
        return self

    def ensure_running(self) -> None:
        """Bring the server back if it is gone; cheap when it is well. The port may change."""
        if not self._has_share():
            raise EmbeddedDatabaseError(NOT_STARTED)
        with self._folder.alone():
            self._bring_up()

    def stop(self) -> None:
        """Leave the server; the last one out stops it. Nothing happens where start() was not."""
        if self._has_share():
            atexit.unregister(self.stop)
            with self._folder.alone():
                self._leave()

    def _has_share(self) -> bool:
        """Say whether we use the server; a forked child has its parent's share, not its own."""
        return self._share is not None and self._process == os.getpid()

    def _leave(self) -> None:
        """Give up our share, and stop the server if nobody else has one."""
        share, self._share, self._port = self._share, None, None
        release(share)
        last_out = self._folder.try_lock("users.lock", fcntl.LOCK_EX)
        if last_out is not None:
            try:
                self._shut_down()
            finally:
                release(last_out)

    def _shut_down(self) -> None:
        """Have the server end its clients and checkpoint; if it cannot, have it crash safely."""
        for request, seconds in (
            (signal.SIGINT, FAST_STOP_SECONDS),
            (signal.SIGQUIT, IMMEDIATE_STOP_SECONDS),
        ):
            asked = None
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                if not self._folder.is_served():
                    return
                # One that was just launched can be asked only when it has written its number.
                postmaster = self._folder.postmaster_pid()
                if postmaster not in (None, asked):
                    asked = postmaster
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(postmaster, request)
                time.sleep(POLL_SECONDS)
        raise self._failure("did not stop (what was committed is safe); end it by hand")

    def _bring_up(self) -> None:
        """Return once the server of this folder answers, launching it while there is none."""
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
                    f"did not answer for {START_SECONDS:.0f} seconds; if it runs in another"
                    " container, use it there"
                )
            time.sleep(POLL_SECONDS)

    def _check_last_launch(self, launches: int) -> None:
        """Only a port that somebody took in between is worth another try."""
        if launches == LAUNCHES_MAX or (
            launches and "could not bind" not in self._folder.log_end()
        ):
            raise self._failure("could not be started")

    def _failure(self, what: str) -> EmbeddedDatabaseError:
        return EmbeddedDatabaseError(
            f"the database in {self._folder.path} {what}. The end of {self._folder.log}:\n"
            f"{self._folder.log_end()}"
        )

    def _answers(self) -> bool:
        """Say whether our server answers: with our password, and from our data folder."""
        port = self._folder.served_port()
        if port is None:
            return False
        self._password = self._folder.password()
        try:
            with psycopg.connect(
                host="127.0.0.1",
                hostaddr="127.0.0.1",
                port=port,
                user=ROLE,
                password=self._password,
                dbname="postgres",
                sslmode="disable",
                connect_timeout=5,
                autocommit=True,
            ) as connection:
                if not self._is_ours(connection):
                    return False
        except (psycopg.Error, OSError) as error:
            self._refuse_wrong_password(error)
            return False
        self._port = port
        return True

    def _is_ours(self, connection: psycopg.Connection[tuple[str]]) -> bool:
        """Compare the data folder; then make our database, if an earlier start was cut short."""
        place = connection.execute("SHOW data_directory").fetchone()
        if place is None or not self._folder.cluster.samefile(place[0]):
            return False
        named = connection.execute("SELECT FROM pg_database WHERE datname = %s", [ROLE])
        if named.fetchone() is None:
            connection.execute("CREATE DATABASE leasehold")
        return True

    def _refuse_wrong_password(self, error: Exception) -> None:
        """Waiting does not mend a changed password, so say it at once."""
        wrong = "password authentication failed" in str(error)
        if wrong and self._folder.postmaster_pid() is not None:
            raise EmbeddedDatabaseError(
                f"the database in {self._folder.path} refuses the password in its file `password`:"
                f" put the password of the role {ROLE} there"
            ) from error

    def _launch(self) -> None:
        """Start the server where no server lives; the caller waits for its answer."""
        cluster = self._folder.cluster
        account = choose_account(cluster)
        self._refuse_closed_folder(account)
        binaries = self._binaries or find_binaries()
        self._refuse_other_version(binaries)
        programs = reachable_programs(binaries, account, self._folder.path)
        for leftover in self._folder.path.glob(f"{STAGING}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if not cluster.exists():
            self._create(programs, binaries.version, account)
        stale = cluster / "postmaster.pid"
        self._progress("recovering after a crash" if stale.exists() else "starting the database")
        # That nobody serves the folder proves it stale. PostgreSQL itself would believe it, if
        # some other process has the number by now.
        stale.unlink(missing_ok=True)
        # The shell leaves at once: the server is nobody's child to reap, and can outlive us.
        command = ["/bin/sh", "-c", '"$@" &', "sh", programs / "postgres", "-D", cluster]
        with self._folder.opened_log() as log, self._folder.server_lock() as lock:
            account.run([*command, *self._options()], output=log, keep=lock)

    def _options(self) -> list[str]:
        """Write the settings as options: loopback only, and no socket file in a shared folder."""
        settings = {
            **self._settings,
            "listen_addresses": "127.0.0.1",
            "port": str(self._folder.choose_port()),
            "unix_socket_directories": "",
        }
        return [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

    def _create(self, programs: Path, version: int, account: Account) -> None:
        """Run initdb beside its place; only the rename makes it the database of this folder."""
        self._progress(f"creating the database in {self._folder.path}")
        staging = Path(tempfile.mkdtemp(dir=self._folder.path, prefix=STAGING))
        try:
            password = staging / "password"
            password.write_text(self._folder.password())
            password.chmod(0o600)
            if not account.is_us():
                os.chown(password, account.uid, account.gid)
                os.chown(staging, account.uid, account.gid)
            made = staging / "cluster"
            options = _initdb_options(version, durable=self._settings.get("fsync") != "off")
            done = account.run([programs / "initdb", "-D", made, f"--pwfile={password}", *options])
            if done.returncode:
                raise EmbeddedDatabaseError(
                    f"initdb failed in {self._folder.path} as user {account.name!r}:\n{done.stdout}"
                )
            made.rename(self._folder.cluster)
            self._folder.sync()
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _refuse_closed_folder(self, account: Account) -> None:
        """Say which folder is in the way; opening it to others is not ours to do."""
        closed = None if account.is_us() else account.first_closed_folder(self._folder.path)
        if closed is not None:
            raise EmbeddedDatabaseError(
                f"PostgreSQL does not run as root, and the user {account.name!r}, who would run it,"
                f" may not enter {closed}: choose a folder outside of it with --data-dir (such as"
                f" {default_data_dir()}), or start Leasehold as a normal user"
            )

    def _refuse_other_version(self, binaries: PostgresBinaries) -> None:
        """PostgreSQL cannot read the files of another major version; say which one can."""
        written = self._folder.cluster / "PG_VERSION"
        if not written.exists() or (version := int(written.read_text())) == binaries.version:
            return
        fitting = next((one for one in system_binaries() if one.version == version), None)
        advice = (
            f"PostgreSQL {version} is on this machine in {fitting.bin_dir}: use it"
            if fitting
            else f"install PostgreSQL {version}"
        )
        raise EmbeddedDatabaseError(
            f"the database in {self._folder.path} was made by PostgreSQL {version}, but the"
            f" programs in {binaries.bin_dir} are PostgreSQL {binaries.version}. To keep the data,"
            f" {advice}, dump it and load it into a new folder; or choose an empty folder with"
            " --data-dir"
        )


def _say_nothing(_line: str) -> None:
    """Stand in for a caller who does not show progress."""


def _initdb_options(version: int, *, durable: bool) -> list[str]:
    """Make a cluster that sorts and checks text alike on every machine, whatever its locale."""
    options = [f"--username={ROLE}", "--auth=scram-sha-256", "--data-checksums"]
    options += ["--encoding=UTF8", "--locale=C", "--no-instructions"]
    if version >= 17:
        options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return options if durable else [*options, "--no-sync"]


def _exit_in_order_on_signals() -> None:
    """Let SIGTERM and a closed terminal end the process in order, unless it has its own handler.

    Python's default dies on the spot: no `finally`, no atexit, and the server stays behind.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _exit_in_order)


def _exit_in_order(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)

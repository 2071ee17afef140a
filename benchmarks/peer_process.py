"""Runs engines as processes that answer in JSON lines, each on its own database."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from benchmarks.server import BenchmarkServer

ROOT = Path(__file__).parent.parent
PEERS_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
OURS = "leasehold"
PEERS = ("pgqueuer", "procrastinate", "absurd", "awa", "dbos")

_WAIT_SECONDS = 60.0
_STOP_SECONDS = 15.0


class EngineFailed(Exception):
    """An engine cannot be run; the message has its last line of output."""


class Talk:
    """A running process of an engine, which answers line by line."""

    def __init__(self, name: str, job: str, *arguments: str) -> None:
        python = sys.executable if name.startswith(OURS) else str(PEERS_PYTHON)
        if not Path(python).exists():
            raise EngineFailed(f"not installed: there is no {PEERS_PYTHON.relative_to(ROOT)}")
        self._name = f"{name} {job}"
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.peer_runner", name, job, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.stdin.close()  # pyright: ignore[reportOptionalMemberAccess]
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # pyright: ignore[reportOptionalMemberAccess]
        self._process.stderr.close()  # pyright: ignore[reportOptionalMemberAccess]

    def tell(self, line: str) -> None:
        self._process.stdin.write(f"{line}\n".encode())  # pyright: ignore[reportOptionalMemberAccess]

    def hear(self, seconds: float = _WAIT_SECONDS) -> dict[str, Any]:
        """Return the next JSON line; skip anything else that a library prints."""
        while True:
            line = self._line(seconds)
            if line.startswith(b"{"):
                return json.loads(line)

    def _line(self, seconds: float) -> bytes:
        while b"\n" not in self._read:
            stdout = self._process.stdout.fileno()  # pyright: ignore[reportOptionalMemberAccess]
            ready, _, _ = select.select([stdout], [], [], seconds)
            if not ready:
                raise EngineFailed(f"{self._name} was silent for {seconds:.0f} s")
            more = self._process.stdout.read(65_536)  # pyright: ignore[reportOptionalMemberAccess]
            if not more:
                raise EngineFailed(f"{self._name} ended: {self._last_words()}")
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _last_words(self) -> str:
        said = self._process.stderr.read().decode(errors="replace")  # pyright: ignore[reportOptionalMemberAccess]
        lines = [line for line in said.splitlines() if line.strip()]
        return lines[-1][:200] if lines else f"exit code {self._process.wait()}"


def ask(name: str, job: str, *arguments: str, seconds: float = _WAIT_SECONDS) -> dict[str, Any]:
    """Run a job to completion and return its one answer."""
    with Talk(name, job, *arguments) as talk:
        return talk.hear(seconds)


class Database:
    """The database of one engine for one measurement."""

    def __init__(self, url: str, about: dict[str, Any], filled: dict[str, Any]) -> None:
        self.url = url
        self.items: int = filled["items"]
        self.fill_seconds: float = filled["seconds"]
        versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        self.engine = f"{versions} ({about['settings']})"

    def settle(self) -> None:
        """Do what autovacuum would do in time, for every engine alike."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")


@contextmanager
def filled_database(
    server: BenchmarkServer, name: str, items: int, seconds_max: float
) -> Iterator[Database]:
    """A database with the engine's schema and this many waiting items; dropped afterwards."""
    own = f"bench_{name}"
    server.execute(f"DROP DATABASE IF EXISTS {own} WITH (FORCE)")
    server.execute(f"CREATE DATABASE {own}")
    url = server.url.rsplit("/", 1)[0] + f"/{own}"
    try:
        with Talk(name, "fill", url, str(items), str(seconds_max)) as talk:
            database = Database(url, talk.hear(), talk.hear(seconds_max + _WAIT_SECONDS))
        if items:
            database.settle()
        yield database
    finally:
        server.execute(f"DROP DATABASE IF EXISTS {own} WITH (FORCE)")

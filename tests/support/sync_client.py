"""`make generate`: write client/sync_client.py from client/async_client.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import unasync

import leasehold

CLIENT = Path(leasehold.__file__).parent / "client"
SOURCE = CLIENT / "async_client.py"
GENERATED = CLIENT / "sync_client.py"
DOCSTRING = '"""Client. Generated from async_client.py by `make generate`: do not edit."""'
# In addition to what unasync knows itself: async def, await, __aenter__, AsyncIterator ...
REPLACEMENTS = {
    "AsyncClient": "Client",
    "aclose": "close",
    "aclosing": "closing",
    "aiter_raw": "iter_raw",
    "aread": "read",
    "asyncio": "time",
}
# Sorted imports, and `yield from` where an async generator needs a loop.
FIXES = ("--fix", "--unsafe-fixes", "--select", "I,UP028")


def written() -> str:
    """The generated module, as it stands in the repository."""
    with TemporaryDirectory() as folder:
        source, generated = (Path(folder, kind, GENERATED.name) for kind in ("_async", "_sync"))
        source.parent.mkdir()
        source.write_text(SOURCE.read_text())
        rule = unasync.Rule("/_async/", "/_sync/", additional_replacements=REPLACEMENTS)
        unasync.unasync_files([str(source)], [rule])
        _, _, code = generated.read_text().partition("\n")
    return ruff("format", ruff("check", f"{DOCSTRING}\n{code}", *FIXES))


def ruff(command: str, code: str, *options: str) -> str:
    named = ["--stdin-filename", str(GENERATED), "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", command, "--quiet", *options, *named],
        input=code,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    GENERATED.write_text(written())

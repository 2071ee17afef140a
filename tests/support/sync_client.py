"""`make generate`: write the sync modules of the client from the async ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import unasync

import leasehold

CLIENT = Path(leasehold.__file__).parent / "client"
# Source and docstring of each generated module.
MODULES = {
    "sync_client.py": ("async_client.py", "Client"),
    "sync_transport.py": ("async_transport.py", "Transport"),
}
# In addition to what unasync knows itself: async def, await, __aenter__, AsyncIterator ...
REPLACEMENTS = {
    "AnyIOBackend": "SyncBackend",
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncConnectionPool": "ConnectionPool",
    "AsyncNetworkBackend": "NetworkBackend",
    "AsyncNetworkStream": "NetworkStream",
    "AsyncTransport": "Transport",
    "aclose": "close",
    "aclosing": "closing",
    "aiter_raw": "iter_raw",
    "aiter_stream": "iter_stream",
    "async_transport": "sync_transport",
    "asyncio": "time",
    "handle_async_request": "handle_request",
}
# Sorted imports, and `yield from` where an async generator needs a loop.
FIXES = ("--fix", "--unsafe-fixes", "--select", "I,UP028")


def written(name: str) -> str:
    """A generated module, as it stands in the repository."""
    source_name, subject = MODULES[name]
    with TemporaryDirectory() as folder:
        source, generated = (Path(folder, kind, name) for kind in ("_async", "_sync"))
        source.parent.mkdir()
        source.write_text((CLIENT / source_name).read_text())
        rule = unasync.Rule("/_async/", "/_sync/", additional_replacements=REPLACEMENTS)
        unasync.unasync_files([str(source)], [rule])
        # The docstring of the source ends where its first import begins.
        _, imports, code = generated.read_text().partition("from __future__")
    docstring = f'"""{subject}. Generated from {source_name} by `make generate`: do not edit."""'
    return ruff("format", name, ruff("check", name, f"{docstring}\n\n{imports}{code}", *FIXES))


def ruff(command: str, name: str, code: str, *options: str) -> str:
    named = ["--stdin-filename", str(CLIENT / name), "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", command, "--quiet", *options, *named],
        input=code,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    for name in MODULES:
        (CLIENT / name).write_text(written(name))

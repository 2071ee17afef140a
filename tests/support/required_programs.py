"""Skips tests whose external program is missing, and reports which ones are missing."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

import pytest

from leasehold.embedded.binaries import PostgresBinaries, system_binaries

_PROPERTY = "missing program"
_SUPPORT = Path(__file__).parent
# `make test-programs` installs the pinned tools that read our OpenAPI document into these folders.
_PINNED = (
    _SUPPORT / "openapi_clients" / "node_modules" / ".bin",
    _SUPPORT.parents[1] / ".venv-openapi" / "bin",
)
_PLACES = os.pathsep.join(
    [*map(str, _PINNED), os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"]
)


@cache
def system_postgres() -> PostgresBinaries | None:
    """Find the distribution's newest PostgreSQL; unlike the embedded one it is built with TLS."""
    return next(iter(system_binaries()), None)


def find_program(name: str) -> str | None:
    """Find a program, also in folders that are not on a normal user's PATH."""
    if name == "postgres":
        found = system_postgres()
        return found and str(found.bin_dir / name)
    return shutil.which(name, path=_PLACES)


def require_programs(item: pytest.Item) -> None:
    """Skip this test if a program is missing; fail it if TEST_REQUIRE_PROGRAMS is 1."""
    for marker in item.iter_markers("program"):
        for name in marker.args:
            if find_program(name):
                continue
            item.user_properties.append((_PROPERTY, name))
            message = f"the program {name} is not installed"
            if os.environ.get("TEST_REQUIRE_PROGRAMS") == "1":
                pytest.fail(f"{message}: `make test-programs` installs it", pytrace=False)
            pytest.skip(message)


def report_missing(terminal: pytest.TerminalReporter) -> None:
    """Report each missing program once, at the end of the run."""
    reports = [*terminal.getreports("skipped"), *terminal.getreports("error")]
    # The report of a file that failed to import has no properties.
    noted = [pair for one in reports for pair in getattr(one, "user_properties", ())]
    names = [value for key, value in noted if key == _PROPERTY]
    for name in sorted(set(names)):
        terminal.write_line(
            f"{names.count(name)} tests need the program {name}, which is not installed here: "
            "`make test-programs` installs it.",
            yellow=True,
        )

"""Runs the `leasehold` command in a subprocess."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(sys.executable).parent / "leasehold"


def leasehold(*arguments, url, stdin="", **environment):
    """Run a command to completion; the database URL and `environment` are LEASEHOLD_ variables.

    It inherits no other LEASEHOLD_ variable, because those of the test run are not settings.
    """
    inherited = {name: os.environ[name] for name in os.environ if not name.startswith("LEASEHOLD_")}
    ours = {f"LEASEHOLD_{name.upper()}": value for name, value in environment.items()}
    if url is not None:
        ours["LEASEHOLD_DATABASE_URL"] = url
    return subprocess.run(
        [PROGRAM, *map(str, arguments)],
        input=stdin,
        env=inherited | ours,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def assert_one_line_of_error(result, *parts):
    """Require exit code 1 and one line on stderr that contains these parts."""
    assert result.returncode == 1, result
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr

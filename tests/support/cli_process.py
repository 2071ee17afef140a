"""`leasehold` as a process of its own, as people and scripts run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(sys.executable).parent / "leasehold"


def leasehold(*arguments, url, stdin=""):
    """Run a command to its end; the address comes by the environment."""
    return subprocess.run(
        [PROGRAM, *map(str, arguments)],
        input=stdin,
        env=os.environ | {"LEASEHOLD_DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def assert_one_line_of_error(result, *parts):
    assert result.returncode == 1, result
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr

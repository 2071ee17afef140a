"""Runs the `leasehold` command to its end: the program itself, or a fork that has it imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.forked_process import ForkedProcess

PROGRAM = Path(sys.executable).parent / "leasehold"
SECONDS = 60


def leasehold(*arguments, url, stdin="", **environment):
    """Run the program; the database URL and `environment` are LEASEHOLD_ variables.

    It inherits no other LEASEHOLD_ variable, because those of the test run are not settings.
    """
    return subprocess.run(
        [PROGRAM, *map(str, arguments)],
        input=stdin,
        env=_environment(url, environment),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def forked_leasehold(*arguments, url, stdin="", **environment):
    """Do the same in a fork, which takes a fifth of the time; for short commands."""
    return run_fork(arguments, _environment(url, environment), stdin)


def run_fork(arguments, environment, stdin="", cwd=None, module="leasehold"):
    """Run a command in a process of its own, with this environment and in this folder."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        files[0].write_text(stdin)
        where = cwd or Path.cwd()
        process = ForkedProcess(module, arguments, environment, where, files)
        try:
            process.wait(SECONDS)
        finally:
            process.kill()
        written = [file.read_text() for file in files[1:]]
        return subprocess.CompletedProcess(arguments, process.returncode, *written)


def assert_one_line_of_error(result, *parts):
    """Require exit code 1 and one line on stderr that contains these parts."""
    assert result.returncode == 1, result
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr


def _environment(url, environment):
    inherited = {name: os.environ[name] for name in os.environ if not name.startswith("LEASEHOLD_")}
    ours = {f"LEASEHOLD_{name.upper()}": value for name, value in environment.items()}
    if url is not None:
        ours["LEASEHOLD_DATABASE_URL"] = url
    return inherited | ours

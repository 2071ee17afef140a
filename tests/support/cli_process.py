"""Runs the `leasehold` command to its end: the program itself, or a fork that has it imported."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = Path(sys.executable).parent / "leasehold"
SECONDS = 60
_STREAMS = {
    "stdin": os.O_RDONLY,
    "stdout": os.O_WRONLY | os.O_CREAT,
    "stderr": os.O_WRONLY | os.O_CREAT,
}
# Imports are most of what a short command costs; the server of the forks has done them.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "leasehold.cli.enqueue",
        "leasehold.cli.intents",
        "leasehold.cli.targets",
        "leasehold.cli.tokens",
        "leasehold.client.sync_client",
        __name__,
    ]
)


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


def run_fork(arguments, environment, stdin="", cwd=None):
    """Run a command in a process of its own, with this environment and in this folder."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder, name) for name in _STREAMS}
        files["stdin"].write_text(stdin)
        given = [str(one) for one in arguments]
        where = str(cwd or Path.cwd())
        process = _FORKS.Process(target=_run, args=(given, environment, where, files))
        process.start()
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(given, SECONDS)
        written = [files[name].read_text() for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess(given, process.exitcode, *written)


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


def _run(arguments, environment, cwd, files):
    """In the fork: become the command."""
    from leasehold.__main__ import main

    for number, (name, flags) in enumerate(_STREAMS.items()):
        opened = os.open(files[name], flags)
        os.dup2(opened, number)
        os.close(opened)
        setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["leasehold", *arguments]
    main()

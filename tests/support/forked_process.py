"""A process that is forked from one that has imported our modules, with the interface of Popen.

Imports are most of what a short command costs, and a third of a second of each worker.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from leasehold.__main__ import main
from leasehold.executor.item import Transitions
from leasehold.web.app import document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "leasehold.cli.doctor",
        "leasehold.cli.enqueue",
        "leasehold.cli.intents",
        "leasehold.cli.migrate",
        "leasehold.cli.restored",
        "leasehold.cli.serve",
        "leasehold.cli.streams",
        "leasehold.cli.targets",
        "leasehold.cli.tokens",
        "leasehold.cli.worker",
        "leasehold.client.sync_client",
        __name__,
    ]
)
document()  # each server would make it again


class ForkedProcess:
    """Runs the command `leasehold` or another module; inherits nothing but the imports."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[object],
        environment: Mapping[str, str],
        cwd: Path,
        files: Sequence[Path],
    ) -> None:
        given = [str(one) for one in arguments]
        names = [str(one) for one in files]
        self._process = _FORKS.Process(
            target=_run, args=(module, given, dict(environment), str(cwd), names), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.returncode) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    module: str, arguments: Sequence[str], environment: dict[str, str], cwd: str, files: list[str]
) -> None:
    """In the fork: become the command. Files are stdin, stdout and stderr."""
    for number, (name, file) in enumerate(zip(("stdin", "stdout", "stderr"), files, strict=True)):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND if number else os.O_RDONLY
        opened = os.open(file, flags, 0o644)
        os.dup2(opened, number)
        os.close(opened)
        setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    Transitions.are_strict = True
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = [module, *arguments]
    if module == "leasehold":
        main()  # as the installed command does
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)

"""`make test-steady`: run the whole suite several times on one commit, some runs on a busy machine.

It stops at the first failure. It prints the last line of each run with the time per folder, and at
the end the last lines of all runs together.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

BUSY_LOOPS = 4
# A loop ends with us, however we end: its input is a pipe that we hold open.
_LOOP = """
import os, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
while True: pass
"""


def main() -> int:
    """Run the suite RUNS times, the last BUSY of them beside busy loops."""
    runs, busy = (int(os.environ.get(name) or given) for name, given in (("RUNS", 5), ("BUSY", 2)))
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()
    is_changed = subprocess.check_output(["git", "status", "--porcelain"], text=True)
    _say(f"commit {commit}{' with uncommitted changes' if is_changed else ''}")
    last_lines: list[str] = []
    for number in range(1, runs + 1):
        is_busy = number > runs - busy
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            code, lines = _run(report, BUSY_LOOPS if is_busy else 0)
            beside = f" beside {BUSY_LOOPS} busy loops" if is_busy else ""
            last = lines[-1] if lines else "no output"
            last_lines.append(f"run {number} of {runs}{beside}: {last}")
            _say(last_lines[-1])
            if report.exists():
                _say(_table(report))
        if code != 0:
            _say("\n".join(lines))
            return code
    _say("\n".join([f"steady on commit {commit}:", *last_lines]))
    return 0


def _run(report: Path, busy_loops: int) -> tuple[int, list[str]]:
    """Run the suite once; return its exit code and its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile"]
    command += ["--no-loadscope-reorder", f"--junitxml={report}"]
    with ExitStack() as stack:
        for _ in range(busy_loops):
            loop = subprocess.Popen([sys.executable, "-c", _LOOP], stdin=subprocess.PIPE)
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    return done.returncode, done.stdout.splitlines()


def _table(report: Path) -> str:
    """Sum up the seconds of the tests by folder; workers run side by side."""
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        folder = ".".join(case.get("classname", "").split(".")[:2])
        seconds[folder] += float(case.get("time", 0))
    return "\n".join(f"  {folder:<20}{total:8.0f} s" for folder, total in seconds.most_common())


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

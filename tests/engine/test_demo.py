"""`leasehold demo` as real processes: what `make run` starts, and what it leaves behind."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import psycopg
import pytest

from leasehold.store.embedded import EmbeddedPostgres

COMMAND = [str(Path(sys.executable).with_name("leasehold")), "demo"]
# Longer than anything takes on a machine that is busy with something else.
SECONDS = 100
STOP_SECONDS = 15


@pytest.fixture
def folder():
    """A folder that the user who runs the server, when we are root, may enter."""
    path = Path(tempfile.mkdtemp(prefix="leasehold-demo-"))
    path.chmod(0o711)
    yield path / "data"
    shutil.rmtree(path)


class Demo:
    """A running demo, read from a pipe or from a terminal of its own."""

    def __init__(self, folder, *arguments, terminal=False):
        self.said = ""
        if terminal:
            self._reading, given = pty.openpty()
            fcntl.ioctl(given, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
            stdin = given
        else:
            self._reading, given = os.pipe()
            stdin = subprocess.DEVNULL
        self.process = subprocess.Popen(
            [*COMMAND, "--data-dir", str(folder), *arguments],
            stdin=stdin,
            stdout=given,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TERM": "xterm"},
            # As a shell does: what the terminal's Ctrl-C reaches is this group, not the tests.
            preexec_fn=_own_terminal if terminal else None,
        )
        os.close(given)

    def until(self, pattern):
        """Read what it says until this is a part of it."""
        deadline = time.monotonic() + SECONDS
        while not (found := re.search(pattern, self.said, re.MULTILINE)):
            assert time.monotonic() < deadline, self.said
            assert self._read(), f"it ended: {self.said}"
        return found

    def press_ctrl_c(self):
        os.write(self._reading, b"\x03")

    def ended(self, seconds=SECONDS):
        """Wait for its end within so many seconds, and give its exit code."""
        deadline = time.monotonic() + seconds
        while self._read():
            assert time.monotonic() < deadline, self.said
        code = self.process.wait(max(1, deadline - time.monotonic()))
        assert "Traceback" not in self.said, self.said
        return code

    def children(self):
        """The demo's workers and its gateway: they are told whose child they are."""
        marked = f"leasehold.cli.demo_child\0{self.process.pid}\0".encode()
        found = {}
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = place.read_bytes()
            except OSError:
                continue
            if marked in command:
                found[int(place.parent.name)] = command.rstrip(b"\0").split(b"\0")[-1].decode()
        return found

    def summary(self):
        lines = re.findall(r"^(\w+) +(\d+)\b", self.said.rpartition("stopping:")[2], re.MULTILINE)
        return {name: int(count) for name, count in lines}

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._reading)

    def _read(self):
        ready, _, _ = select.select([self._reading], [], [], 1)
        if not ready:
            return True
        try:
            part = os.read(self._reading, 65536)
        except OSError:  # a terminal without anyone on the other side
            return False
        self.said += part.decode(errors="replace").replace("\r\n", "\n")
        return bool(part)


def _own_terminal():
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def start(folder):
    started = []

    def start(*arguments, terminal=False):
        started.append(Demo(folder, *arguments, terminal=terminal))
        return started[-1]

    yield start
    for one in started:
        one.close()


def require_nothing_left(demo, folder):
    assert demo.children() == {}
    assert not (folder / "cluster" / "postmaster.pid").exists()
    address = re.search(r"postgresql://\S+", demo.said)
    if address:
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(address.group(), connect_timeout=5)


def wait_until_gone(demo):
    deadline = time.monotonic() + STOP_SECONDS
    while demo.children():
        assert time.monotonic() < deadline, demo.children()
        time.sleep(0.1)


def test_demo_ends_by_itself_with_nothing_lost_and_nothing_doubled(start, folder):
    demo = start("--for", "6")
    assert demo.ended() == 0, demo.said
    summary = demo.summary()
    assert (summary["lost"], summary["doubled"], summary["exhausted"]) == (0, 0, 0), demo.said
    assert summary["accepted"] >= 20
    finished = summary["accepted"] - summary["rejected"] - summary["held"]
    assert finished <= summary["effects"] <= summary["accepted"]
    assert "\x1b" not in demo.said
    assert len(re.findall(r"^ +[\d.]+ s  accepted \d+  finished", demo.said, re.MULTILINE)) >= 3
    require_nothing_left(demo, folder)


def test_killed_worker_is_recovered_and_replaced(start, folder):
    demo = start("--for", "10", "--kill")
    assert demo.ended() == 0, demo.said
    killed = re.search(r"KILLED worker \d .* in the middle of (\d+) claims", demo.said)
    claims = int(killed.group(1))
    assert claims >= 1
    told = re.findall(r"recovered (\w+) \.\.\w{8} after ([\d.]+) s: (\w+)", demo.said)
    assert len(told) + demo.said.count("its last word arrived") == claims
    assert all(1 < float(seconds) < 20 for _, seconds, _ in told)
    assert {state for _, _, state in told} <= {"ZOMBIE_REQUEUE", "IN_DOUBT"}
    assert "worker 3 starts as its replacement" in demo.said
    assert (demo.summary()["lost"], demo.summary()["doubled"]) == (0, 0)
    require_nothing_left(demo, folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_everything_within_seconds(start, folder, number):
    demo = start("--for", "600")
    demo.until(r" s  accepted [1-9]\d*  finished [1-9]")
    assert sorted(demo.children().values()) == ["sandbox", "worker", "worker"]
    demo.process.send_signal(number)
    assert demo.ended(STOP_SECONDS) == 0, demo.said
    assert (demo.summary()["lost"], demo.summary()["doubled"]) == (0, 0)
    require_nothing_left(demo, folder)


def test_worker_that_dies_by_itself_is_replaced_and_does_not_disturb_the_end(start, folder):
    demo = start("--for", "600")
    demo.until(r" [6-9]\.\d s  accepted")
    dead = next(pid for pid, command in demo.children().items() if command == "worker")
    os.kill(dead, signal.SIGKILL)
    demo.until(rf"\(process {dead}\) died: signal 9")
    demo.until(r"worker 3 replaces worker \d")
    for pid in demo.children():
        os.kill(pid, signal.SIGKILL)
    demo.process.send_signal(signal.SIGINT)
    demo.ended(STOP_SECONDS)
    require_nothing_left(demo, folder)


def test_gateway_that_dies_ends_the_demo_with_its_reason(start, folder):
    demo = start("--for", "600")
    demo.until(r" s  accepted [1-9]")
    [pid] = [pid for pid, command in demo.children().items() if command == "sandbox"]
    os.kill(pid, signal.SIGKILL)
    assert demo.ended(STOP_SECONDS) == 1
    assert "Error: the demo's sandbox ended (signal 9)" in demo.said
    require_nothing_left(demo, folder)


def test_children_do_not_outlive_a_demo_that_is_killed(start, folder):
    demo = start("--for", "600")
    demo.until(r" s  accepted [1-9]")
    assert len(demo.children()) == 3
    demo.process.kill()
    wait_until_gone(demo)
    # The server has no parent to die with; the next user of the folder stops it.
    with EmbeddedPostgres(folder):
        pass
    require_nothing_left(demo, folder)


@pytest.mark.parametrize("moment", ["creating the database", "migrated a fresh database"])
def test_interrupt_before_it_plays_leaves_nothing(start, folder, moment):
    demo = start("--for", "600")
    demo.until(moment)
    demo.process.send_signal(signal.SIGINT)
    assert demo.ended(2 * STOP_SECONDS) == 0
    assert "stopped" in demo.said
    require_nothing_left(demo, folder)


def test_terminal_shows_a_live_view_until_ctrl_c(start, folder):
    demo = start(terminal=True)
    demo.until(r"postgresql://\S+")
    demo.until("DISPATCHED")
    for title in ("Instances", "Leases", "Targets", "Latest ledger rows", "leasehold-reaper"):
        demo.until(title)
    demo.press_ctrl_c()
    assert demo.ended(STOP_SECONDS) == 0, demo.said
    assert (demo.summary()["lost"], demo.summary()["doubled"]) == (0, 0)
    # The screen of before is back, with its cursor.
    assert demo.said.rindex("\x1b[?1049l") < demo.said.rindex("stopping:")
    assert "\x1b[?25h" in demo.said
    require_nothing_left(demo, folder)


def test_second_run_removes_the_database_of_the_first(start, folder):
    for _ in range(2):
        demo = start("--for", "1")
        assert demo.ended() == 0, demo.said
    with EmbeddedPostgres(folder) as server, psycopg.connect(server.url) as connection:
        names = connection.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'leasehold_demo_%'"
        ).fetchall()
    assert len(names) == len(list(folder.glob("leasehold_demo_*"))) == 1


def test_reader_that_goes_away_ends_the_demo_in_order(folder):
    process = subprocess.Popen(
        [*COMMAND, "--data-dir", str(folder), "--for", "600"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while b" s  accepted" not in process.stdout.readline():
        assert process.poll() is None
    process.stdout.close()
    try:
        _, complaints = process.communicate(timeout=STOP_SECONDS)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert complaints == b""
    assert not (folder / "cluster" / "postmaster.pid").exists()


def test_folder_that_cannot_be_used_is_told_in_one_line(tmp_path, start):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    demo = start("--data-dir", str(blocked / "data"))
    assert demo.ended() == 1
    assert demo.said.startswith("Error: ")

"""`leasehold demo` as a process, read from a pipe or from a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import psycopg
import pytest

COMMAND = [str(Path(sys.executable).with_name("leasehold")), "demo"]
# Longer than anything takes on a machine that is busy with something else.
SECONDS = 100
STOP_SECONDS = 15


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
        marked = f"leasehold.demo.child\0{self.process.pid}\0".encode()
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

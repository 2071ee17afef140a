"""Runs `leasehold demo` in a subprocess, on a pipe or on a pseudo-terminal."""

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
# Long enough for a busy machine.
SECONDS = 100
STOP_SECONDS = 40


class Demo:
    """A running demo and its output so far."""

    def __init__(self, folder, *arguments, terminal=False):
        self.output = ""
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
            # Its own process group, as in a shell: Ctrl-C must not reach the tests.
            preexec_fn=_own_terminal if terminal else None,
        )
        os.close(given)

    def until(self, pattern):
        """Read output until it matches the pattern."""
        deadline = time.monotonic() + SECONDS
        while not (found := re.search(pattern, self.output, re.MULTILINE)):
            assert time.monotonic() < deadline, self.output
            assert self._read(), f"the demo ended: {self.output}"
        return found

    def press_ctrl_c(self):
        os.write(self._reading, b"\x03")

    def ended(self, seconds=SECONDS):
        """Wait until it exits; return the exit code."""
        deadline = time.monotonic() + seconds
        while self._read():
            assert time.monotonic() < deadline, self.output
        code = self.process.wait(max(1, deadline - time.monotonic()))
        assert "Traceback" not in self.output, self.output
        return code

    def children(self):
        """Return the demo's child processes; their command line carries the demo's pid."""
        marked = f"leasehold.demo.processes\0{self.process.pid}\0".encode()
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
        lines = re.findall(r"^(\w+) +(\d+)\b", self.output.rpartition("stopping:")[2], re.MULTILINE)
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
        except OSError:  # the other end of the terminal is closed
            return False
        self.output += part.decode(errors="replace").replace("\r\n", "\n")
        return bool(part)


def _own_terminal():
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def require_nothing_left(demo, folder):
    assert demo.children() == {}
    assert not (folder / "cluster" / "postmaster.pid").exists()
    address = re.search(r"postgresql://\S+", demo.output)
    if address:
        password = (folder / "password").read_text().strip()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(address.group(), password=password, connect_timeout=5)


def wait_until_gone(demo):
    deadline = time.monotonic() + STOP_SECONDS
    while demo.children():
        assert time.monotonic() < deadline, demo.children()
        time.sleep(0.1)

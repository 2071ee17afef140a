"""`leasehold demo` as a real process: what `make run` starts."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

from leasehold.domain.intent import AttemptState, Status

COMMAND = [str(Path(sys.executable).with_name("leasehold")), "demo"]
SECONDS = 60


@pytest.fixture
def folder():
    """A folder that the user who runs the server, when we are root, may enter."""
    path = Path(tempfile.mkdtemp(prefix="leasehold-demo-"))
    path.chmod(0o711)
    yield path / "data"
    shutil.rmtree(path)


def run(folder):
    done = subprocess.run(
        [*COMMAND, "--data-dir", str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def read_until(process, text):
    """Read what a process prints until it has said this."""
    said = ""
    deadline = time.monotonic() + SECONDS
    while text not in said:
        assert time.monotonic() < deadline, said
        ready, _, _ = select.select([process.stdout], [], [], 1)
        if ready:
            part = os.read(process.stdout.fileno(), 65536).decode()
            assert part, f"it ended: {said}"
            said += part
    return said


def test_each_state_and_status_is_shown_and_a_second_run_shows_them_too(folder):
    for _ in range(2):
        said = run(folder)
        cells = {cell.strip() for line in said.splitlines() for cell in line.split("│")}
        assert set(AttemptState) <= cells
        assert set(Status) - {Status.PENDING, Status.EXHAUSTED} <= cells
        assert "Stopping the database" in said
    address = re.search(r"postgresql://\S+", said).group()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address, connect_timeout=5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_kept_database_stays_up_until_it_is_told_to_stop(folder, number):
    process = subprocess.Popen(
        [*COMMAND, "--data-dir", str(folder), "--keep-running"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        said = read_until(process, "Press Ctrl-C to stop")
        address = re.search(r"postgresql://\S+", said).group()
        with psycopg.connect(address) as connection:
            [count] = connection.execute("SELECT count(*) FROM leasehold.intents").fetchone()
        assert count == 8
        began = time.monotonic()
        process.send_signal(number)
        rest, _ = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert time.monotonic() - began < 10
    assert process.returncode == (0 if number == signal.SIGINT else 128 + number)
    assert b"Traceback" not in rest
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address, connect_timeout=5)


def test_interrupt_in_the_middle_leaves_no_traceback_and_no_server(folder):
    process = subprocess.Popen(
        [*COMMAND, "--data-dir", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        said = read_until(process, "published contracts")
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert "Traceback" not in said + rest.decode()
    assert b"stopped" in rest
    assert not (folder / "cluster" / "postmaster.pid").exists()
    assert set(AttemptState) <= {word.strip("│ ") for word in run(folder).split()}


def test_terminal_keeps_the_database_up(folder):
    leader, follower = os.openpty()
    process = subprocess.Popen(
        [*COMMAND, "--data-dir", str(folder)],
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        read_until(process, "Press Ctrl-C to stop")
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.close(leader)
        os.close(follower)
    assert (process.returncode, b"Traceback" in rest) == (0, False)


def test_folder_that_cannot_be_used_is_told_in_one_line(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    done = subprocess.run(
        [*COMMAND, "--data-dir", str(blocked / "data")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr

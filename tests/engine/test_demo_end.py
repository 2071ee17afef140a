"""`leasehold demo` ended by a signal or by the death of a part: it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from leasehold.embedded.server import EmbeddedPostgres
from tests.support.demo_process import COMMAND, STOP_SECONDS, require_nothing_left, wait_until_gone


def test_sigterm_stops_everything_within_seconds(start_demo, demo_folder):
    """Ctrl-C does the same; several tests of the demo end it so."""
    demo = start_demo("--for", "600")
    demo.until(r" s  enqueued [1-9]\d*  finished [1-9]")
    assert sorted(demo.children().values()) == ["sandbox", "serve", "worker", "worker"]
    demo.process.send_signal(signal.SIGTERM)
    assert demo.ended(STOP_SECONDS) == 0, demo.output
    assert (demo.summary()["lost"], demo.summary()["doubled"]) == (0, 0)
    require_nothing_left(demo, demo_folder)


def test_worker_that_dies_is_replaced_and_does_not_prevent_the_end(start_demo, demo_folder):
    demo = start_demo("--for", "600")
    demo.until(r" ([6-9]|\d\d)\.\d s  enqueued")
    dead = next(pid for pid, command in demo.children().items() if command == "worker")
    os.kill(dead, signal.SIGKILL)
    demo.until(rf"\(process {dead}\) died: signal 9")
    demo.until(r"worker 3 replaces worker \d")
    for pid in demo.children():
        os.kill(pid, signal.SIGKILL)
    demo.process.send_signal(signal.SIGINT)
    demo.ended(STOP_SECONDS)
    require_nothing_left(demo, demo_folder)


def test_dead_gateway_ends_the_demo_with_its_reason(start_demo, demo_folder):
    demo = start_demo("--for", "600", "--workers", "1")
    demo.until(r" s  enqueued [1-9]")
    [pid] = [pid for pid, command in demo.children().items() if command == "sandbox"]
    os.kill(pid, signal.SIGKILL)
    assert demo.ended(STOP_SECONDS) == 1
    assert "Error: the sandbox of the demo ended (signal 9)" in demo.output
    require_nothing_left(demo, demo_folder)


def test_children_do_not_outlive_a_killed_demo(start_demo, demo_folder):
    demo = start_demo("--for", "600")
    demo.until(r" s  enqueued [1-9]")
    assert len(demo.children()) == 4
    demo.process.kill()
    wait_until_gone(demo)
    # The database server is not a child: it stops when the next user of the folder leaves.
    with EmbeddedPostgres(demo_folder):
        pass
    require_nothing_left(demo, demo_folder)


@pytest.mark.parametrize("demo_folder", ["first run"], indirect=True)
@pytest.mark.parametrize("moment", ["creating the database", "created the schema"])
def test_interrupt_during_the_start_leaves_nothing_behind(start_demo, demo_folder, moment):
    demo = start_demo("--for", "600")
    demo.until(moment)
    demo.process.send_signal(signal.SIGINT)
    assert demo.ended(2 * STOP_SECONDS) == 0
    assert "stopped" in demo.output
    require_nothing_left(demo, demo_folder)


def test_closed_output_pipe_ends_the_demo_in_order(demo_folder):
    process = subprocess.Popen(
        [*COMMAND, "--data-dir", str(demo_folder), "--for", "600", "--workers", "1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while b" s  enqueued" not in process.stdout.readline():
        assert process.poll() is None
    process.stdout.close()
    try:
        _, complaints = process.communicate(timeout=STOP_SECONDS)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert complaints == b""
    assert not (demo_folder / "cluster" / "postmaster.pid").exists()

"""`leasehold demo` that is ended, by a person or by what dies in it: nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from leasehold.embedded.server import EmbeddedPostgres
from tests.support.demo_process import COMMAND, STOP_SECONDS, require_nothing_left, wait_until_gone


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_everything_within_seconds(start_demo, demo_folder, number):
    demo = start_demo("--for", "600")
    demo.until(r" s  accepted [1-9]\d*  finished [1-9]")
    assert sorted(demo.children().values()) == ["sandbox", "serve", "worker", "worker"]
    demo.process.send_signal(number)
    assert demo.ended(STOP_SECONDS) == 0, demo.output
    assert (demo.summary()["lost"], demo.summary()["doubled"]) == (0, 0)
    require_nothing_left(demo, demo_folder)


def test_worker_that_dies_by_itself_is_replaced_and_does_not_disturb_the_end(
    start_demo, demo_folder
):
    demo = start_demo("--for", "600")
    demo.until(r" [6-9]\.\d s  accepted")
    dead = next(pid for pid, command in demo.children().items() if command == "worker")
    os.kill(dead, signal.SIGKILL)
    demo.until(rf"\(process {dead}\) died: signal 9")
    demo.until(r"worker 3 replaces worker \d")
    for pid in demo.children():
        os.kill(pid, signal.SIGKILL)
    demo.process.send_signal(signal.SIGINT)
    demo.ended(STOP_SECONDS)
    require_nothing_left(demo, demo_folder)


def test_gateway_that_dies_ends_the_demo_with_its_reason(start_demo, demo_folder):
    demo = start_demo("--for", "600", "--workers", "1")
    demo.until(r" s  accepted [1-9]")
    [pid] = [pid for pid, command in demo.children().items() if command == "sandbox"]
    os.kill(pid, signal.SIGKILL)
    assert demo.ended(STOP_SECONDS) == 1
    assert "Error: the demo's sandbox ended (signal 9)" in demo.output
    require_nothing_left(demo, demo_folder)


def test_children_do_not_outlive_a_demo_that_is_killed(start_demo, demo_folder):
    demo = start_demo("--for", "600")
    demo.until(r" s  accepted [1-9]")
    assert len(demo.children()) == 4
    demo.process.kill()
    wait_until_gone(demo)
    # The server has no parent to die with; the next user of the folder stops it.
    with EmbeddedPostgres(demo_folder):
        pass
    require_nothing_left(demo, demo_folder)


@pytest.mark.parametrize("moment", ["creating the database", "migrated a fresh database"])
def test_interrupt_before_it_plays_leaves_nothing(start_demo, demo_folder, moment):
    demo = start_demo("--for", "600")
    demo.until(moment)
    demo.process.send_signal(signal.SIGINT)
    assert demo.ended(2 * STOP_SECONDS) == 0
    assert "stopped" in demo.output
    require_nothing_left(demo, demo_folder)


def test_reader_that_goes_away_ends_the_demo_in_order(demo_folder):
    process = subprocess.Popen(
        [*COMMAND, "--data-dir", str(demo_folder), "--for", "600", "--workers", "1"],
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
    assert not (demo_folder / "cluster" / "postmaster.pid").exists()

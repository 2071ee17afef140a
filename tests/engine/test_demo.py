"""`leasehold demo`, which `make run` starts: its output, and that it leaves nothing behind."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest

from leasehold.embedded.server import EmbeddedPostgres
from tests.support.demo_process import STOP_SECONDS, require_nothing_left

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("demo_folder", ["first run"], indirect=True)
def test_demo_ends_with_nothing_lost_and_nothing_doubled(start_demo, demo_folder):
    demo = start_demo("--for", "6")
    assert demo.ended() == 0, demo.output
    summary = demo.summary()
    assert (summary["lost"], summary["doubled"], summary["exhausted"]) == (0, 0, 0), demo.output
    assert summary["disordered"] == 0, demo.output
    assert summary["enqueued"] >= 20
    finished = summary["enqueued"] - summary["rejected"] - summary["held"]
    assert finished <= summary["effects"] <= summary["enqueued"]
    assert "\x1b" not in demo.output
    password = (demo_folder / "password").read_text().strip()
    assert password not in demo.output
    assert f"in {demo_folder / 'password'}" in demo.output
    assert len(re.findall(r"^ +[\d.]+ s  enqueued \d+  finished", demo.output, re.MULTILINE)) >= 3
    require_nothing_left(demo, demo_folder)


@pytest.mark.program("curl")
def test_curl_examples_of_the_readme_work_on_the_api_of_the_demo(start_demo, demo_folder):
    demo = start_demo("--for", "600")
    address = demo.until(r"^API +(http://\S+)\s").group(1)
    text = (ROOT / "README.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("curl ")]
    assert len(lines) == 4
    answers = [curl(line, address) for line in [lines[0], *lines]]
    statuses = [re.match(r"HTTP/1.1 (\d+)", answer) for answer in answers[:3]]
    assert [found.group(1) for found in statuses] == ["201", "200", "201"]
    assert '"order-4711"' in answers[3]
    demo.process.send_signal(signal.SIGINT)
    assert demo.ended(STOP_SECONDS) == 0, demo.output
    assert (demo.summary()["lost"], demo.summary()["doubled"]) == (0, 0)
    require_nothing_left(demo, demo_folder)


def curl(line, address):
    """Run a line of the README, against the address that the demo has said."""
    line = line.replace("http://127.0.0.1:8080", address)
    return subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout


def test_claims_of_a_killed_worker_are_recovered(start_demo, demo_folder):
    demo = start_demo("--for", "3", "--kill")
    assert demo.ended() == 0, demo.output
    killed = re.search(r"KILLED worker \d .* while it held (\d+) claims", demo.output)
    claims = int(killed.group(1))
    assert claims >= 1
    told = re.findall(r"recovered (\w+) [\w-]{10} after ([\d.]+) s: (\w+)", demo.output)
    assert len(told) + demo.output.count("its result had been recorded") == claims
    assert all(float(seconds) > 1 for _, seconds, _ in told), "not before the leases ended"
    assert {state for _, _, state in told} <= {"ZOMBIE_REQUEUE", "IN_DOUBT"}
    assert "worker 3 starts as its replacement" in demo.output
    assert (demo.summary()["lost"], demo.summary()["doubled"]) == (0, 0)
    assert demo.summary()["disordered"] == 0
    require_nothing_left(demo, demo_folder)


def test_terminal_shows_a_live_view_until_ctrl_c(start_demo, demo_folder):
    demo = start_demo(terminal=True)
    demo.until(r"postgresql://\S+")
    demo.until("DISPATCHED")
    # A stream is held only while it has work, too short for a view to be sure to show its lease.
    demo.until(r"accounts\s+1\s+\S*DISPATCHED")
    for title in ("Instances", "Leases", "Targets", "Latest ledger rows", "leasehold-reap"):
        demo.until(title)
    demo.press_ctrl_c()
    assert demo.ended(STOP_SECONDS) == 0, demo.output
    assert (demo.summary()["lost"], demo.summary()["doubled"]) == (0, 0)
    # The normal screen is back, with its cursor.
    assert demo.output.rindex("\x1b[?1049l") < demo.output.rindex("stopping:")
    assert "\x1b[?25h" in demo.output
    require_nothing_left(demo, demo_folder)


def test_password_is_shown_on_request_and_opens_the_database(start_demo, demo_folder):
    demo = start_demo("--for", "600", "--workers", "1", "--show-password")
    address = demo.until(r"^database +(postgresql://\S+)\s").group(1)
    assert (demo_folder / "password").read_text().strip() in address
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT count(*) FROM leasehold.intents").fetchone()
    demo.process.send_signal(signal.SIGINT)
    assert demo.ended(STOP_SECONDS) == 0, demo.output


def test_second_run_removes_the_database_of_the_first(start_demo, demo_folder):
    for _ in range(2):
        demo = start_demo("--for", "1", "--workers", "1")
        assert demo.ended() == 0, demo.output
    with EmbeddedPostgres(demo_folder) as server, psycopg.connect(server.url) as connection:
        names = connection.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'leasehold_demo_%'"
        ).fetchall()
    assert len(names) == len(list(demo_folder.glob("leasehold_demo_*"))) == 1


def test_unusable_data_folder_fails_with_one_line(tmp_path, start_demo):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    demo = start_demo("--data-dir", str(blocked / "data"))
    assert demo.ended() == 1
    assert demo.output.startswith("Error: ")

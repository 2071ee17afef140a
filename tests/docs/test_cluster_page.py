"""The examples of docs/how-to/cluster.md work as printed, and its defaults are the real ones."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import psycopg
import pytest

from leasehold.domain.timing import Timings
from tests.docs.test_examples import blocks
from tests.support.engine import WAIT_SECONDS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "cluster.md"


async def test_own_code_runs_as_leader_under_a_new_epoch_each_time(database):
    [example] = blocks(PAGE, "python leader")
    names: dict[str, object] = {}
    exec(example, names)
    epochs = [await names["report_once"](database.url_as("executor")) for _ in range(2)]
    assert epochs == [1, 2]


def stop_leader(database, folder, program):
    """Stop a leader with SIGTERM, and return its exit code and whether another leads at once."""
    script = folder / "leader.py"
    script.write_text(f"{program}\n\nimport sys\n\nasyncio.run(main(sys.argv[1]))\n")
    command = [sys.executable, str(script), database.url_as("executor")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "leading under epoch 1\n"
            process.send_signal(signal.SIGTERM)
            code = process.wait(WAIT_SECONDS)
        finally:
            process.kill()
    [row] = database.connect("executor").execute(
        "SELECT * FROM leasehold.acquire_lease('nightly-report', 'other', 60)"
    )
    return code, row["acquired"]


def test_leader_that_is_stopped_as_on_the_page_releases_its_lease(database, tmp_path):
    [program] = blocks(PAGE, "python leader-stop")
    assert stop_leader(database, tmp_path, program) == (0, True)


def test_leader_without_the_handler_of_the_page_leaves_its_lease_to_expire(database, tmp_path):
    [program] = blocks(PAGE, "python leader-stop")
    lines = [line for line in program.splitlines() if "add_signal_handler" not in line]
    assert len(lines) == len(program.splitlines()) - 1
    assert stop_leader(database, tmp_path, "\n".join(lines)) == (-signal.SIGTERM, False)


def test_transaction_of_a_former_leader_is_refused(database):
    [statement] = blocks(PAGE, "sql")
    with pytest.raises(psycopg.DatabaseError) as refusal:
        database.connect("executor").execute(statement)
    assert refusal.value.sqlstate == "P7002"


def test_contract_of_the_page_can_be_published(outbox):
    [text] = blocks(PAGE, "toml")
    terms = tomllib.loads(text)["targets"]["bookings"]
    assert outbox.publish("bookings", **terms) == 1


def test_timings_of_the_page_are_the_defaults():
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `LEASEHOLD_"):
            name, default = (cell.strip(" `") for cell in line.split("|")[1:3])
            assert getattr(Timings(), name.removeprefix("LEASEHOLD_").lower()) == float(default)

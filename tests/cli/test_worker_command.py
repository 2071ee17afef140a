"""`leasehold worker`: what it says about its options and variables."""

from __future__ import annotations

from signal import SIGTERM

import pytest

from tests.support.cli_process import assert_one_line_of_error, leasehold
from tests.support.engine import Worker


@pytest.fixture
def worker(database, tmp_path):
    started = []

    def start(*arguments, **environment):
        more = {f"LEASEHOLD_{name.upper()}": value for name, value in environment.items()}
        log = tmp_path / f"worker-{len(started)}.log"
        url = database.url_as("executor")
        started.append(Worker(url, log, "worker", *arguments, module="leasehold", environment=more))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_wrong_option_is_blamed_and_not_a_variable(database):
    result = leasehold("worker", "--concurrency", 0, url=database.url)
    assert_one_line_of_error(result, "Error: --concurrency: Input should be greater than or equal")
    assert "LEASEHOLD_CONCURRENCY" not in result.stderr
    result = leasehold("worker", url=database.url, concurrency="0")
    assert_one_line_of_error(result, "Error: LEASEHOLD_CONCURRENCY: Input should be")


async def test_misspelt_variable_is_named_with_the_setting_it_resembles(worker):
    one = worker(concurency="50")
    await one.started()
    [line] = one.lines("variable_ignored")
    assert line["variable"] == "LEASEHOLD_CONCURENCY"
    assert "LEASEHOLD_CONCURRENCY" in line["advice"]
    one.send(SIGTERM)
    assert await one.ended() == 0


def test_misspelt_variable_is_named_by_every_command():
    result = leasehold("targets", "list", url=None, databse_url="postgresql://h/x")
    assert result.returncode == 1
    warning, error = result.stderr.splitlines()
    assert warning == (
        "Warning: LEASEHOLD_DATABSE_URL is ignored: it is not a setting; "
        "did you mean LEASEHOLD_DATABASE_URL?"
    )
    assert "no database" in error


async def test_targets_in_the_environment_are_separated_by_commas(worker, outbox):
    gateway = {"kind": "http", "url": "https://sms.example.org"}
    for target in ("sms", "mail", "fax"):
        outbox.publish(target, gateway=gateway)
    one = worker(targets="sms, mail")
    await one.started()
    assert one.lines("worker_started")[0]["targets"] == ["mail", "sms"]

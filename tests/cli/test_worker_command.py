"""`leasehold worker`: what it says about its options and variables."""

from __future__ import annotations

import socket
from signal import SIGTERM

import pytest

from tests.support.cli_process import assert_one_line_of_error
from tests.support.cli_process import forked_leasehold as leasehold
from tests.support.engine import Worker, until


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
    assert_one_line_of_error(result, "Error: --concurrency: must be greater than or equal")
    assert "LEASEHOLD_CONCURRENCY" not in result.stderr
    result = leasehold("worker", url=database.url, concurrency="0")
    assert_one_line_of_error(result, "Error: LEASEHOLD_CONCURRENCY: must be")


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_stream_timings_that_cannot_work_are_refused_with_the_reason(database, command):
    result = leasehold(command, "--stream-claim-seconds", 12, url=database.url)
    assert_one_line_of_error(result, "stream_claim_seconds / 3 (4): two heartbeats may fail")
    result = leasehold(command, "--stream-grace-seconds", 86400, url=database.url)
    assert_one_line_of_error(result, "stream_linger_seconds (86400) must be more than")
    result = leasehold(command, "--stream-linger-seconds", 59, url=database.url)
    assert_one_line_of_error(result, "Error: --stream-linger-seconds: must be greater")
    result = leasehold(command, url=database.url, stream_grace_seconds="-1")
    assert_one_line_of_error(result, "Error: LEASEHOLD_STREAM_GRACE_SECONDS: must be")


async def test_stream_is_claimed_with_the_timings_of_the_options(worker, outbox, database):
    # Nobody accepts the connection, so the call lasts, and the stream stays held.
    silent = socket.create_server(("127.0.0.1", 0))
    gateway = {
        "kind": "http",
        "url": f"http://127.0.0.1:{silent.getsockname()[1]}",
        "allow_private": True,
    }
    outbox.publish("pay", scope="stream", gateway=gateway)
    outbox.enqueue(target="pay", stream="s")
    timings = ("--stream-claim-seconds", "40", "--stream-grace-seconds", "0")
    one = worker(*timings, "--stream-linger-seconds", "3600")
    await one.started()
    lease = await until(
        lambda: database.execute(
            "SELECT lease_seconds, grace_seconds FROM leasehold.leases WHERE lease_seconds > 0"
            " AND stream = 's'"
        )
    )
    assert [(row["lease_seconds"], row["grace_seconds"]) for row in lease] == [(40, 0)]
    silent.close()


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

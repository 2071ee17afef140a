"""`leasehold serve` with the options for leaders, which `leasehold worker` has too."""

from __future__ import annotations

import pytest

from tests.support.cli_process import assert_one_line_of_error
from tests.support.cli_process import forked_leasehold as leasehold
from tests.support.serve_process import Serving

NAME = "cluster/submission-manager-executor"


@pytest.fixture
def serving(database, outbox, tmp_path):
    # No test enqueues anything, so this address is never called.
    gateway = {"kind": "http", "url": "https://ledger.example.org"}
    outbox.publish("ledger", scope="cluster", gateway=gateway)
    started = []

    def start(*arguments, **environment):
        log = tmp_path / f"serve-{len(started)}.log"
        started.append(Serving(database, log, *arguments, **environment))
        return started[-1]

    yield start
    for one in started:
        one.close()


async def test_standalone_instance_leads_before_it_accepts_requests(serving):
    # A leader that gets no connection in time steps down, and a start may block the event loop.
    one = serving("--standalone", pool_wait_seconds="10")
    async with await one.client() as client:
        ready = (await client.get("/readyz")).json()
    assert ready["scopes"][NAME]["mode"] == "standalone"


async def test_elector_advisory_elects_with_an_advisory_lock(serving, database):
    one = serving("--elector", "advisory")
    await one.logged("leader_acquired")
    # The instance's other, short advisory locks have small keys.
    locks = database.execute(
        "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        "   AND classid <> 0"
        "   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    assert len(locks) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--elector", "zookeeper"), "Error: --elector: must be 'row' or 'advisory'"),
        (("--port", "70000"), "Error: --port: must be less than or equal to 65535"),
        (("--standalone", "--no-execute"), "--standalone cannot be used with --no-execute"),
        (("--drain-seconds", "26"), "drain_seconds (26) must not exceed 25: an instance stops"),
    ],
)
def test_impossible_leader_options_fail_with_one_line(database, arguments, message):
    assert_one_line_of_error(leasehold("serve", *arguments, url=database.url), message)

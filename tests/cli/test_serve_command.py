"""How `leasehold serve` is told to lead: as `leasehold worker` is."""

from __future__ import annotations

import pytest

from tests.support.cli_process import assert_one_line_of_error, leasehold
from tests.support.serve_process import Serving

NAME = "cluster/submission-manager-executor"


@pytest.fixture
def serving(database, outbox, tmp_path):
    # Nothing is handed in, so nobody is ever asked there.
    gateway = {"kind": "http", "url": "https://ledger.example.org"}
    outbox.publish("ledger", scope="cluster", gateway=gateway)
    started = []

    def start(*arguments):
        log = tmp_path / f"serve-{len(started)}.log"
        started.append(Serving(database, log, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.close()


async def test_instance_that_stands_alone_leads_before_it_serves(serving):
    async with await serving("--standalone").client() as client:
        ready = (await client.get("/readyz")).json()
    assert ready["scopes"][NAME]["mode"] == "standalone"


async def test_leader_is_elected_by_the_lock_where_that_is_asked_for(serving, database):
    one = serving("--elector", "advisory")
    await one.logged("leader_acquired")
    # The other locks that an instance takes, for moments, are of small numbers.
    locks = database.execute(
        "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        "   AND classid <> 0"
        "   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    assert len(locks) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--elector", "zookeeper"), "LEASEHOLD_ELECTOR: Input should be 'row' or 'advisory'"),
        (("--standalone", "--no-execute"), "--standalone is refused with --no-execute"),
    ],
)
def test_what_cannot_lead_is_told_in_one_line(database, arguments, told):
    assert_one_line_of_error(leasehold("serve", *arguments, url=database.url), told)

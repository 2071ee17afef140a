"""`--embedded`: worker and serve without a database server of one's own."""

from __future__ import annotations

import re
from signal import SIGTERM

import httpx
import psycopg
import pytest

from leasehold.embedded.binaries import find_binaries
from leasehold.sandbox import Sandbox
from tests.embedded.workspace import Workspace
from tests.support.cli_process import assert_one_line_of_error
from tests.support.cli_process import forked_leasehold as leasehold
from tests.support.engine import Worker, until

TARGETS = """
[targets.sms]
scope = "item"
guarantee = "keyed"
gateway = {{ kind = "http", url = "{url}/keyed", allow_private = true }}

[targets.ledger]
scope = "cluster"
guarantee = "keyed"
gateway = {{ kind = "http", url = "{url}/keyed", allow_private = true }}
"""


@pytest.fixture
def workspace():
    workspace = Workspace(find_binaries())
    yield workspace
    workspace.close()


@pytest.fixture
def start(workspace, tmp_path):
    started = []

    def start(*arguments, **environment):
        log = tmp_path / f"process-{len(started)}.log"
        more = {
            name.upper() if name.startswith("test_") else f"LEASEHOLD_{name.upper()}": value
            for name, value in environment.items()
        }
        more |= {"LEASEHOLD_HTTP_DRAIN_SECONDS": "0", "LEASEHOLD_HTTP_PORT": "0"}
        command = [*arguments, "--data-dir", str(workspace.data_dir)]
        started.append(Worker("", log, *command, module="leasehold", environment=more))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def command(workspace):
    """Runs another command on the same embedded database."""
    return lambda *arguments: leasehold(
        *arguments, url=None, embedded="true", data_dir=str(workspace.data_dir)
    )


@pytest.mark.parametrize("name", ["worker", "serve"])
def test_command_without_a_database_url_offers_the_embedded_database(name):
    result = leasehold(name, url=None)
    assert_one_line_of_error(result, "LEASEHOLD_DATABASE_URL", "--embedded")


@pytest.mark.parametrize("name", ["worker", "serve"])
def test_embedded_beside_a_database_url_is_refused(name):
    result = leasehold(name, "--embedded", url="postgresql://db.example/app")
    assert_one_line_of_error(result, "embedded cannot be used with database_url")


def test_plan_of_an_embedded_migration_creates_no_schema(command):
    plans = [command("migrate", "--plan") for _ in range(2)]
    assert all("Would apply roles and version tables" in plan.stdout for plan in plans), plans
    applied = command("migrate")
    assert applied.stdout.startswith("Applied "), applied.stderr
    assert command("migrate", "--plan").stdout == "Nothing to do.\n"


async def test_embedded_worker_submits_what_other_commands_enqueue(
    start, command, workspace, tmp_path
):
    async with Sandbox(seed=1) as sandbox:
        (tmp_path / "targets.toml").write_text(TARGETS.format(url=sandbox.url))
        worker = start("worker", "--embedded")
        await worker.started()
        applied = command("targets", "apply", "--file", tmp_path / "targets.toml")
        assert applied.returncode == 0, applied.stderr
        for target in ("sms", "ledger"):
            enqueued = command("enqueue", target, "--payload", "1")
            assert enqueued.returncode == 0, enqueued.stderr
        await until(lambda: len(accepted_ids(command)) == 2, context=worker.log.read_text)
    password = (workspace.data_dir / "password").read_text().strip()
    assert password not in worker.log.read_text()
    assert workspace.is_served()
    worker.send(SIGTERM)
    assert await worker.ended() == 0
    assert not workspace.is_served(), "the last user stops the server"


def accepted_ids(command):
    listed = command("intents", "list", "--status", "accepted")
    assert listed.returncode == 0, listed.stderr
    return re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", listed.stdout)


CLINGS = """
[targets.own]
scope = "item"
guarantee = "keyed"
gateway = { kind = "python", function = "tests.support.python_gateways:cling" }
"""
FORCED = {"a second signal": 128 + SIGTERM, "a stuck call": 0}


@pytest.mark.parametrize("why", FORCED)
async def test_embedded_database_is_stopped_by_a_worker_that_cannot_end_in_order(
    start, command, workspace, tmp_path, why
):
    (tmp_path / "targets.toml").write_text(CLINGS)
    assert command("targets", "apply", "--file", tmp_path / "targets.toml").returncode == 0
    seconds = "0.1" if why == "a stuck call" else "20"
    worker = start("worker", "--embedded", test_folder=str(tmp_path), shutdown_seconds=seconds)
    assert command("enqueue", "own", "--payload", "1").returncode == 0
    await until((tmp_path / "cling").exists, context=worker.log.read_text)
    worker.send(SIGTERM)
    await worker.logged("stop_requested")
    if why == "a second signal":
        worker.send(SIGTERM)
    assert await worker.ended() == FORCED[why]
    assert not workspace.is_served()


async def test_embedded_serve_is_standalone_and_leads_from_the_start(start, command, tmp_path):
    async with Sandbox(seed=1) as sandbox:
        (tmp_path / "targets.toml").write_text(TARGETS.format(url=sandbox.url))
        assert command("targets", "apply", "--file", tmp_path / "targets.toml").returncode == 0
        serving = start("serve", "--embedded", "--no-auth", pool_wait_seconds="10")
        url = (await serving.logged("server_started"))["url"]
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            scopes = (await client.get("/readyz")).json()["scopes"]
            assert scopes["cluster/submission-manager-executor"]["mode"] == "standalone"
            new = {"target": "ledger", "payload": 1}
            response = await client.post("/v1/intents?wait_seconds=30", json=new)
            assert response.json()["intent"]["status"] == "accepted", response.text


async def test_embedded_serve_that_does_not_execute_need_not_be_standalone(start):
    serving = start("serve", "--embedded", "--no-execute")
    await serving.logged("server_started")


async def test_embedded_server_that_dies_is_restarted_for_its_worker(start, workspace):
    worker = start("worker", "--embedded")
    await worker.started()
    workspace.kill_server()
    await worker.logged("embedded_database_restarted")
    server = workspace.postgres().start()
    try:
        with psycopg.connect(server.url) as connection:
            query = "SELECT role FROM leasehold.instances WHERE last_seen_at > %s"
            [now] = connection.execute("SELECT clock_timestamp()").fetchone()
            seen = await until(lambda: connection.execute(query, [now]).fetchone())
            assert seen == ("standalone",)
    finally:
        server.stop()

"""A start without a usable database: wait while it is away, refuse what waiting cannot mend."""

from __future__ import annotations

from signal import SIGTERM

import pytest
from psycopg.conninfo import make_conninfo

from tests.support.cli_process import assert_one_line_of_error, leasehold
from tests.support.engine import Worker, until
from tests.support.tcp_proxy import TcpProxy

COMMANDS = ["worker", "serve", "serve --no-execute"]
STARTED = {"worker": "worker_started", "serve": "server_started"}
CLUSTER = {"cluster_acquire_seconds": "0.5"}
NEWER = "INSERT INTO leasehold.schema_migrations (version, name, checksum, oldest_release)"


@pytest.fixture
def start(tmp_path):
    """Starts a command of the list above as a process."""
    started = []

    def start(command, url, **environment):
        log = tmp_path / f"process-{len(started)}.log"
        settings = {f"LEASEHOLD_{name.upper()}": value for name, value in environment.items()}
        settings |= {"LEASEHOLD_HTTP_PORT": "0", "LEASEHOLD_HTTP_DRAIN_SECONDS": "0"}
        process = Worker(url, log, *command.split(), module="leasehold", environment=settings)
        started.append(process)
        return process

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize("command", COMMANDS)
async def test_start_waits_for_a_database_that_is_away(engine, start, command):
    engine.publish("sms")
    async with TcpProxy(engine.database.url) as proxy:
        proxy.cut()
        process = start(command, proxy.through(engine.database.url))
        line = await process.logged("database_awaited")
        assert line["gives_up_in_seconds"] > 30
        assert process.process.poll() is None
        proxy.heal()
        await process.logged(STARTED[command.split()[0]])
        if "--no-execute" not in command:
            await engine.until_status(engine.outbox.enqueue(1))


@pytest.mark.parametrize(
    ("command", "table"),
    [
        ("serve", "schema_sources"),
        ("serve", "contracts"),
        ("serve", "api_tokens"),
        ("worker --standalone", "leases"),
    ],
)
async def test_start_goes_on_after_the_database_went_away_in_its_middle(
    engine, start, command, table
):
    engine.publish("sms", scope="cluster")
    async with TcpProxy(engine.database.url) as proxy:
        blocker = engine.database.session()
        blocker.run("BEGIN")
        blocker.run(f"LOCK TABLE leasehold.{table}")
        process = start(command, proxy.through(engine.database.url), **CLUSTER)
        await process.logged("database_awaited")
        proxy.cut()
        count = len(process.lines("database_awaited"))
        await until(lambda: len(process.lines("database_awaited")) > count + 1)
        blocker.run("COMMIT")
        engine.outbox.expire_lease()  # the start that was cut off may have led
        proxy.heal()
        await process.logged(STARTED[command.split()[0]])
        await engine.until_status(engine.outbox.enqueue(1))


@pytest.mark.parametrize("command", COMMANDS)
async def test_start_gives_up_after_the_time_that_the_operator_chose(engine, command):
    async with TcpProxy(engine.database.url) as proxy:
        url = proxy.through(engine.database.url)
    result = leasehold(*command.split(), "--start-seconds", "0", url=url, http_port="0")
    assert_one_line_of_error(result, "cannot connect to the database", "--start-seconds")
    result = leasehold(*command.split(), url=url, http_port="0", start_seconds="3")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "database_awaited" in result.stdout + result.stderr


@pytest.mark.parametrize("command", COMMANDS)
async def test_start_that_waits_ends_on_sigterm(engine, start, command):
    async with TcpProxy(engine.database.url) as proxy:
        url = proxy.through(engine.database.url)
    process = start(command, url, start_seconds="3600")
    await process.logged("database_awaited")
    process.send(SIGTERM)
    assert await process.ended() == 0
    assert "Traceback" not in process.log.read_text()


def test_login_that_is_refused_is_told_at_once(engine):
    url = make_conninfo(engine.database.url, password="wrong")
    assert_one_line_of_error(leasehold("worker", url=url), "password authentication failed")
    url = make_conninfo(engine.database.url, dbname="nowhere")
    assert_one_line_of_error(leasehold("worker", url=url), '"nowhere" does not exist')


@pytest.mark.parametrize("command", COMMANDS)
async def test_start_on_an_older_schema_says_to_migrate(engine, command):
    engine.database.execute(
        "UPDATE leasehold.schema_sources SET checksum = 'old', release = '0.0.1'"
        " WHERE path = 'functions/claim_outbox_batch.sql'"
    )
    result = leasehold(*command.split(), url=engine.database.url, http_port="0")
    assert_one_line_of_error(result, "claim_outbox_batch.sql", "run `leasehold migrate`")


@pytest.mark.parametrize("command", COMMANDS)
async def test_start_on_a_schema_that_outgrew_this_release_says_so(engine, command):
    engine.database.execute(f"{NEWER} VALUES (9999, 'newest', 'x', '99.1')")
    result = leasehold(*command.split(), url=engine.database.url, http_port="0")
    assert_one_line_of_error(result, "too old", "upgrade it to 99.1")


@pytest.mark.parametrize("command", COMMANDS)
async def test_start_on_a_newer_schema_that_supports_this_release_warns(engine, start, command):
    engine.database.execute(f"{NEWER} VALUES (9999, 'newest', 'x', NULL)")
    process = start(command, engine.database.url)
    await process.logged(STARTED[command.split()[0]])
    [line] = process.lines("schema_newer")
    assert (line["schema_version"], line["level"]) == (9999, "warning")
    assert "upgrade" in line["advice"]

"""Fixtures for all tests: a fresh database per test, on every PostgreSQL version installed here."""

from __future__ import annotations

import gc
import os
import secrets
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from leasehold.executor.item import Transitions
from tests.support import required_programs, xdist_order
from tests.support.database import Database
from tests.support.outbox import Outbox
from tests.support.pooler import Pooler, run_pooler
from tests.support.servers import Server, Servers, available_binaries, on_first_server

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from xdist.remote import Producer

# How long an example takes says how busy the machine is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Use two more workers than cores, at most four: many tests wait for processes or leases."""
    return min(len(os.sched_getaffinity(0)) + 2, 4)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: Producer
) -> xdist_order.Scheduling | None:
    return xdist_order.Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have illegal transitions of items raise, and draw the seed of the random examples.

    The option repeats those of another run; xdist passes it on. Tests with `derandomize` have the
    same examples each time.
    """
    Transitions.are_strict = True
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = secrets.randbelow(2**32)


def pytest_report_header(config: pytest.Config) -> str:
    return f"random examples: --hypothesis-seed={config.option.hypothesis_seed} repeats them"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Keep the garbage collector away from thousands of tests, which stay until the end.

    It would take a quarter of the collection, which each worker repeats, and time of each test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    for item in items:
        one_is_enough = item.get_closest_marker("one_server") and not item.get_closest_marker(
            "every_server"
        )
        if one_is_enough and not on_first_server(item):
            item.add_marker(pytest.mark.thorough)
    yield
    if hasattr(config, "workerinput"):
        xdist_order.order(items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    required_programs.require_programs(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    required_programs.report_missing(terminalreporter)
    if terminalreporter.stats.keys() & {"failed", "error"}:
        terminalreporter.write_line(pytest_report_header(terminalreporter.config))


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The servers of this test process; each xdist worker has its own."""
    servers = Servers(os.environ.get("PYTEST_XDIST_WORKER", "main"))
    yield servers
    servers.stop()


@pytest.fixture(scope="session", params=list(available_binaries()))
def postgres(request: pytest.FixtureRequest) -> str:
    """Runs the test once on each PostgreSQL version: the embedded one and the system's."""
    return request.param


@pytest.fixture(scope="module")
def server(postgres: str, servers: Servers) -> Server:
    """The server that all tests of one version share.

    Module scope, because a file may override `postgres`: the next file must look it up again.
    """
    return servers.get(postgres)


@pytest.fixture
def pristine_server(postgres: str, servers: Servers) -> Iterator[Server]:
    """A server without our roles, for tests that create them; the test drops its databases."""
    server = servers.get(postgres, "pristine")
    yield server
    server.drop_roles()


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    """A fresh database with the schema of this release."""
    database = Database(server, server.create_database())
    yield database
    database.close()


@pytest.fixture
def empty_database(server: Server) -> Iterator[Database]:
    """A fresh database without the schema; the roles exist, because they belong to the server."""
    database = Database(server, server.create_database(empty=True))
    yield database
    database.close()


@pytest.fixture
def outbox(database: Database) -> Outbox:
    """The verbs of the database tests, on a fresh database."""
    return Outbox(database)


@pytest.fixture
def pooler(database: Database) -> Iterator[Pooler]:
    """A transaction pooler in front of `database`; mark the test with program("pgbouncer")."""
    with run_pooler(database) as pooler:
        yield pooler

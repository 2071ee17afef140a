"""Fixtures of the tests that start worker processes; import them into a folder's conftest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasehold.sandbox import Sandbox
from tests.support.engine import Engine
from tests.support.servers import available_binaries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.support.database import Database
    from tests.support.outbox import Outbox


@pytest.fixture(scope="session")
def postgres() -> str:
    """One PostgreSQL only: starting processes on each version would take too long."""
    return next(iter(available_binaries()))


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    """The sandbox gateway, in the test's own process."""
    async with Sandbox(seed=1) as sandbox:
        yield sandbox


@pytest.fixture
def engine(
    database: Database, outbox: Outbox, sandbox: Sandbox, tmp_path: Path
) -> Iterator[Engine]:
    """Starts workers on the test's database; stops them after the test."""
    engine = Engine(database, outbox, sandbox, tmp_path)
    yield engine
    engine.close()

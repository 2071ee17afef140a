"""Fixtures of the engine's tests. They start processes, so they run on one PostgreSQL only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasehold.gateway.sandbox import Sandbox
from tests.support.engine import Engine
from tests.support.servers import available_binaries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.support.database import Database
    from tests.support.outbox import Outbox


@pytest.fixture(scope="session")
def postgres() -> str:
    return next(iter(available_binaries()))


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(seed=1) as sandbox:
        yield sandbox


@pytest.fixture
def engine(
    database: Database, outbox: Outbox, sandbox: Sandbox, tmp_path: Path
) -> Iterator[Engine]:
    engine = Engine(database, outbox, sandbox, tmp_path)
    yield engine
    engine.close()

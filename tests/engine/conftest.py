"""Fixtures of the engine's tests. They start processes, so they run on one PostgreSQL only."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leasehold.sandbox import Sandbox
from tests.support.demo import Demo
from tests.support.engine import Engine
from tests.support.memory import roomy_memory
from tests.support.servers import available_binaries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

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


@pytest.fixture
def demo_folder():
    """A folder that the user who runs the server, when we are root, may enter."""
    path = Path(tempfile.mkdtemp(prefix="leasehold-demo-", dir=roomy_memory()))
    path.chmod(0o711)
    yield path / "data"
    shutil.rmtree(path)


@pytest.fixture
def start_demo(demo_folder):
    started = []

    def start(*arguments, terminal=False):
        started.append(Demo(demo_folder, *arguments, terminal=terminal))
        return started[-1]

    yield start
    for one in started:
        one.close()

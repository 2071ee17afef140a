"""Fixtures of the engine tests."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.support.demo_process import Demo
from tests.support.engine_fixtures import engine, postgres, sandbox
from tests.support.ram_disk import ram_disk

__all__ = ["engine", "postgres", "sandbox"]


@pytest.fixture
def demo_folder():
    """A folder that the server's user can enter when the tests run as root."""
    path = Path(tempfile.mkdtemp(prefix="leasehold-demo-", dir=ram_disk()))
    path.chmod(0o711)
    yield path / "data"
    shutil.rmtree(path)


@pytest.fixture
def start_demo(demo_folder):
    """Starts `leasehold demo`; stops it after the test."""
    started = []

    def start(*arguments, terminal=False):
        started.append(Demo(demo_folder, *arguments, terminal=terminal))
        return started[-1]

    yield start
    for one in started:
        one.close()

"""Fixtures of the engine tests."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasehold.embedded.server import EmbeddedPostgres
from tests.support.demo_process import Demo
from tests.support.engine_fixtures import engine, postgres, sandbox
from tests.support.ram_disk import ram_disk

__all__ = ["engine", "postgres", "sandbox"]


@contextmanager
def _folder():
    """A folder that the server's user can enter when the tests run as root."""
    path = Path(tempfile.mkdtemp(prefix="leasehold-demo-", dir=ram_disk()))
    path.chmod(0o711)
    try:
        yield path / "data"
    finally:
        shutil.rmtree(path)


@pytest.fixture(scope="session")
def new_cluster():
    """A database that no demo has used, to copy: initdb would take as long as a short demo."""
    with _folder() as folder:
        with EmbeddedPostgres(folder):
            pass
        yield folder


@pytest.fixture
def demo_folder(request, new_cluster):
    """The data folder of a demo: with a database, unless the test asks for a first run."""
    with _folder() as folder:
        if getattr(request, "param", None) != "first run":
            subprocess.run(["cp", "-a", new_cluster, folder], check=True)
        yield folder


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

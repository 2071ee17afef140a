"""Fixtures: a workspace for a test's servers, with the default programs or all that are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasehold.embedded.binaries import (
    PostgresBinaries,
    find_binaries,
    system_binaries,
    wheel_binaries,
)
from tests.embedded.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOUND = [one for one in (wheel_binaries(), *system_binaries()) if one is not None]


class Templates:
    """A stopped database of each PostgreSQL, to copy: initdb would take most of a test's time."""

    def __init__(self):
        self._workspaces: dict[PostgresBinaries, Workspace] = {}

    def of(self, binaries: PostgresBinaries) -> Path:
        if binaries not in self._workspaces:
            workspace = self._workspaces[binaries] = Workspace(binaries)
            workspace.postgres().start().stop()
        return self._workspaces[binaries].data_dir

    def close(self) -> None:
        for workspace in self._workspaces.values():
            workspace.close()


@pytest.fixture(scope="session")
def templates() -> Iterator[Templates]:
    templates = Templates()
    yield templates
    templates.close()


@pytest.fixture(params=FOUND, ids=lambda one: f"{one.source}-{one.version}")
def any_binaries(request: pytest.FixtureRequest) -> PostgresBinaries:
    return request.param


@pytest.fixture
def any_empty_workspace(any_binaries: PostgresBinaries) -> Iterator[Workspace]:
    """A workspace without a database, for each PostgreSQL on this machine."""
    yield from _closing(Workspace(any_binaries))


@pytest.fixture
def any_workspace(any_binaries: PostgresBinaries, templates: Templates) -> Iterator[Workspace]:
    """A workspace with a stopped database, for each PostgreSQL on this machine."""
    yield from _closing(Workspace(any_binaries, templates.of(any_binaries)))


@pytest.fixture
def empty_workspace() -> Iterator[Workspace]:
    """A workspace without a database, with the default programs."""
    yield from _closing(Workspace(find_binaries()))


@pytest.fixture
def workspace(templates: Templates) -> Iterator[Workspace]:
    """A workspace with a stopped database, with the default programs."""
    binaries = find_binaries()
    yield from _closing(Workspace(binaries, templates.of(binaries)))


def _closing(workspace: Workspace) -> Iterator[Workspace]:
    try:
        yield workspace
    finally:
        workspace.close()

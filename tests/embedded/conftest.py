"""Fixtures: a place for a test's databases, with the usual programs or each one found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasehold.embedded.server import (
    PostgresBinaries,
    find_binaries,
    system_binaries,
    wheel_binaries,
)
from tests.embedded.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOUND = [one for one in (wheel_binaries(), *system_binaries()) if one is not None]


class Templates:
    """A stopped database of each PostgreSQL to copy: initdb is most of a test's time."""

    def __init__(self):
        self._places: dict[PostgresBinaries, Place] = {}

    def of(self, binaries: PostgresBinaries) -> Path:
        if binaries not in self._places:
            place = self._places[binaries] = Place(binaries)
            place.postgres().start().stop()
        return self._places[binaries].data_dir

    def close(self) -> None:
        for place in self._places.values():
            place.close()


@pytest.fixture(scope="session")
def templates() -> Iterator[Templates]:
    templates = Templates()
    yield templates
    templates.close()


@pytest.fixture(params=FOUND, ids=lambda one: f"{one.source}-{one.version}")
def any_binaries(request: pytest.FixtureRequest) -> PostgresBinaries:
    return request.param


@pytest.fixture
def any_empty_place(any_binaries: PostgresBinaries) -> Iterator[Place]:
    """A place for a database still to be made, with each PostgreSQL on this machine in turn."""
    yield from _closing(Place(any_binaries))


@pytest.fixture
def any_place(any_binaries: PostgresBinaries, templates: Templates) -> Iterator[Place]:
    """A place with a stopped database, with each PostgreSQL on this machine in turn."""
    yield from _closing(Place(any_binaries, templates.of(any_binaries)))


@pytest.fixture
def empty_place() -> Iterator[Place]:
    """A place for a database still to be made, with the programs that a user gets."""
    yield from _closing(Place(find_binaries()))


@pytest.fixture
def place(templates: Templates) -> Iterator[Place]:
    """A place with a stopped database, with the programs that a user gets."""
    binaries = find_binaries()
    yield from _closing(Place(binaries, templates.of(binaries)))


def _closing(place: Place) -> Iterator[Place]:
    try:
        yield place
    finally:
        place.close()

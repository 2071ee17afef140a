"""The commands as processes of their own: what they ask of the database, its tests try on each."""

from __future__ import annotations

import pytest

from tests.support.servers import available_binaries


@pytest.fixture(scope="session")
def postgres() -> str:
    return next(iter(available_binaries()))

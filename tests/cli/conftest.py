"""The commands run as processes, on one PostgreSQL: tests/database covers the other versions."""

from __future__ import annotations

import pytest

from tests.support.servers import available_binaries


@pytest.fixture(scope="session")
def postgres() -> str:
    return next(iter(available_binaries()))

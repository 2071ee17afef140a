"""Fixtures of the tests of the HTTP API. They start servers, so they run on one PostgreSQL only."""

from __future__ import annotations

import pytest

from tests.support.servers import available_binaries


@pytest.fixture(scope="session")
def postgres() -> str:
    return next(iter(available_binaries()))

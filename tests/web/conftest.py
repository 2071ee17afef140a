"""Fixtures for the tests of the HTTP API. They run on one PostgreSQL version only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.api import Api, serve
from tests.support.openapi import DOCUMENT
from tests.support.servers import available_binaries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.database import Database
    from tests.support.outbox import Outbox


@pytest.fixture(scope="session")
def postgres() -> str:
    return next(iter(available_binaries()))


@pytest.fixture
async def api(database: Database, outbox: Outbox) -> AsyncIterator[Api]:
    """The API on a new database with the target `sms`."""
    outbox.publish("sms")
    async with serve(database) as api:
        yield api


@pytest.fixture(scope="session")
def openapi() -> dict[str, Any]:
    """The OpenAPI document in the repository."""
    return json.loads(DOCUMENT.read_text())

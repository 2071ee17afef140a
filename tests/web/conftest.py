"""Fixtures of the tests of the HTTP API. They start servers, so they run on one PostgreSQL only."""

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
    """The API on a fresh database with a target `sms`."""
    outbox.publish("sms")
    async with serve(database) as api:
        yield api


@pytest.fixture(scope="session")
def openapi() -> dict[str, Any]:
    """The description of the API, as it is in the repository."""
    return json.loads(DOCUMENT.read_text())

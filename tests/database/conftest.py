"""One store per database role on a test's database, each with a login of that role."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from leasehold.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.database import Database


class Stores:
    """One open store per role."""

    def __init__(self, ingest, executor, operator, readonly):
        self.ingest: PostgresStore = ingest
        self.executor: PostgresStore = executor
        self.operator: PostgresStore = operator
        self.readonly: PostgresStore = readonly


@pytest.fixture
async def stores(database: Database) -> AsyncIterator[Stores]:
    roles = ("ingest", "executor", "operator", "readonly")
    async with AsyncExitStack() as opened:
        yield Stores(
            *[
                await opened.enter_async_context(PostgresStore(database.url_as(role)))
                for role in roles
            ]
        )

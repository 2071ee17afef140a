"""Contracts, which executors and readers read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.domain.errors import InvalidArgument
from leasehold.store.postgres.query import rows_of
from leasehold.store.reader_rows import PublishedContract

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.domain.contract import Contract
    from leasehold.store.postgres.query import Query

_PUBLISHED = rows_of(PublishedContract)


class PostgresContracts:
    """ContractStore on PostgreSQL, and the contract methods of ReaderStore."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def read_contracts(
        self, refused: Callable[[str, str], None] | None = None
    ) -> list[Contract]:
        """Read the current contract of every target that this release can read, by name."""
        contracts: list[Contract] = []
        for published in await self.read_published_contracts():
            try:
                contracts.append(published.contract())
            except InvalidArgument as error:
                if refused is not None:
                    refused(published.target, str(error))
        return contracts

    async def read_contract(self, target: str, version: int) -> Contract | None:
        published = await self.read_published_contract(target, version)
        return published.contract() if published else None

    async def read_published_contracts(self) -> list[PublishedContract]:
        return await self._query.rows(
            _PUBLISHED,
            "SELECT DISTINCT ON (target) target, version, terms, published_at, published_by"
            "  FROM leasehold.contracts ORDER BY target, version DESC LIMIT 10000",
        )

    async def read_published_contract(
        self, target: str, version: int | None = None
    ) -> PublishedContract | None:
        found = await self._query.rows(
            _PUBLISHED,
            "SELECT target, version, terms, published_at, published_by FROM leasehold.contracts"
            " WHERE target = %s AND version = coalesce(%s::integer, version)"
            " ORDER BY version DESC LIMIT 1",
            target,
            version,
        )
        return found[0] if found else None

"""Tokens of the HTTP API: leasehold_owner manages them, leasehold_api reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.domain.api_token import ApiToken, TokenScope
from leasehold.domain.verdict import RevokeVerdict
from leasehold.store.postgres.query import Query, rows_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class PostgresTokens:
    """TokenStore on PostgreSQL."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def create_token(
        self,
        *,
        name: str,
        token_hash: bytes,
        scopes: Collection[TokenScope],
        targets: Collection[str] | None,
        operator: str,
    ) -> ApiToken:
        created_at = await self._query.value(
            "SELECT leasehold.create_token(%s, %s::bytea, %s::text[], %s::text[], %s)",
            name,
            token_hash,
            sorted(scopes),
            None if targets is None else sorted(targets),
            operator,
        )
        return ApiToken(
            name=name,
            scopes=frozenset(scopes),
            targets=None if targets is None else frozenset(targets),
            created_at=created_at,
            created_by=operator,
        )

    async def revoke_token(self, name: str, operator: str) -> RevokeVerdict:
        return RevokeVerdict(
            await self._query.value("SELECT leasehold.revoke_token(%s, %s)", name, operator)
        )

    async def list_tokens(self, after: str | None = None, limit: int = 1000) -> list[ApiToken]:
        return await self._query.rows(
            _TOKEN, "SELECT * FROM leasehold.list_tokens(%s, %s)", after or "", limit
        )

    async def read_active_tokens(self) -> dict[bytes, ApiToken]:
        return dict(
            await self._query.rows(_HASHED_TOKEN, "SELECT * FROM leasehold.read_active_tokens()")
        )


def _scopes(names: Sequence[str]) -> frozenset[TokenScope]:
    """Leave out scopes that this release does not know, because it cannot serve them."""
    known = set(TokenScope)
    return frozenset(TokenScope(name) for name in names if name in known)


def _hashed(token_hash: bytes, **columns: Any) -> tuple[bytes, ApiToken]:  # noqa: ANN401
    return bytes(token_hash), ApiToken(**columns)


_TOKEN = rows_of(ApiToken, scopes=_scopes, targets=frozenset)
_HASHED_TOKEN = rows_of(_hashed, scopes=_scopes, targets=frozenset)

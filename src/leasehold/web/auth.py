"""Which token a request carries, and what it permits.

The active tokens are kept in memory and read again every few seconds, so that a check costs no
query and a revoked token is refused soon. If they could not be read for STALE_SECONDS, every
request is refused: a revocation might be among what we have not read.

Tokens are looked up by their SHA-256 hash. That needs no comparison in constant time: the time of a
lookup depends on the hash of what was sent, and who could choose hashes could forge tokens anyway.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from leasehold.domain.api_token import ApiToken, TokenScope, token_hash
from leasehold.service.service import Pause
from leasehold.web.problems import DATABASE_RETRY_SECONDS, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasehold.store.protocol import TokenCheckStore

REFRESH_SECONDS = 2.0
STALE_SECONDS = 60.0
_BEARER = b"bearer "
ANYBODY = ApiToken(
    name="no-auth",
    scopes=frozenset(TokenScope),
    targets=None,
    created_at=datetime.fromtimestamp(0, UTC),
    created_by="--no-auth",
)


class TokenCache:
    """The service that keeps the active tokens in memory."""

    name = "tokens"

    def __init__(
        self,
        store: TokenCheckStore,
        *,
        is_open: bool = False,
        refresh_seconds: float = REFRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wake = asyncio.Event()
        self._store = store
        self._is_open = is_open
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        self._tokens: Mapping[bytes, ApiToken] = {}
        self._read_at: float | None = None

    async def step(self) -> Pause:
        """Read the tokens again."""
        sent_at = self._clock()
        self._tokens = await self._store.read_active_tokens()
        self._read_at = sent_at
        return Pause(self._refresh_seconds)

    def authenticate(self, authorization: bytes | None) -> ApiToken:
        """Return the token of an Authorization header, or refuse."""
        if self._is_open:
            return ANYBODY
        if self._read_at is None or self._clock() - self._read_at > STALE_SECONDS:
            raise Problem(
                "database_unavailable",
                "The active tokens could not be read. Try again in a moment.",
                retry_seconds=DATABASE_RETRY_SECONDS,
            )
        if authorization is None or authorization[:7].lower() != _BEARER:
            raise _unauthenticated("Send the header Authorization: Bearer lh_...")
        token = self._tokens.get(token_hash(authorization[7:].strip().decode("latin-1")))
        if token is None:
            raise _unauthenticated("The token is unknown or revoked.")
        return token

    def is_active(self, authorization: bytes | None) -> bool:
        """Whether a token that was accepted still would be."""
        try:
            self.authenticate(authorization)
        except Problem:
            return False
        return True


def require_scope(token: ApiToken, scope: TokenScope) -> None:
    """Refuse a token without a scope."""
    if not token.may(scope):
        raise Problem("forbidden", f"The token {token.name!r} lacks the scope {scope}.")


def require_target(token: ApiToken, target: str) -> None:
    """Refuse a token for other targets."""
    if not token.covers(target):
        raise Problem("forbidden", f"The token {token.name!r} does not cover this target.")


def require_all_targets(token: ApiToken) -> None:
    """Refuse a token for some targets where the response would cover all of them."""
    if token.targets is not None:
        raise Problem("forbidden", f"The token {token.name!r} does not cover all targets.")


def _unauthenticated(detail: str) -> Problem:
    return Problem("unauthenticated", detail, headers=[(b"www-authenticate", b"Bearer")])

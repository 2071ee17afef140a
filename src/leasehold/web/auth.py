"""Whose request it is, and whether it may: tokens are known by heart, so asking costs no query.

The tokens in force are read every few seconds; a revoked one is refused at the latest then. When
they could not be read for longer, nobody is let in: a revocation may be among what we do not know.

A token is looked up by the hash of all of it, and the hash is compared in constant time: how long a
wrong one takes says nothing about how much of it was right.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from leasehold.domain.api_token import ApiToken, TokenScope, token_hash
from leasehold.service.service import Pause
from leasehold.web.problems import DATABASE_RETRY_SECONDS, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REFRESH_SECONDS = 2.0
STALE_SECONDS = 60.0
_BEARER = b"bearer "
_NOBODY = bytes(32)
ANYBODY = ApiToken(
    name="no-auth",
    scopes=frozenset(TokenScope),
    targets=None,
    created_at=datetime.fromtimestamp(0, UTC),
    created_by="--no-auth",
)


class ActiveTokens(Protocol):
    """Where tokens are read: the part of a store that this needs."""

    async def read_active_tokens(self) -> Mapping[bytes, ApiToken]:
        """Read the tokens that are in force, by their hashes."""
        ...


class TokenBook:
    """The service that knows the tokens in force."""

    name = "tokens"

    def __init__(
        self,
        store: ActiveTokens,
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
        """Read them again."""
        asked_at = self._clock()
        self._tokens = await self._store.read_active_tokens()
        self._read_at = asked_at
        return Pause(self._refresh_seconds)

    def holder(self, authorization: bytes | None) -> ApiToken:
        """Give the token that a header carries, or refuse."""
        if self._is_open:
            return ANYBODY
        if self._read_at is None or self._clock() - self._read_at > STALE_SECONDS:
            raise Problem(
                "database_unavailable",
                "which tokens are in force could not be read",
                retry_seconds=DATABASE_RETRY_SECONDS,
            )
        if authorization is None or authorization[:7].lower() != _BEARER:
            raise _unauthenticated("send the header Authorization: Bearer lh_...")
        asked = token_hash(authorization[7:].strip().decode("latin-1"))
        known = asked if asked in self._tokens else _NOBODY
        if not hmac.compare_digest(asked, known):
            raise _unauthenticated("the token is not known, or was revoked")
        return self._tokens[asked]

    def is_in_force(self, authorization: bytes | None) -> bool:
        """Say whether a token that was good still is."""
        try:
            self.holder(authorization)
        except Problem:
            return False
        return True


def require_scope(token: ApiToken, scope: TokenScope) -> None:
    """Refuse a token that was not given a scope."""
    if not token.may(scope):
        raise Problem("forbidden", f"the token {token.name!r} has not the scope {scope}")


def require_target(token: ApiToken, target: str) -> None:
    """Refuse a token that is for other targets."""
    if not token.covers(target):
        raise Problem("forbidden", f"the token {token.name!r} is not for this target")


def require_all_targets(token: ApiToken) -> None:
    """Refuse a token that is for some targets where all of them are told about."""
    if token.targets is not None:
        raise Problem("forbidden", f"the token {token.name!r} is for some targets only")


def _unauthenticated(detail: str) -> Problem:
    return Problem("unauthenticated", detail, headers=[(b"www-authenticate", b"Bearer")])

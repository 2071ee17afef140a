"""API tokens: who may do what over HTTP, to which targets. Only their hashes are stored."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

# Lets secret scanners recognize a token.
PREFIX = "lh_"
_RANDOM_BYTES = 32


class TokenScope(StrEnum):
    """What a token may do. Each scope uses its own database role, and none implies another."""

    INGEST = "ingest"
    READ = "read"
    OPERATE = "operate"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiToken:
    """A token as stored. `name` identifies its user in the ledger and the access log."""

    name: str
    scopes: frozenset[TokenScope]
    targets: frozenset[str] | None  # None: all
    created_at: datetime
    created_by: str
    revoked_at: datetime | None = None
    revoked_by: str | None = None

    def may(self, scope: TokenScope) -> bool:
        """Whether it has this scope and is not revoked."""
        return scope in self.scopes and self.revoked_at is None

    def covers(self, target: str) -> bool:
        """Whether it may access intents of this target."""
        return self.targets is None or target in self.targets


def new_token() -> str:
    """Create a token. It is shown once and never stored."""
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def token_hash(token: str) -> bytes:
    """Hash a token, or any text that was sent instead of one.

    Without salt or rounds: 256 random bits cannot be guessed.
    """
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()

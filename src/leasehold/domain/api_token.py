"""API tokens: who may do what over HTTP, to which targets. Only the hash of one is ever stored."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

# So that a scanner of sources and logs knows one when it sees it.
PREFIX = "lh_"
_RANDOM_BYTES = 32


class TokenScope(StrEnum):
    """What a token may do; each is a database role of its own, and none implies another."""

    INGEST = "ingest"
    READ = "read"
    OPERATE = "operate"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiToken:
    """What is known of a token; `name` is what the ledger says of who intervened with it."""

    name: str
    scopes: frozenset[TokenScope]
    targets: frozenset[str] | None  # None: all
    created_at: datetime
    created_by: str
    revoked_at: datetime | None = None
    revoked_by: str | None = None

    def may(self, scope: TokenScope) -> bool:
        """Whether it was given this scope, and was not revoked."""
        return scope in self.scopes and self.revoked_at is None

    def covers(self, target: str) -> bool:
        """Whether it may touch intents of this target."""
        return self.targets is None or target in self.targets


def new_token() -> str:
    """Make a token; whoever has it is believed, so it is shown once and kept nowhere."""
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def token_hash(token: str) -> bytes:
    """Hash a token, or whatever somebody sent in the place of one.

    No salt and no rounds: nobody can try 256 random bits.
    """
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()

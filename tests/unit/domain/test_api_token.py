"""API tokens cannot be guessed, and their stored hashes do not reveal them."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime

import pytest

from leasehold.domain.api_token import ApiToken, TokenScope, new_token, token_hash

NOW = datetime(2025, 1, 1, tzinfo=UTC)


def make_token(**given):
    fields = {"name": "ci", "scopes": frozenset({TokenScope.INGEST}), "targets": None}
    return ApiToken(**fields | given, created_at=NOW, created_by="ada")


def test_token_is_a_prefix_and_256_random_bits():
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch(r"lh_[A-Za-z0-9_-]{43}", token) for token in made)


def test_hash_covers_the_whole_token():
    token = new_token()
    assert token_hash(token) == hashlib.sha256(token.encode()).digest()
    assert token_hash(token[:-1]) != token_hash(token)


@pytest.mark.parametrize("sent", ["", "lh_", "\x00", "\ud800", "ü" * 10_000])
def test_any_text_can_be_hashed(sent):
    assert len(token_hash(sent)) == 32


def test_no_scope_implies_another():
    token = make_token(scopes=frozenset({TokenScope.OPERATE, TokenScope.AUDIT}))
    assert [scope for scope in TokenScope if token.may(scope)] == [
        TokenScope.OPERATE,
        TokenScope.AUDIT,
    ]


def test_revoked_token_permits_nothing():
    token = make_token(scopes=frozenset(TokenScope), revoked_at=NOW, revoked_by="ada")
    assert not any(token.may(scope) for scope in TokenScope)


def test_token_covers_only_its_own_targets():
    assert make_token().covers("sms")
    token = make_token(targets=frozenset({"sms"}))
    assert token.covers("sms")
    assert not token.covers("sms2")
    assert not make_token(targets=frozenset()).covers("sms")

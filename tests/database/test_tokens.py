"""Tokens of the HTTP API: stored as hashes, revoked permanently, read by one role."""

from __future__ import annotations

import psycopg
import pytest

from leasehold.domain.api_token import TokenScope, new_token, token_hash
from leasehold.domain.errors import AccessDenied, InvalidArgument
from leasehold.domain.verdict import RevokeVerdict
from leasehold.store.pool_settings import PoolSettings
from leasehold.store.postgres.store import PostgresStore
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server


@pytest.fixture
async def owner(database):
    settings = PoolSettings(role="leasehold_owner", size_max=2)
    async with PostgresStore(database.url_as("owner"), settings) as store:
        yield store


@pytest.fixture
async def api(database):
    async with PostgresStore(database.url_as("api")) as store:
        yield store


async def create(store, name="ci", *, scopes=(TokenScope.INGEST,), targets=None, token=None):
    token = token or new_token()
    made = await store.create_token(
        name=name, token_hash=token_hash(token), scopes=scopes, targets=targets, operator="ada"
    )
    return token, made


async def test_token_is_found_by_its_hash(owner, api):
    scopes, targets = {TokenScope.INGEST, TokenScope.READ}, {"sms", "mail"}
    token, made = await create(owner, scopes=scopes, targets=targets)
    assert (made.name, made.scopes, made.targets) == ("ci", scopes, targets)
    assert (made.created_by, made.revoked_at) == ("ada", None)
    assert await api.read_active_tokens() == {token_hash(token): made}
    assert await owner.list_tokens() == [made]


async def test_token_without_targets_is_for_all_targets(owner, api):
    await create(owner)
    [found] = (await api.read_active_tokens()).values()
    assert found.targets is None


async def test_database_does_not_store_the_token_itself(owner, database):
    token, _ = await create(owner)
    [row] = database.execute("SELECT t::text AS text, token_hash FROM leasehold.api_tokens AS t")
    assert token.removeprefix("lh_") not in row["text"]
    assert row["token_hash"] == token_hash(token)


async def test_revoked_token_is_no_longer_read_and_stays_in_the_list(owner, api):
    await create(owner, "old")
    _, kept = await create(owner, "new")
    assert await owner.revoke_token("old", "eve") is RevokeVerdict.REVOKED
    assert list((await api.read_active_tokens()).values()) == [kept]
    _, old = await owner.list_tokens()
    assert (old.name, old.revoked_by) == ("old", "eve")
    assert old.revoked_at is not None
    assert not old.may(TokenScope.INGEST)


async def test_second_revocation_changes_nothing_and_returns_its_own_verdict(owner):
    await create(owner)
    await owner.revoke_token("ci", "eve")
    before = await owner.list_tokens()
    assert await owner.revoke_token("ci", "mallory") is RevokeVerdict.ALREADY_REVOKED
    assert await owner.revoke_token("another", "mallory") is RevokeVerdict.NOT_FOUND
    assert await owner.list_tokens() == before


async def test_name_of_a_token_is_never_reused(owner):
    await create(owner)
    with pytest.raises(InvalidArgument, match=r"'ci' already exists; .* cannot be used again"):
        await create(owner)
    await owner.revoke_token("ci", "ada")
    with pytest.raises(InvalidArgument, match="cannot be used again"):
        await create(owner)


async def test_existing_token_is_refused_under_another_name(owner):
    token, _ = await create(owner)
    with pytest.raises(InvalidArgument, match="already exists under another name"):
        await create(owner, "other", token=token)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"name": ""}, "name is ''"),
        ({"name": "Upper"}, "name is 'Upper', but must be 1 to 64 of a-z"),
        ({"name": "x" * 65}, "name is"),
        ({"name": "a b"}, "name is"),
        ({"name": "ci\n"}, "name is"),
        ({"scopes": ()}, "scopes has no scope, but must list one or more of"),
        ({"scopes": ("all",)}, "scopes has 'all'"),
        ({"targets": ()}, "targets has no target"),
        ({"targets": ("Not One",)}, "targets has 'Not One'"),
        ({"targets": [f"t{n}" for n in range(1001)]}, "targets has 1001 entries"),
    ],
)
async def test_invalid_token_is_refused_and_not_stored(owner, given, reason):
    with pytest.raises(InvalidArgument, match=reason):
        await create(owner, **given)
    assert await owner.list_tokens() == []


async def test_malformed_hash_is_refused(owner):
    for wrong in (b"", b"x" * 31, b"x" * 33):
        with pytest.raises(InvalidArgument, match="32 bytes of a SHA-256"):
            await owner.create_token(
                name="ci", token_hash=wrong, scopes={TokenScope.READ}, targets=None, operator="ada"
            )


async def test_number_of_active_tokens_is_bounded(owner, api, database):
    database.owner_execute(
        "SELECT leasehold.create_token('t' || n, sha256(n::text::bytea), '{read}', NULL, 'ada')"
        "  FROM generate_series(1, 1000) AS n"
    )
    with pytest.raises(InvalidArgument, match=r"1000 tokens are active, .*; revoke a token first"):
        await create(owner)
    await owner.revoke_token("t7", "ada")
    await create(owner)
    found = await api.read_active_tokens()
    assert len(found) == 1000
    assert "t7" not in {one.name for one in found.values()}


async def test_list_continues_after_a_name(owner):
    made = [(await create(owner, name))[1] for name in ("a", "b", "c")]
    assert await owner.list_tokens(limit=2) == made[:2]
    assert await owner.list_tokens("b", 2) == made[2:]


async def test_scope_of_a_later_release_is_ignored(api, database):
    database.execute("ALTER TABLE leasehold.api_tokens DROP CONSTRAINT api_tokens_scopes_known")
    database.execute(
        "INSERT INTO leasehold.api_tokens VALUES"
        " ('next', sha256('x'), '{read,administer}', NULL, clock_timestamp(), 'ada')"
    )
    [found] = (await api.read_active_tokens()).values()
    assert found.scopes == {TokenScope.READ}


def test_concurrent_creations_with_one_name_make_one_token(database):
    first, second = database.session("owner"), database.session("owner")
    make = "SELECT leasehold.create_token('ci', sha256(%s), '{read}', NULL, 'ada')"
    first.run("BEGIN")
    first.run(make, [b"one"])
    waiting = second.start(make, [b"two"])
    waiting.assert_blocked()
    first.run("COMMIT")
    with refused("22023"):
        waiting.result()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE leasehold.api_tokens SET scopes = '{operate}'",
        "UPDATE leasehold.api_tokens SET targets = NULL",
        "UPDATE leasehold.api_tokens SET token_hash = sha256('mine')",
        "UPDATE leasehold.api_tokens SET name = 'other'",
        "UPDATE leasehold.api_tokens SET revoked_at = NULL, revoked_by = NULL",
        "DELETE FROM leasehold.api_tokens",
        "TRUNCATE leasehold.api_tokens",
    ],
)
async def test_not_even_the_owner_can_change_a_token(owner, database, change):
    await create(owner, targets={"sms"})
    await owner.revoke_token("ci", "ada")
    before = await owner.list_tokens()
    with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
        database.owner_execute(change)
    assert await owner.list_tokens() == before


async def test_other_roles_can_neither_read_hashes_nor_create_tokens(stores):
    for store in (stores.ingest, stores.executor, stores.operator, stores.readonly):
        with pytest.raises(AccessDenied):
            await store.read_active_tokens()
        with pytest.raises(AccessDenied):
            await create(store)
        with pytest.raises(AccessDenied):
            await store.list_tokens()


async def test_role_that_checks_tokens_can_do_nothing_else(api):
    for call in (create(api), api.revoke_token("ci", "x"), api.list_tokens()):
        with pytest.raises(AccessDenied):
            await call
    with pytest.raises(AccessDenied):
        await api.read_published_contracts()

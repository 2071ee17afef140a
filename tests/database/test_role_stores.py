"""Each scope of the HTTP API acts as one database role, even if the login has more rights."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg import sql

from leasehold.domain.api_token import TokenScope, token_hash
from leasehold.domain.errors import AccessDenied, InvalidArgument, MigrationError
from leasehold.domain.intent import AttemptState, NewIntent
from leasehold.store.pool_settings import PoolSettings
from leasehold.store.postgres.role_stores import PostgresRoleStores
from leasehold.store.postgres.store import PostgresStore
from tests.support.servers import PASSWORD

pytestmark = pytest.mark.one_server

ROLES = {
    "ingest": "leasehold_ingest",
    "reader": "leasehold_readonly",
    "operator": "leasehold_operator",
    "auditor": "leasehold_auditor",
    "api": "leasehold_api",
}
BOTH_WAYS = pytest.mark.parametrize("through_pooler", [False, True], ids=["direct", "pooled"])


@pytest.fixture
def login(server, database):
    """Return a function that creates a login with the given roles and returns its URL."""
    made = []

    def make(*roles, inherits="INHERIT"):
        name = f"test_serve_{len(made)}"
        server.execute("DROP ROLE IF EXISTS {}", name)
        made.append(name)
        server.execute(
            f"CREATE ROLE {{}} LOGIN {inherits} PASSWORD {{}}", name, sql.Literal(PASSWORD)
        )
        for role in roles:
            server.execute("GRANT {} TO {}", role, name)
        return psycopg.conninfo.make_conninfo(database.url, user=name, password=PASSWORD)

    yield make
    for name in made:
        server.execute("DROP ROLE {}", name)


async def current_role(store):
    return await store._query.value("SELECT current_user::text")


@BOTH_WAYS
async def test_each_store_acts_as_its_own_role(login, through_pooler):
    url = login(*ROLES.values())
    async with PostgresRoleStores(url, PoolSettings(through_pooler=through_pooler)) as stores:
        found = {name: await current_role(getattr(stores, name)) for name in ROLES}
        again = {name: await current_role(getattr(stores, name)) for name in ROLES}
    assert found == again == ROLES


@BOTH_WAYS
async def test_store_has_only_its_own_rights_even_if_the_login_has_all(
    login, outbox, through_pooler
):
    outbox.publish()
    url = login(*ROLES.values())
    async with PostgresRoleStores(url, PoolSettings(through_pooler=through_pooler)) as stores:
        intent_id = await stores.ingest.enqueue_intent(NewIntent(target="sms", payload={"a": 1}))
        assert [one.intent_id for one in await stores.reader.read_status([intent_id])] == [
            intent_id
        ]
        content = await stores.auditor.read_content(intent_id)
        assert content is not None
        assert content.payload.value() == {"a": 1}
        assert await stores.api.read_active_tokens() == {}
        assert await stores.operator.cancel_intent(intent_id, "ada", "why") == "cancelled"
        forbidden = [
            stores.ingest.read_status([intent_id]),
            stores.ingest.cancel_intent(intent_id, "ada", "why"),
            stores.ingest.claim_outbox_batch(1, "worker", 30, ["sms"]),
            stores.reader.enqueue_intent(NewIntent(target="sms", payload=1)),
            stores.reader.read_content(intent_id),
            stores.reader.cancel_intent(intent_id, "ada", "why"),
            stores.operator.read_content(intent_id),
            stores.operator.enqueue_intent(NewIntent(target="sms", payload=1)),
            stores.auditor.resolve_intent(intent_id, AttemptState.FAILED, "ada", "why"),
            stores.auditor.read_active_tokens(),
            stores.api.read_status([intent_id]),
            stores.api.create_token(
                name="mine",
                token_hash=token_hash("x"),
                scopes=set(TokenScope),
                targets=None,
                operator="ada",
            ),
        ]
        for call in forbidden:
            with pytest.raises(AccessDenied):
                await call


@pytest.mark.program("pgbouncer")
async def test_roles_do_not_leak_between_calls_that_share_a_poolers_sessions(pooler):
    async with PostgresRoleStores(pooler.url, PoolSettings(through_pooler=True)) as stores:
        asked = [name for _ in range(20) for name in ROLES]
        found = await asyncio.gather(*[current_role(getattr(stores, name)) for name in asked])
    assert found == [ROLES[name] for name in asked]
    with psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as connection:
        roles = {connection.execute("SELECT current_user = session_user").fetchone()[0]}
    assert roles == {True}, "the role of a call ends with the call"


async def test_login_that_inherits_no_rights_can_serve(login, outbox):
    """So the login itself has no rights outside these stores."""
    outbox.publish()
    async with PostgresRoleStores(login(*ROLES.values(), inherits="NOINHERIT")) as stores:
        assert await stores.ingest.enqueue_intent(NewIntent(target="sms", payload=1))


async def test_login_that_inherits_no_rights_is_told_the_setting_that_helps(login):
    url = login("leasehold_executor", inherits="NOINHERIT")
    told = "or set LEASEHOLD_DATABASE_ROLE=leasehold_executor if it is a member"
    async with PostgresStore(url) as store:
        with pytest.raises(AccessDenied, match=told):
            await store.check_schema(role="leasehold_executor")
        with pytest.raises(AccessDenied, match=told):
            await store.claim_outbox_batch(1, "w", 30, [])
    async with PostgresStore(url, PoolSettings(role="leasehold_executor")) as store:
        await store.check_schema(role="leasehold_executor")
        assert await store.claim_outbox_batch(1, "w", 30, []) == []


@BOTH_WAYS
async def test_every_role_that_a_login_lacks_is_named_with_the_grant_to_run(login, through_pooler):
    url = login("leasehold_ingest", "leasehold_readonly", "leasehold_api")
    with pytest.raises(AccessDenied) as raised:
        async with PostgresRoleStores(url, PoolSettings(through_pooler=through_pooler)):
            pass
    lacking = "leasehold_operator, leasehold_auditor"
    assert f"may not act as {lacking}, which" in str(raised.value)
    assert f'GRANT {lacking} TO "test_serve_0"' in str(raised.value)


async def test_roles_that_the_caller_adds_are_in_the_same_grant(login):
    with pytest.raises(AccessDenied, match=r"GRANT .*leasehold_executor.* TO"):
        async with PostgresRoleStores(login(), more_roles=("leasehold_executor",)):
            pass


async def test_grant_in_the_error_message_is_the_missing_one(login, database):
    url = login()
    with pytest.raises(AccessDenied) as raised:
        async with PostgresRoleStores(url):
            pass
    grant = str(raised.value).partition("have a DBA run ")[2]
    database.execute(grant)
    async with PostgresRoleStores(url) as stores:
        assert await current_role(stores.api) == "leasehold_api"


async def test_server_without_the_roles_is_reported_as_not_migrated(pristine_server):
    name = pristine_server.create_database(empty=True)
    try:
        with pytest.raises(MigrationError, match=r"leasehold_ingest, .*run `leasehold migrate`"):
            async with PostgresRoleStores(pristine_server.url_of(name)):
                pass
    finally:
        pristine_server.drop_database(name)


async def test_plain_store_reports_a_login_that_may_not_act_as_its_role(login):
    with pytest.raises(AccessDenied, match="GRANT leasehold_ingest TO the login"):
        async with PostgresStore(login(), PoolSettings(role="leasehold_ingest")):
            pass


async def test_small_stores_take_few_connections(login, database):
    settings = PoolSettings(size_max=20, application_name="served")
    async with PostgresRoleStores(login(*ROLES.values()), settings) as stores:
        for store in stores.all:
            await current_role(store)
        sizes = {name: getattr(stores, name).pool.settings.size_max for name in ROLES}
        names = database.execute(
            "SELECT DISTINCT application_name AS name FROM pg_stat_activity"
            " WHERE application_name LIKE 'served%'"
        )
    assert sizes == {"ingest": 20, "reader": 4, "operator": 2, "auditor": 2, "api": 1}
    assert {row["name"] for row in names} == {f"served {name}" for name in ROLES}


@pytest.mark.parametrize("role", ["", "a b", "x -c is_superuser=on", 'x"', "Owner", "x" * 64])
def test_malformed_role_name_never_reaches_the_server(role):
    with pytest.raises(InvalidArgument, match="must be the name of a role"):
        PoolSettings(role=role)

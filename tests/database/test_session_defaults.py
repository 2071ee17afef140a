"""Our sessions do not depend on what a login or a database has for defaults."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from leasehold.domain.errors import (
    DatabaseUnavailable,
    InvalidArgument,
    MigrationError,
    UnknownTarget,
)
from leasehold.domain.intent import NewIntent
from leasehold.embedded.server import EmbeddedPostgres
from leasehold.intake.intake import Intake
from leasehold.intake.transactional import enqueue_in
from leasehold.store.pool_settings import PoolSettings
from leasehold.store.postgres.examination import examine
from leasehold.store.postgres.lock_session import PostgresLockSession
from leasehold.store.postgres.migrate import migrate, plan, script
from leasehold.store.postgres.notifications import PostgresNotifications
from leasehold.store.postgres.retention import prune
from leasehold.store.postgres.store import PostgresStore
from tests.support.pooler import run_pooler
from tests.support.servers import available_binaries

pytestmark = pytest.mark.one_server

BOTH_WAYS = pytest.mark.parametrize("through_pooler", [False, True], ids=["direct", "pooled"])
LOCK_KEY = 4711
PAYLOAD = {"text": "Grüezi €"}


@pytest.fixture(params=["login", "database"])
def strict_defaults(request, database):
    """A database with other defaults: for the executor's login in it, or for every session."""
    subject = {"login": "ROLE test_executor IN DATABASE {}", "database": "DATABASE {}"}[
        request.param
    ]
    for default in ("transaction_isolation = 'serializable'", "transaction_read_only = on"):
        database.server.execute(f"ALTER {subject} SET default_{default}", database.name)
    with psycopg.connect(database.url_as("executor")) as connection:
        assert connection.execute("SHOW transaction_isolation").fetchone() == ("serializable",)
        assert connection.execute("SHOW transaction_read_only").fetchone() == ("on",)
    return database


@BOTH_WAYS
async def test_calls_are_read_committed_and_may_write(strict_defaults, through_pooler):
    settings = PoolSettings(through_pooler=through_pooler)
    async with PostgresStore(strict_defaults.url_as("executor"), settings) as store:
        for lease in ("one", "two", "three"):
            assert (await store.acquire_lease(lease, "a", 30)).is_ours


@pytest.mark.program("pgbouncer")
async def test_calls_through_a_pooler_are_read_committed_and_may_write(strict_defaults):
    with run_pooler(strict_defaults) as pooler:
        settings = PoolSettings(through_pooler=True)
        async with PostgresStore(pooler.url_as("executor"), settings) as store:
            for lease in ("one", "two", "three"):
                assert (await store.acquire_lease(lease, "a", 30)).is_ours


async def test_lock_session_is_read_committed_and_may_write(strict_defaults):
    session = await PostgresLockSession.open(
        strict_defaults.url_as("executor"), PoolSettings(), lease_seconds=30, holder_id="a"
    )
    try:
        acquired = await session.acquire_lease_by_lock("leader", "a", LOCK_KEY, 30, 10)
        assert acquired.is_ours
    finally:
        await session.close()


def test_prune_may_write_whatever_the_defaults_are(strict_defaults):
    assert [step.done for step in prune(strict_defaults.url, keep_days=400)][-1]


@pytest.mark.program("pgbouncer")
async def test_pooler_that_drops_our_settings_is_refused(strict_defaults):
    with run_pooler(strict_defaults, "ignore_startup_parameters = options\n") as pooler:
        pool = PostgresStore(pooler.url_as("executor")).pool
        with pytest.raises(InvalidArgument, match="LEASEHOLD_THROUGH_POOLER=true"):
            await pool.open()


@pytest.fixture
def standby(postgres):
    """The URL of a server that is in recovery and takes no writes."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-standby-"))
    folder.chmod(0o711)  # as root the server runs as another user
    binaries = available_binaries()[postgres]
    server = EmbeddedPostgres(folder / "data", binaries=binaries, settings={"fsync": "off"})
    server.start()
    server.stop()
    [cluster] = {file.parent for file in folder.rglob("global") if file.is_dir()}
    (cluster / "standby.signal").touch()
    with server:
        yield server.url
    shutil.rmtree(folder)


@BOTH_WAYS
async def test_hot_standby_is_refused(standby, through_pooler):
    settings = PoolSettings(through_pooler=through_pooler)
    with pytest.raises(DatabaseUnavailable, match="URL of the primary"):
        await PostgresStore(standby, settings).pool.open()


@pytest.fixture(params=["database", "url"])
def ascii_client(request, database):
    """The URL of a login whose sessions have a client encoding that tells nothing."""
    url = database.url_as("ingest")
    if request.param == "url":
        return make_conninfo(url, client_encoding="SQL_ASCII")
    database.server.execute("ALTER DATABASE {} SET client_encoding = 'SQL_ASCII'", database.name)
    return url


@BOTH_WAYS
async def test_intents_are_enqueued_whatever_the_client_encoding(
    ascii_client, outbox, through_pooler
):
    outbox.publish("sms")
    new = NewIntent(target="sms", payload=PAYLOAD, idempotency_key="Grüezi")
    async with Intake.connected(
        ascii_client, PoolSettings(through_pooler=through_pooler)
    ) as intake:
        first = await intake.enqueue(new)
        [again] = await intake.enqueue_many([new])
    assert again.intent_id == first


def test_intent_is_enqueued_in_a_transaction_whatever_its_client_encoding(ascii_client, outbox):
    outbox.publish("sms")
    with psycopg.connect(ascii_client) as connection:
        first = enqueue_in(connection, "sms", PAYLOAD, idempotency_key="Grüezi")
        assert enqueue_in(connection, "sms", PAYLOAD, idempotency_key="Grüezi") == first
        with pytest.raises(UnknownTarget, match="contract"):
            enqueue_in(connection, "post", PAYLOAD)


async def test_hint_is_read_whatever_the_client_encoding(ascii_client, database):
    notifications = PostgresNotifications(ascii_client, "worker")
    await notifications.listen()
    try:
        database.execute("SELECT pg_notify('leasehold_due', U&'Gr\\00fcezi')")
        async for hint in notifications.received(30):
            assert hint.name == "Grüezi"
            break
    finally:
        await notifications.close()


@pytest.fixture(params=["SQL_ASCII", "LATIN1"])
def other_encoding(request, server):
    """An encoding, and the URL of a database that has it."""
    name = f"{request.param.lower()}_database"
    create = f"CREATE DATABASE {{}} TEMPLATE template0 ENCODING '{request.param}' LOCALE 'C'"
    server.execute(create, name)
    yield request.param, server.url_of(name)
    server.drop_database(name)


def test_doctor_says_that_a_database_is_not_utf8(other_encoding):
    encoding, url = other_encoding
    checks = {one.name: one for one in examine(url)}
    assert (checks["encoding"].level, checks["encoding"].found) == ("fail", encoding)


def test_database_that_is_not_utf8_is_not_migrated(other_encoding):
    encoding, url = other_encoding
    refusal = f"encoding of the database is {encoding}"
    with pytest.raises(MigrationError, match=refusal):
        migrate(url)
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(MigrationError, match=refusal):
            plan(connection)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match=refusal):
            connection.execute(script().encode())
        connection.execute("ROLLBACK")
        found = connection.execute("SELECT to_regnamespace('leasehold')").fetchone()
    assert found == (None,)

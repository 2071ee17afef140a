"""The database over TLS: every connection is encrypted, and verified if configured.

The server's certificate is for localhost alone, so 127.0.0.1 is the same server under another name.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from leasehold.config import read_settings
from leasehold.coordination.advisory_lock import AdvisoryLock
from leasehold.coordination.elector import Elector
from leasehold.domain.errors import DatabaseUnavailable, InvalidArgument
from leasehold.embedded.account import choose_account
from leasehold.embedded.server import EmbeddedPostgres
from leasehold.observe.metrics import Metrics
from leasehold.runtime.instance import Instance
from leasehold.store.postgres.migrate import migrate
from leasehold.store.postgres.role_stores import PostgresRoleStores
from leasehold.store.postgres.store import PostgresStore
from tests.support.certificates import self_signed
from tests.support.cli_process import PROGRAM
from tests.support.engine import until
from tests.support.ram_disk import ram_disk
from tests.support.required_programs import system_postgres
from tests.support.servers import SETTINGS

# The wheel's PostgreSQL is built without TLS.
pytestmark = pytest.mark.program("openssl", "postgres")

COMMANDS = {
    "migrate": ["migrate", "--plan"],
    "prune": ["prune", "--keep-days", "1000"],
    "targets": ["targets", "list"],
    "intents": ["intents", "list"],
    "tokens": ["tokens", "list"],
}


class TlsServer:
    def __init__(self, url: str, folder: Path):
        self.url = make_conninfo(url, host="localhost", hostaddr="127.0.0.1")
        self.other_name = make_conninfo(url, host="127.0.0.1")
        self.ca = str(folder / "server.pem")
        self.other_ca = str(folder / "other.pem")

    def settings(self, url=None, **given):
        return read_settings(database_url=url or self.url, **given)

    def seen(self, like: str) -> dict[str, bool]:
        """Return the connections by application name, and whether each is encrypted."""
        with psycopg.connect(self.url) as connection:
            rows = connection.execute(
                "SELECT application_name, bool_and(ssl)"
                "  FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)"
                " WHERE application_name LIKE %s GROUP BY 1",
                [like],
            ).fetchall()
        return dict(rows)


@pytest.fixture(scope="module")
def tls_server():
    folder = Path(tempfile.mkdtemp(prefix="leasehold-tls-", dir=ram_disk()))
    folder.chmod(0o711)
    try:
        self_signed(folder, "DNS:localhost")
        self_signed(folder, "DNS:localhost", file="other")
        account = choose_account(folder / "data")
        os.chown(folder / "server.key", account.uid, account.gid)
        settings = {
            **SETTINGS,
            "ssl": "on",
            "ssl_cert_file": str(folder / "server.pem"),
            "ssl_key_file": str(folder / "server.key"),
        }
        with EmbeddedPostgres(
            folder / "data", binaries=system_postgres(), settings=settings
        ) as running:
            migrate(running.url)
            yield TlsServer(running.url, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def open_store(settings):
    async with PostgresStore(settings.required_database_url(), settings.pool()) as store:
        return await store.read_published_contracts()


async def test_certificate_is_verified_against_the_given_authority_and_the_name(tls_server):
    verified = {"database_tls": "verify-full", "database_tls_ca": tls_server.ca}
    assert await open_store(tls_server.settings(**verified)) == []
    with pytest.raises(DatabaseUnavailable, match="certificate"):
        await open_store(tls_server.settings(tls_server.other_name, **verified))


async def test_certificate_that_the_authority_did_not_sign_is_refused(tls_server):
    settings = tls_server.settings(database_tls="verify-full", database_tls_ca=tls_server.other_ca)
    with pytest.raises(DatabaseUnavailable, match="certificate verify failed"):
        await open_store(settings)


async def test_sslmode_require_encrypts_without_verification(tls_server):
    settings = tls_server.settings(tls_server.other_name, database_tls="require")
    async with PostgresStore(settings.required_database_url(), settings.pool()) as store:
        await store.read_published_contracts()
        assert tls_server.seen("leasehold") == {"leasehold": True}


async def test_sslmode_require_refuses_a_server_without_tls(database):
    assert database.execute("SHOW ssl") == [{"ssl": "off"}]
    settings = read_settings(database_url=database.url, database_tls="require")
    with pytest.raises(DatabaseUnavailable, match="SSL"):
        await open_store(settings)


async def test_every_connection_of_an_instance_is_encrypted(tls_server):
    settings = tls_server.settings(database_tls="verify-full", database_tls_ca=tls_server.ca)
    async with (
        Instance(settings),
        PostgresRoleStores(settings.required_database_url(), settings.pool()) as stores,
    ):
        for store in stores.all:
            await store._query.value("SELECT 1")
        await until(lambda: tls_server.seen("leasehold notifier%"))
        seen = tls_server.seen("leasehold%")
    assert len(seen) >= 7
    assert set(seen.values()) == {True}


async def test_lock_session_refuses_a_certificate_that_it_must_not_trust(tls_server):
    async def opened(url, ca):
        settings = tls_server.settings(url, database_tls="verify-full", database_tls_ca=ca)
        database = settings.database()
        session = await database.open_lock_session(lease_seconds=30, holder_id="a")
        await session.close()

    await opened(tls_server.url, tls_server.ca)
    for url, ca in ((tls_server.url, tls_server.other_ca), (tls_server.other_name, tls_server.ca)):
        with pytest.raises(DatabaseUnavailable, match="certificate"):
            await opened(url, ca)


async def test_leader_by_advisory_lock_is_not_elected_by_a_server_it_must_not_trust(tls_server):
    """Its pool is open already: the server's certificate was replaced behind its back."""
    good = {"database_tls": "verify-full", "database_tls_ca": tls_server.ca}
    bad = good | {"database_tls_ca": tls_server.other_ca}
    trusting, settings = tls_server.settings(**good), tls_server.settings(**bad)
    async with PostgresStore(trusting.required_database_url(), trusting.pool()) as store:

        async def open_session(lease_seconds, replaces):
            return await settings.database().open_lock_session(
                lease_seconds=lease_seconds, holder_id="a", replaces=replaces
            )

        backend = AdvisoryLock(store, open_session, "group", "a", settings.timings)
        with pytest.raises(DatabaseUnavailable, match="certificate verify failed"):
            await backend.acquire()
        await backend.close()
        elector = Elector("group", "a", backend, Metrics("a"), begin_session=None)
        with pytest.raises(DatabaseUnavailable, match="certificate verify failed"):
            await elector.step()
        assert not elector.is_leader
    with psycopg.connect(tls_server.url) as connection:
        assert connection.execute(
            "SELECT count(*) FROM leasehold.leases WHERE lease_name = 'group'"
        ).fetchone() == (0,)


async def test_every_connection_of_an_instance_with_advisory_locks_is_encrypted(tls_server):
    settings = tls_server.settings(
        elector="advisory", database_tls="verify-full", database_tls_ca=tls_server.ca
    )
    gateway = {"kind": "http", "url": "https://ledger.example.org"}
    terms = {"scope": "cluster", "guarantee": "keyed", "gateway": gateway}
    with psycopg.connect(tls_server.url, autocommit=True) as connection:
        connection.execute(
            "SELECT leasehold.publish_contract('ledger', %s::jsonb, 'test')", [json.dumps(terms)]
        )
    async with Instance(settings) as instance:
        await until(lambda: [one for one in instance.elections.electors if one.is_leader])
        seen = tls_server.seen("leasehold lock%")
    assert list(seen.values()) == [True]


def test_weaker_mode_in_the_url_is_refused_where_verification_is_mandatory(tls_server):
    weaker = make_conninfo(tls_server.url, sslmode="require")
    with pytest.raises(InvalidArgument, match="weaker sslmode=require"):
        tls_server.settings(weaker, database_tls="verify-full").database()


def test_doctor_says_whether_the_connection_is_verified(tls_server):
    verified = tls_server.settings(database_tls="verify-full", database_tls_ca=tls_server.ca)
    tls = {one.name: one for one in verified.database().examine()}["tls"]
    assert (tls.level, tls.found) == ("ok", "encrypted; verified")


@pytest.mark.parametrize("command", COMMANDS)
def test_command_verifies_the_certificate_too(tls_server, command):
    def run(ca):
        return subprocess.run(
            [PROGRAM, *COMMANDS[command]],
            env=os.environ
            | {
                "LEASEHOLD_DATABASE_URL": tls_server.url,
                "LEASEHOLD_DATABASE_TLS": "verify-full",
                "LEASEHOLD_DATABASE_TLS_CA": ca,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    refused = run(tls_server.other_ca)
    assert refused.returncode == 1
    assert "certificate verify failed" in refused.stderr
    accepted = run(tls_server.ca)
    assert accepted.returncode == 0, accepted.stderr

"""The database over TLS: every connection is encrypted, and verified if configured.

The server's certificate is for localhost alone, so 127.0.0.1 is the same server under another name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from leasehold.config import read_settings
from leasehold.domain.errors import DatabaseUnavailable
from leasehold.embedded.account import choose_account
from leasehold.embedded.server import EmbeddedPostgres
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

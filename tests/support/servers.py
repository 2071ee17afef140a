"""The PostgreSQL servers of the tests: one per version, started on first use."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import shutil
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from leasehold.embedded.binaries import (
    PostgresBinaries,
    system_binaries,
    wheel_binaries,
)
from leasehold.embedded.server import EmbeddedPostgres
from leasehold.store.postgres.migrate import SqlFiles, migrate
from tests.support.ram_disk import ram_disk

if TYPE_CHECKING:
    import pytest

ROLES = ("owner", "ingest", "executor", "operator", "readonly", "auditor", "api")
PASSWORD = "of a throwaway server"
TEMPLATE = "leasehold_template"
LEFT_MAX = 5  # dropped databases whose sessions may still be closing
# The data need not survive a crash, so do not wait for the disk. A test that needs a table vacuumed
# or analyzed does so itself: when autovacuum comes is chance.
SETTINGS = {
    "autovacuum": "off",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
}


@cache
def available_binaries() -> dict[str, PostgresBinaries]:
    """Find one installation per version: the embedded one first, then the system's."""
    found: dict[str, PostgresBinaries] = {}
    for binaries in (wheel_binaries(), *system_binaries()):
        if binaries is not None:
            found.setdefault(f"pg{binaries.version}", binaries)
    return found


def on_first_server(item: pytest.Item) -> bool:
    """Return True for a test that runs on the first server or on none."""
    callspec = getattr(item, "callspec", None)
    first = next(iter(available_binaries()), None)
    return callspec is None or callspec.params.get("postgres", first) == first


class Server:
    """A running PostgreSQL; the first database also creates the template and the logins."""

    def __init__(self, url: str, version: int):
        self.url = url
        self.version = version
        self._numbers = itertools.count(1)
        self._left: list[str] = []
        self._has_template = False
        self._admin: psycopg.Connection | None = None

    def url_of(self, database: str, role: str | None = None, **more: str) -> str:
        """Return the URL of a database, as superuser or as the login of a role."""
        if role is not None:
            more |= {"user": f"test_{role}", "password": PASSWORD}
        return make_conninfo(self.url, dbname=database, **more)

    def create_database(self, *, empty: bool = False) -> str:
        """Create a database, with the schema or empty; return its name."""
        if not empty and not self._has_template:
            self._create_template()
        while len(self._left) > LEFT_MAX:
            self.drop_database(self._left.pop(0))
        name = f"test_{next(self._numbers)}"
        # Without fsync, copying files is several times faster than copying through the WAL.
        statement = "CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy"
        self.execute(statement, name, "template0" if empty else TEMPLATE)
        if not empty:
            self._begin_first_generation(name)
        return name

    def leave_database(self, name: str) -> None:
        """Drop a database later, when its sessions have closed; dropping now would wait."""
        self._left.append(name)

    def drop_database(self, name: str) -> None:
        self.execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def execute(self, statement: str, *names: str | sql.Composable) -> None:
        """Run a statement as superuser; {} is replaced by an identifier or a composed part."""
        parts = [sql.Identifier(name) if isinstance(name, str) else name for name in names]
        if self._admin is None:
            self._admin = psycopg.connect(self.url, autocommit=True)
        self._admin.execute(sql.SQL(statement).format(*parts))

    def drop_roles(self) -> None:
        """Drop all roles and logins except the superuser, and the databases still to be dropped."""
        while self._left:
            self.drop_database(self._left.pop())
        with psycopg.connect(self.url) as connection:
            found = connection.execute(
                "SELECT rolname FROM pg_roles WHERE NOT rolsuper AND rolname NOT LIKE 'pg\\_%'"
            ).fetchall()
        if found:
            names = sql.SQL(", ").join(sql.Identifier(name) for (name,) in found)
            self.execute("DROP ROLE {}", names)

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()

    def _begin_first_generation(self, name: str) -> None:
        """Let a copy of the template take itself for the original, not for a restored database."""
        [upkeep] = [step for step in SqlFiles().upkeep if "first_generation" in step.name]
        with psycopg.connect(self.url_of(name)) as connection:
            connection.execute(upkeep.sql)

    def _create_template(self) -> None:
        self.drop_database(TEMPLATE)  # left by a failed attempt
        self.execute("CREATE DATABASE {} TEMPLATE template0", TEMPLATE)
        migrate(self.url_of(TEMPLATE))
        with psycopg.connect(self.url_of(TEMPLATE)) as connection:
            connection.execute("DELETE FROM leasehold.generations")
        for role in ROLES:
            login = f"test_{role}"
            self.execute("DROP ROLE IF EXISTS {}", login)
            self.execute(
                "CREATE ROLE {} LOGIN INHERIT PASSWORD {} IN ROLE {}",
                login,
                _scram_verifier(PASSWORD),
                f"leasehold_{role}",
            )
        self._has_template = True


class Servers:
    """Starts a server when a test first asks for its version; stops all at the end."""

    def __init__(self, worker: str):
        # As root, the server runs as another user, who must be able to enter this folder.
        prefix = f"leasehold-tests-{worker}-"
        self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=ram_disk()))
        self._folder.chmod(0o711)
        self._running: dict[str, Server] = {}
        self._open = ExitStack()
        self._open.callback(shutil.rmtree, self._folder, ignore_errors=True)

    def get(self, name: str, purpose: str = "shared") -> Server:
        """Return the server of that version for that purpose."""
        key = f"{name}-{purpose}"
        if key not in self._running:
            binaries = available_binaries()[name]
            running = EmbeddedPostgres(self._folder / key, binaries=binaries, settings=SETTINGS)
            # Without require_auth, because a pooler in between authenticates in its own way.
            url = self._open.enter_context(running).url.partition("?")[0]
            server = self._running[key] = Server(url, binaries.version)
            self._open.callback(server.close)
            password = str(conninfo_to_dict(url)["password"])
            server.execute("ALTER ROLE CURRENT_USER PASSWORD {}", _scram_verifier(password))
        return self._running[key]

    def stop(self) -> None:
        self._open.close()


def _scram_verifier(password: str) -> sql.Literal:
    """Return the stored form of a password with one SCRAM iteration.

    The default 4,096 iterations on both sides are most of the cost of a connection, and the tests
    open thousands.
    """
    salt = b"of a throwaway server"
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations=1)
    client_key, server_key = (
        hmac.digest(salted, name, "sha256") for name in (b"Client Key", b"Server Key")
    )
    stored = hashlib.sha256(client_key).digest()
    parts = [base64.b64encode(one).decode() for one in (salt, stored, server_key)]
    return sql.Literal("SCRAM-SHA-256$1:{}${}:{}".format(*parts))

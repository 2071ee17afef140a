"""Runs pgbouncer in transaction mode before a test's database, with fewer sessions than clients."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.required_programs import find_program
from tests.support.servers import PASSWORD, ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.database import Database

SESSIONS = 2
START_SECONDS = 10.0


class Pooler:
    """The URLs of the database, through the pooler."""

    def __init__(self, database: Database, port: int):
        self._database = database
        self._port = port
        self.url = self._through(database.url)

    def url_as(self, role: str) -> str:
        return self._through(self._database.url_as(role))

    def _through(self, url: str) -> str:
        return make_conninfo(url, port=self._port)


@contextmanager
def run_pooler(database: Database, more: str = "") -> Iterator[Pooler]:
    """Run pgbouncer; `more` is appended to its configuration."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-pooler-"))
    port = _free_port()
    config = _write_config(folder, database, port, more)
    command = [str(find_program("pgbouncer")), "-q", str(config)]
    # pgbouncer refuses to run as root.
    other_user = "nobody" if os.geteuid() == 0 else None
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, user=other_user, stdout=log, stderr=log)
    try:
        pooler = Pooler(database, port)
        _wait_until_it_answers(process, pooler, folder / "log")
        yield pooler
    finally:
        process.terminate()
        process.wait(START_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


def _write_config(folder: Path, database: Database, port: int, more: str) -> Path:
    server = conninfo_to_dict(database.url)
    passwords = {str(server["user"]): str(server["password"])}
    passwords |= {f"test_{role}": PASSWORD for role in ROLES}
    users = folder / "users.txt"
    users.write_text("".join(f'"{user}" "{word}"\n' for user, word in passwords.items()))
    config = folder / "pgbouncer.ini"
    config.write_text(f"""
[databases]
* = host={server["host"]} port={server["port"]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = {SESSIONS}
max_client_conn = 200
{more}""")
    # pgbouncer may run as another user, who must read these files.
    folder.chmod(0o755)
    return config


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_it_answers(process: subprocess.Popen[bytes], pooler: Pooler, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(pooler.url, connect_timeout=2).close()
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"pgbouncer does not answer: {log.read_text()}") from error
            time.sleep(0.02)
        else:
            return

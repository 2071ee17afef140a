"""An engine on its own PostgreSQL server, which a test can stop and start again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from leasehold.embedded.server import EmbeddedPostgres
from tests.support.database import Database
from tests.support.engine import Engine, until
from tests.support.outbox import Outbox
from tests.support.servers import SETTINGS, Server, available_binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasehold.sandbox import Sandbox


class RestartableEngine(Engine):
    """Workers on a server that can be restarted."""

    def __init__(
        self,
        postgres: EmbeddedPostgres,
        data_folder: Path,
        server: Server,
        sandbox: Sandbox,
        logs: Path,
    ) -> None:
        database = Database(server, server.create_database())
        super().__init__(database, Outbox(database), sandbox, logs)
        self._postgres = postgres
        self._data_folder = data_folder

    def stop_server(self) -> None:
        """Shut the server down fast: it ends every session."""
        [pid_file] = self._data_folder.rglob("postmaster.pid")
        os.kill(int(pid_file.read_text().splitlines()[0]), signal.SIGINT)

    async def start_server(self) -> None:
        """Start the server again, and wait until it answers."""
        await asyncio.to_thread(self._postgres.ensure_running)
        self.outbox = Outbox(self.database)
        await until(self._is_answering)

    def _is_answering(self) -> bool:
        try:
            self.database.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def restartable_engine(sandbox: Sandbox, logs: Path) -> Iterator[RestartableEngine]:
    """Run an engine on its own server, in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-restart-"))
    # As root, the server runs as another user, who must be able to enter this folder.
    folder.chmod(0o711)
    binaries = next(iter(available_binaries().values()))
    try:
        with EmbeddedPostgres(folder / "data", binaries=binaries, settings=SETTINGS) as postgres:
            server = Server(postgres.url, binaries.version)
            engine = RestartableEngine(postgres, folder, server, sandbox, logs)
            try:
                yield engine
            finally:
                engine.close()
                server.close()
                engine.database.server = Server(postgres.url, binaries.version)  # it was restarted
                engine.database.close()
                engine.database.server.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)

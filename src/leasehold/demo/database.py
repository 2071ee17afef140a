"""A database of its own for each run of `leasehold demo`, on the private server.

What an earlier run left was meant for its gateway, which is gone with everything that it knew; work
for it would only be in the way, and the summary must count this run alone.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from psycopg import errors
from psycopg.sql import SQL, Identifier

from leasehold.store.postgres.address import connect

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

PREFIX = "leasehold_demo_"
_NAMES_MAX = 1000


@contextmanager
def own_database(server_url: str, folder: Path) -> Generator[tuple[str, Path]]:
    """Make a database and a folder for the logs, and give both; remove those of earlier runs.

    While a run lasts, its session holds a lock of the database's name, so that another run that
    starts beside it leaves its database alone.
    """
    name = f"{PREFIX}{secrets.token_hex(4)}"
    logs = folder / name
    with connect(server_url, application_name="leasehold demo") as session:
        session.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [name])
        found = session.execute(
            "SELECT datname FROM pg_database WHERE starts_with(datname, %s)"
            " AND pg_try_advisory_lock(hashtextextended(datname, 0)) LIMIT %s",
            [PREFIX, _NAMES_MAX],
        )
        for (old,) in found.fetchall():
            with suppress(errors.ObjectInUse, errors.InvalidCatalogName):
                session.execute(SQL("DROP DATABASE {}").format(Identifier(old)))
                shutil.rmtree(folder / old, ignore_errors=True)
            session.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", [old])
        session.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        logs.mkdir(mode=0o700)
        yield f"{server_url.rpartition('/')[0]}/{name}", logs

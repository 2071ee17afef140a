"""A scratch database is dropped by the next run, but not while its own run lasts."""

from __future__ import annotations

import time

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from leasehold.store.database import server_at

pytestmark = pytest.mark.one_server


def test_concurrent_run_keeps_its_database_and_the_next_one_drops_it(database):
    prefix = f"{database.name[:40]}_s_"
    with (
        server_at(database.url).scratch_database(prefix) as first,
        server_at(database.url).scratch_database(prefix) as second,
        psycopg.connect(make_conninfo(database.url, dbname=first.name)) as connection,
    ):
        assert second.dropped == []
        assert connection.execute("SELECT current_database()").fetchone() == (first.name,)
    wait_until_closed(database, prefix)
    with server_at(database.url).scratch_database(prefix) as third:
        assert set(third.dropped) == {first.name, second.name}
    with database.connect() as connection:
        connection.execute(f'DROP DATABASE "{third.name}"')


def wait_until_closed(database, prefix):
    """Wait until the server has ended the sessions: until then they keep their databases."""
    deadline = time.monotonic() + 30
    while database.execute(
        "SELECT pid FROM pg_stat_activity WHERE starts_with(datname, %s)"
        " OR (datname = current_database() AND application_name = 'leasehold scratch database')",
        [prefix],
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)

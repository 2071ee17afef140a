"""The oldest transaction that delays vacuum is visible, even to roles with few privileges."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psycopg
import pytest

from leasehold.embedded.server import EmbeddedPostgres
from tests.support.database import Database
from tests.support.ram_disk import ram_disk
from tests.support.servers import Server, available_binaries

BURNT = 50
SETTINGS = {"fsync": "off", "wal_level": "logical", "max_prepared_transactions": "1"}


def age(database):
    """Return the age as an executor reads it, after some transactions of others."""
    for _ in range(BURNT):
        database.execute("SELECT pg_current_xact_id()")
    with database.connect("executor") as connection:
        [row] = connection.execute("SELECT oldest_xmin_age FROM leasehold.supervisor").fetchall()
    return row["oldest_xmin_age"]


def test_idle_database_has_no_old_transaction(database):
    assert age(database) < BURNT


def test_writing_transaction_of_another_login_is_seen(database):
    with psycopg.connect(database.url) as writer:
        writer.execute("SELECT pg_current_xact_id()")
        assert age(database) >= BURNT
        writer.rollback()
    assert age(database) < BURNT


def test_reading_transaction_of_another_login_is_seen(database):
    with psycopg.connect(database.url) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 1")
        assert age(database) >= BURNT
    assert age(database) < BURNT


def test_reading_transaction_of_another_database_does_not_count(database):
    with psycopg.connect(database.server.url) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 1")
        assert age(database) < BURNT


@pytest.fixture
def own_server():
    """Start a server with settings that need a restart."""
    binaries = next(iter(available_binaries().values()))
    with tempfile.TemporaryDirectory(dir=ram_disk()) as folder:
        # As root the server runs as another user, who must be able to enter this folder.
        Path(folder).chmod(0o711)
        place = Path(folder) / "data"
        with EmbeddedPostgres(place, binaries=binaries, settings=SETTINGS) as postgres:
            server = Server(postgres.url, binaries.version)
            database = Database(server, server.create_database())
            yield database
            database.close()
            server.close()


def test_replication_slot_and_prepared_transaction_are_seen_without_a_session(own_server):
    own_server.execute("SELECT pg_create_logical_replication_slot('forgotten', 'test_decoding')")
    assert age(own_server) >= BURNT
    own_server.execute("SELECT pg_drop_replication_slot('forgotten')")
    assert age(own_server) < BURNT
    with psycopg.connect(own_server.url) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute("PREPARE TRANSACTION 'forgotten'")
    assert age(own_server) >= BURNT
    own_server.execute("ROLLBACK PREPARED 'forgotten'")
    assert age(own_server) < BURNT

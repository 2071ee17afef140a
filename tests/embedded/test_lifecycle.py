"""Creation, start, stop and recovery, with each PostgreSQL on this machine."""

import os
import signal

import psycopg
import pytest

from leasehold.domain.errors import EmbeddedDatabaseError
from tests.embedded.workspace import Workspace, answers, query, wait_until


def test_first_start_creates_the_database(any_empty_workspace: Workspace):
    with any_empty_workspace.postgres() as postgres:
        assert query(postgres.url, "SELECT current_database(), current_user") == [
            ("leasehold", "leasehold")
        ]
        assert str(postgres.port) in postgres.url
        version = query(postgres.url, "SHOW server_version_num")[0][0]
        assert int(version) // 10000 == any_empty_workspace.binaries.version
    assert any_empty_workspace.progress == [
        f"creating the database in {any_empty_workspace.data_dir}",
        "starting the database",
    ]


def test_defaults_are_durable(any_workspace: Workspace):
    with any_workspace.postgres(settings={}) as postgres:
        for setting in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums"):
            assert query(postgres.url, f"SHOW {setting}") == [("on",)], setting


def test_text_is_utf8_and_sorts_the_same_on_every_machine(any_workspace: Workspace):
    with any_workspace.postgres() as postgres:
        assert query(postgres.url, "SHOW server_encoding") == [("UTF8",)]
        assert query(postgres.url, "SELECT 'ä' < 'z', 'B' < 'a', length('äß€')") == [
            (False, True, 3)
        ]


def test_connections_need_the_password_and_this_machine(any_workspace: Workspace):
    with any_workspace.postgres() as postgres:
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(f"postgresql://leasehold:guess@127.0.0.1:{postgres.port}/leasehold")
        assert query(postgres.url, "SHOW listen_addresses") == [("127.0.0.1",)]
        assert query(postgres.url, "SHOW unix_socket_directories") == [("",)]
        methods = query(postgres.url, "SELECT DISTINCT auth_method FROM pg_hba_file_rules")
        assert methods == [("scram-sha-256",)]
    assert (any_workspace.data_dir / "password").stat().st_mode & 0o777 == 0o600


def test_rows_and_port_survive_stop_and_start(any_workspace: Workspace):
    postgres = any_workspace.postgres().start()
    url = postgres.url
    query(url, "CREATE TABLE kept AS SELECT 1 AS number")
    postgres.stop()
    postgres.stop()
    assert not any_workspace.is_served()
    assert not answers(url)
    with pytest.raises(EmbeddedDatabaseError, match=r"call start\(\) first"):
        _ = postgres.url
    with any_workspace.postgres() as again:
        assert again.url == url
        assert query(url, "SELECT number FROM kept") == [(1,)]
    assert "database system was interrupted" not in any_workspace.log()


def test_second_start_changes_nothing(any_workspace: Workspace):
    postgres = any_workspace.postgres().start()
    processes = any_workspace.server_processes()[:1]
    assert postgres.start() is postgres
    assert any_workspace.server_processes()[:1] == processes
    postgres.stop()
    assert not any_workspace.is_served()


def test_killed_server_restarts_with_every_committed_row(any_workspace: Workspace):
    postgres = any_workspace.postgres(settings={}).start()
    query(postgres.url, "CREATE TABLE kept (number int)")
    for number in range(5):
        query(postgres.url, f"INSERT INTO kept VALUES ({number})")
    unfinished = psycopg.connect(postgres.url)
    unfinished.execute("INSERT INTO kept VALUES (99)")
    any_workspace.kill_server()
    postgres.ensure_running()
    unfinished.close()
    assert query(postgres.url, "SELECT number FROM kept ORDER BY 1") == [(n,) for n in range(5)]
    assert any_workspace.progress[-1] == "recovering after a crash"
    postgres.stop()


def test_server_killed_with_its_user_restarts_with_every_committed_row(any_workspace: Workspace):
    user = any_workspace.user_process(settings={})
    url = user.answer()["url"]
    query(url, "CREATE TABLE kept AS SELECT generate_series(1, 100) AS number")
    user.kill()
    any_workspace.kill_server()
    with any_workspace.postgres() as postgres:
        assert query(postgres.url, "SELECT count(*) FROM kept") == [(100,)]


def test_server_whose_postmaster_was_killed_is_restarted(any_workspace: Workspace):
    postgres = any_workspace.postgres().start()
    query(postgres.url, "CREATE TABLE kept AS SELECT 1 AS number")
    (killed, *_) = any_workspace.server_processes()
    with psycopg.connect(postgres.url):
        os.kill(killed, signal.SIGKILL)
        postgres.ensure_running()
    assert query(postgres.url, "SELECT number FROM kept") == [(1,)]
    assert any_workspace.folder.postmaster_pid() not in (None, killed)
    postgres.stop()


def test_server_recovers_by_itself_from_the_crash_of_one_backend(any_workspace: Workspace):
    postgres = any_workspace.postgres().start()
    (postmaster, *_) = any_workspace.server_processes()
    with psycopg.connect(postgres.url) as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    postgres.ensure_running()
    assert any_workspace.folder.postmaster_pid() == postmaster
    wait_until(lambda: answers(postgres.url), "the same server answers again")
    postgres.stop()

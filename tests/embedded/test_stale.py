"""The remains of a crash are not mistaken for a server, and no other process is harmed."""

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import psycopg
import pytest

from leasehold.domain.errors import EmbeddedDatabaseError
from leasehold.embedded import server as embedded
from tests.embedded.workspace import Workspace, locked, query, wait_until


def leave_behind(workspace: Workspace, pid: int, port: int = 5432) -> Path:
    """Write the postmaster.pid of a killed server whose id now belongs to process `pid`."""
    cluster = workspace.folder.cluster
    file = cluster / "postmaster.pid"
    file.write_text(f"{pid}\n{cluster}\n1700000000\n{port}\n\n127.0.0.1\n  1  2\nready   \n")
    owner = cluster.stat()
    os.chown(file, owner.st_uid, owner.st_gid)
    return file


@pytest.mark.parametrize("name", ["sleep", "postgres"])
def test_process_that_reuses_the_pid_of_a_dead_server_is_left_alone(
    workspace: Workspace, name: str
):
    owner = workspace.folder.cluster.stat()
    as_owner = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    bystander = workspace.bystander(name, "1000", **as_owner)
    leave_behind(workspace, bystander)
    assert workspace.folder.postmaster_pid() is None
    with workspace.postgres() as postgres:
        assert query(postgres.url, "SELECT 1") == [(1,)]
        assert workspace.folder.postmaster_pid() not in (None, bystander)
    leave_behind(workspace, bystander)
    workspace.postgres().start().stop()
    assert os.waitpid(bystander, os.WNOHANG) == (0, 0), "it still sleeps"


def test_other_server_that_reuses_the_pid_is_left_alone(workspace: Workspace):
    other = workspace.postgres(workspace.root / "other").start()
    number = embedded.DataFolder(workspace.root / "other").postmaster_pid()
    assert number is not None
    leave_behind(workspace, number, other.port)
    with workspace.postgres() as postgres:
        ((folder,),) = query(postgres.url, "SHOW data_directory")
        assert folder == str(workspace.folder.cluster)
    leave_behind(workspace, number, other.port)
    assert query(other.url, "SELECT 1") == [(1,)]
    other.stop()


def test_copy_of_a_folder_in_use_never_joins_the_original_server(workspace: Workspace, monkeypatch):
    """The copy has the same password, and a postmaster.pid that names a running server."""
    original = workspace.postgres().start()
    query(original.url, "CHECKPOINT")
    copy = workspace.root / "copy"
    subprocess.run(["cp", "-a", workspace.data_dir, copy], check=True)
    with workspace.postgres(copy) as postgres:
        assert query(postgres.url, "SHOW data_directory") == [(str(copy / "cluster"),)]
    shutil.copy2(workspace.folder.cluster / "postmaster.pid", copy / "cluster")
    monkeypatch.setattr(embedded, "START_SECONDS", 0.3)
    with (
        locked(copy / "server.lock"),
        locked(copy / "users.lock", shared=True),
        pytest.raises(EmbeddedDatabaseError, match="did not answer"),
    ):
        workspace.postgres(copy).start()
    assert query(original.url, "SELECT 1") == [(1,)]
    original.stop()


def test_pid_of_a_process_that_is_gone_is_no_server(workspace: Workspace):
    gone = subprocess.Popen(["true"])
    gone.wait()
    leave_behind(workspace, gone.pid)
    with workspace.postgres() as postgres:
        assert query(postgres.url, "SELECT 1") == [(1,)]
    assert workspace.progress == ["recovering after a crash"]


@pytest.mark.parametrize("content", ["", "1\n"])
def test_truncated_postmaster_pid_does_not_prevent_a_start(workspace: Workspace, content: str):
    leave_behind(workspace, 1).write_text(content)
    with workspace.postgres() as postgres:
        assert query(postgres.url, "SELECT 1") == [(1,)]


def test_no_server_starts_while_a_backend_outlives_its_postmaster(workspace: Workspace):
    postgres = workspace.postgres().start()
    with psycopg.connect(postgres.url) as connection:
        backend = connection.info.backend_pid
        (postmaster, *_) = workspace.server_processes()
        os.kill(backend, signal.SIGSTOP)
        os.kill(postmaster, signal.SIGKILL)
        wait_until(lambda: workspace.folder.postmaster_pid() is None, "the postmaster is gone")
        assert workspace.is_served(), "the backend can still write"
        returned = threading.Thread(target=postgres.ensure_running)
        returned.start()
        returned.join(0.5)
        assert returned.is_alive()
        assert workspace.folder.postmaster_pid() is None
        os.kill(backend, signal.SIGKILL)
        returned.join(30)
        assert query(postgres.url, "SELECT 1") == [(1,)]
    postgres.stop()


def test_server_in_another_container_is_not_started_twice(workspace: Workspace, monkeypatch):
    monkeypatch.setattr(embedded, "START_SECONDS", 0.3)
    with (
        locked(workspace.data_dir / "server.lock"),
        locked(workspace.data_dir / "users.lock", shared=True),
        pytest.raises(EmbeddedDatabaseError, match="another container"),
    ):
        workspace.postgres().start()
    assert not workspace.folder.log.exists()


def test_server_started_by_hand_is_joined(workspace: Workspace):
    with workspace.postgres() as postgres:
        port = postgres.port
    account = embedded.choose_account(workspace.folder.cluster)
    program = workspace.binaries.bin_dir / "postgres"
    options = [
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        "unix_socket_directories=",
        "-p",
        str(port),
    ]
    command = ["/bin/sh", "-c", '"$@" &', "sh", program, "-D", workspace.folder.cluster, *options]
    account.run(command, output=subprocess.DEVNULL)
    wait_until(lambda: workspace.folder.postmaster_pid() is not None, "it has written its number")
    by_hand = workspace.folder.postmaster_pid()
    with workspace.postgres() as postgres:
        assert workspace.folder.postmaster_pid() == by_hand
    wait_until(lambda: not workspace.is_served(), "the last one out stopped it")

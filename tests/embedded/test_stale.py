"""What a crash leaves behind must neither be taken for a server, nor hurt anybody else."""

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
from tests.embedded.place import Place, locked, query, wait_until


def leave_behind(place: Place, pid: int, port: int = 5432) -> Path:
    """Writes the postmaster.pid of a server that was killed, whose number `pid` has by now."""
    cluster = place.folder.cluster
    file = cluster / "postmaster.pid"
    file.write_text(f"{pid}\n{cluster}\n1700000000\n{port}\n\n127.0.0.1\n  1  2\nready   \n")
    owner = cluster.stat()
    os.chown(file, owner.st_uid, owner.st_gid)
    return file


@pytest.mark.parametrize("name", ["sleep", "postgres"])
def test_living_process_with_the_number_of_a_dead_server_is_left_alone(place: Place, name: str):
    owner = place.folder.cluster.stat()
    as_owner = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    bystander = place.bystander(name, "1000", **as_owner)
    leave_behind(place, bystander)
    assert place.folder.postmaster_pid() is None
    with place.postgres() as postgres:
        assert query(postgres.url, "SELECT 1") == [(1,)]
        assert place.folder.postmaster_pid() not in (None, bystander)
    leave_behind(place, bystander)
    place.postgres().start().stop()
    assert os.waitpid(bystander, os.WNOHANG) == (0, 0), "it still sleeps"


def test_other_server_of_the_same_user_with_that_number_is_left_alone(place: Place):
    other = place.postgres(place.root / "other").start()
    number = embedded.DataFolder(place.root / "other").postmaster_pid()
    assert number is not None
    leave_behind(place, number, other.port)
    with place.postgres() as postgres:
        ((folder,),) = query(postgres.url, "SHOW data_directory")
        assert folder == str(place.folder.cluster)
    leave_behind(place, number, other.port)
    assert query(other.url, "SELECT 1") == [(1,)]
    other.stop()


def test_copy_of_a_folder_in_use_does_not_lead_to_the_server_of_the_original(
    place: Place, monkeypatch
):
    """The copy has the same password, and a postmaster.pid that names a living server."""
    original = place.postgres().start()
    query(original.url, "CHECKPOINT")
    copy = place.root / "copy"
    subprocess.run(["cp", "-a", place.data_dir, copy], check=True)
    with place.postgres(copy) as postgres:
        assert query(postgres.url, "SHOW data_directory") == [(str(copy / "cluster"),)]
    shutil.copy2(place.folder.cluster / "postmaster.pid", copy / "cluster")
    monkeypatch.setattr(embedded, "START_SECONDS", 0.3)
    with (
        locked(copy / "server.lock"),
        locked(copy / "users.lock", shared=True),
        pytest.raises(EmbeddedDatabaseError, match="did not answer"),
    ):
        place.postgres(copy).start()
    assert query(original.url, "SELECT 1") == [(1,)]
    original.stop()


def test_number_of_a_process_that_is_gone_is_no_server(place: Place):
    gone = subprocess.Popen(["true"])
    gone.wait()
    leave_behind(place, gone.pid)
    with place.postgres() as postgres:
        assert query(postgres.url, "SELECT 1") == [(1,)]
    assert place.progress == ["recovering after a crash"]


@pytest.mark.parametrize("content", ["", "1\n"])
def test_torn_postmaster_file_does_not_stop_a_start(place: Place, content: str):
    leave_behind(place, 1).write_text(content)
    with place.postgres() as postgres:
        assert query(postgres.url, "SELECT 1") == [(1,)]


def test_no_second_server_starts_beside_a_backend_that_outlived_its_postmaster(place: Place):
    postgres = place.postgres().start()
    with psycopg.connect(postgres.url) as connection:
        backend = connection.info.backend_pid
        (postmaster, *_) = place.server_processes()
        os.kill(backend, signal.SIGSTOP)
        os.kill(postmaster, signal.SIGKILL)
        wait_until(lambda: place.folder.postmaster_pid() is None, "the postmaster is gone")
        assert place.is_served(), "the backend can still write"
        returned = threading.Thread(target=postgres.ensure_running)
        returned.start()
        returned.join(0.5)
        assert returned.is_alive()
        assert place.folder.postmaster_pid() is None
        os.kill(backend, signal.SIGKILL)
        returned.join(30)
        assert query(postgres.url, "SELECT 1") == [(1,)]
    postgres.stop()


def test_server_that_cannot_be_seen_from_here_is_not_started_twice(place: Place, monkeypatch):
    monkeypatch.setattr(embedded, "START_SECONDS", 0.3)
    with (
        locked(place.data_dir / "server.lock"),
        locked(place.data_dir / "users.lock", shared=True),
        pytest.raises(EmbeddedDatabaseError, match="another container"),
    ):
        place.postgres().start()
    assert not place.folder.log.exists()


def test_server_started_by_hand_on_the_folder_is_joined_not_doubled(place: Place):
    with place.postgres() as postgres:
        port = postgres.port
    account = embedded.choose_account(place.folder.cluster)
    program = place.binaries.bin_dir / "postgres"
    options = [
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        "unix_socket_directories=",
        "-p",
        str(port),
    ]
    command = ["/bin/sh", "-c", '"$@" &', "sh", program, "-D", place.folder.cluster, *options]
    account.run(command, output=subprocess.DEVNULL)
    wait_until(lambda: place.folder.postmaster_pid() is not None, "it has written its number")
    by_hand = place.folder.postmaster_pid()
    with place.postgres() as postgres:
        assert place.folder.postmaster_pid() == by_hand
    wait_until(lambda: not place.is_served(), "the last one out stopped it")

"""Several processes share one server: they join, leave, and are killed."""

import os
import signal
import subprocess

import psycopg

from leasehold.embedded import server as embedded
from tests.embedded.workspace import Workspace, answers, query, wait_until


def test_only_user_stops_the_server_at_exit(workspace: Workspace):
    user = workspace.user_process()
    url = user.answer()["url"]
    assert answers(url)
    assert user.finish() == 0
    assert not workspace.is_served()


def test_sigterm_and_sighup_stop_the_server_cleanly(workspace: Workspace):
    for number in (signal.SIGTERM, signal.SIGHUP):
        user = workspace.user_process()
        user.answer()
        assert user.send(number) == 128 + number
        assert not workspace.is_served()
        assert workspace.log().rstrip().endswith("database system is shut down")


def test_sigterm_during_the_first_start_leaves_nothing_running(empty_workspace: Workspace):
    workspace = empty_workspace
    user = workspace.user_process()
    wait_until(lambda: list(workspace.root.glob("data/new-*/cluster")), "initdb is at work")
    assert user.send(signal.SIGTERM) == 128 + signal.SIGTERM
    assert not workspace.is_served()
    assert not workspace.folder.cluster.exists()


def test_ctrl_c_reaches_the_process_but_not_its_server(workspace: Workspace):
    user = workspace.user_process(ignores_ctrl_c=True)
    url = user.answer()["url"]
    (postmaster, *_) = workspace.server_processes()
    os.killpg(user.pid, signal.SIGINT)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert os.getsid(postmaster) != os.getsid(user.pid)
    assert user.finish() == 0


def test_ctrl_c_ends_the_process_which_stops_the_server_cleanly(workspace: Workspace):
    user = workspace.user_process(stderr=subprocess.DEVNULL)
    user.answer()
    os.killpg(user.pid, signal.SIGINT)
    user.finish()
    assert not workspace.is_served()
    assert workspace.log().rstrip().endswith("database system is shut down")


def test_next_user_joins_and_stops_the_server_of_a_killed_process(workspace: Workspace):
    user = workspace.user_process()
    url = user.answer()["url"]
    (postmaster, *_) = workspace.server_processes()
    user.kill()
    assert answers(url)
    with workspace.postgres() as postgres:
        assert postgres.url == url
        assert workspace.folder.postmaster_pid() == postmaster
    assert not workspace.is_served()


def test_leaving_process_does_not_stop_the_server_of_another_user(workspace: Workspace):
    first = workspace.user_process()
    url = first.answer()["url"]
    second = workspace.user_process()
    assert second.answer()["url"] == url
    with psycopg.connect(url, autocommit=True) as connection:
        first.finish()
        assert connection.execute("SELECT 1").fetchone() == (1,)
        second.finish()
    assert not workspace.is_served()


def test_killed_process_no_longer_counts_as_a_user(workspace: Workspace):
    killed, last = workspace.user_process(), workspace.user_process()
    killed.answer()
    last.answer()
    killed.kill()
    last.finish()
    assert not workspace.is_served()


def test_processes_starting_together_on_an_empty_folder_share_one_server(
    empty_workspace: Workspace,
):
    workspace = empty_workspace
    users = [workspace.user_process() for _ in range(4)]
    urls = {user.answer()["url"] for user in users}
    assert len(urls) == 1
    assert workspace.log().count("starting PostgreSQL") == 1
    for user in users:
        assert user.finish() == 0
    assert not workspace.is_served()


def test_two_objects_in_one_process_count_as_two_users(workspace: Workspace):
    with workspace.postgres() as outer:
        with workspace.postgres() as inner:
            assert inner.url == outer.url
        assert answers(outer.url)
    assert not workspace.is_served()


def test_forked_child_neither_stops_nor_keeps_the_server_of_its_parent(workspace: Workspace):
    user = workspace.user_process(forks_a_child=True)
    assert answers(user.answer()["url"]), "the child that exited did not stop it"
    user.finish()
    assert not workspace.is_served(), "the child that lives on does not count as a user"
    os.killpg(user.pid, signal.SIGKILL)


def test_crashed_server_of_two_processes_is_restarted_once_and_shared(workspace: Workspace):
    other = workspace.user_process()
    with workspace.postgres() as postgres:
        other.answer()
        workspace.kill_server()
        postgres.ensure_running()
        (postmaster, *_) = workspace.server_processes()
        with workspace.postgres() as third:
            assert third.url == postgres.url
        assert workspace.folder.postmaster_pid() == postmaster
    assert workspace.is_served(), "the other process still uses it"
    other.finish()
    assert not workspace.is_served()


def test_server_that_hangs_at_shutdown_is_stopped_without_data_loss(
    workspace: Workspace, monkeypatch
):
    monkeypatch.setattr(embedded, "FAST_STOP_SECONDS", 1.0)
    postgres = workspace.postgres().start()
    query(postgres.url, "CREATE TABLE kept AS SELECT 1 AS number")
    named = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
    ((checkpointer,),) = query(postgres.url, named)
    os.kill(checkpointer, signal.SIGSTOP)
    postgres.stop()
    assert not workspace.is_served()
    assert "received immediate shutdown request" in workspace.log()
    with workspace.postgres() as again:
        assert query(again.url, "SELECT number FROM kept") == [(1,)]

"""Several processes, one server: how they come, go, and are killed."""

import os
import signal
import subprocess

import psycopg

from leasehold.embedded import server as embedded
from tests.embedded.place import Place, answers, query, wait_until


def test_process_that_ends_takes_its_server_with_it(place: Place):
    user = place.user_process()
    url = user.answer()["url"]
    assert answers(url)
    assert user.finish() == 0
    assert not place.is_served()


def test_sigterm_and_a_closed_terminal_stop_the_server_in_order(place: Place):
    for number in (signal.SIGTERM, signal.SIGHUP):
        user = place.user_process()
        user.answer()
        assert user.send(number) == 128 + number
        assert not place.is_served()
        assert place.log().rstrip().endswith("database system is shut down")


def test_sigterm_during_the_first_start_leaves_nothing_running(empty_place: Place):
    place = empty_place
    user = place.user_process()
    wait_until(lambda: list(place.root.glob("data/new-*/cluster")), "initdb is at work")
    assert user.send(signal.SIGTERM) == 128 + signal.SIGTERM
    assert not place.is_served()
    assert not place.folder.cluster.exists()


def test_ctrl_c_reaches_the_process_but_not_its_server(place: Place):
    user = place.user_process(shrugs_at_ctrl_c=True)
    url = user.answer()["url"]
    (postmaster, *_) = place.server_processes()
    os.killpg(user.pid, signal.SIGINT)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert os.getsid(postmaster) != os.getsid(user.pid)
    assert user.finish() == 0


def test_ctrl_c_ends_the_process_and_then_the_server_in_order(place: Place):
    user = place.user_process(stderr=subprocess.DEVNULL)
    user.answer()
    os.killpg(user.pid, signal.SIGINT)
    user.finish()
    assert not place.is_served()
    assert place.log().rstrip().endswith("database system is shut down")


def test_server_left_by_a_killed_process_is_joined_and_then_stopped_by_the_next(place: Place):
    user = place.user_process()
    url = user.answer()["url"]
    (postmaster, *_) = place.server_processes()
    user.kill()
    assert answers(url)
    with place.postgres() as postgres:
        assert postgres.url == url
        assert place.folder.postmaster_pid() == postmaster
    assert not place.is_served()


def test_process_that_leaves_does_not_stop_the_server_under_another(place: Place):
    first = place.user_process()
    url = first.answer()["url"]
    second = place.user_process()
    assert second.answer()["url"] == url
    with psycopg.connect(url, autocommit=True) as connection:
        first.finish()
        assert connection.execute("SELECT 1").fetchone() == (1,)
        second.finish()
    assert not place.is_served()


def test_killed_process_is_not_counted_as_a_user_any_more(place: Place):
    killed, last = place.user_process(), place.user_process()
    killed.answer()
    last.answer()
    killed.kill()
    last.finish()
    assert not place.is_served()


def test_processes_starting_at_once_on_an_empty_folder_share_one_server(empty_place: Place):
    place = empty_place
    users = [place.user_process() for _ in range(4)]
    urls = {user.answer()["url"] for user in users}
    assert len(urls) == 1
    assert place.log().count("starting PostgreSQL") == 1
    for user in users:
        assert user.finish() == 0
    assert not place.is_served()


def test_two_shares_of_one_process_are_two_users(place: Place):
    with place.postgres() as outer:
        with place.postgres() as inner:
            assert inner.url == outer.url
        assert answers(outer.url)
    assert not place.is_served()


def test_forked_child_neither_stops_its_parents_server_nor_keeps_it(place: Place):
    user = place.user_process(forks_a_child=True)
    assert answers(user.answer()["url"]), "the child that exited did not stop it"
    user.finish()
    assert not place.is_served(), "the child that lives on does not count as a user"
    os.killpg(user.pid, signal.SIGKILL)


def test_server_that_crashed_under_two_processes_is_started_once_and_shared_again(place: Place):
    other = place.user_process()
    with place.postgres() as postgres:
        other.answer()
        place.kill_server()
        postgres.ensure_running()
        (postmaster, *_) = place.server_processes()
        with place.postgres() as third:
            assert third.url == postgres.url
        assert place.folder.postmaster_pid() == postmaster
    assert place.is_served(), "the other process still uses it"
    other.finish()
    assert not place.is_served()


def test_server_that_hangs_in_its_shutdown_is_ended_and_loses_nothing(place: Place, monkeypatch):
    monkeypatch.setattr(embedded, "FAST_STOP_SECONDS", 1.0)
    postgres = place.postgres().start()
    query(postgres.url, "CREATE TABLE kept AS SELECT 1 AS number")
    named = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
    ((checkpointer,),) = query(postgres.url, named)
    os.kill(checkpointer, signal.SIGSTOP)
    postgres.stop()
    assert not place.is_served()
    assert "received immediate shutdown request" in place.log()
    with place.postgres() as again:
        assert query(again.url, "SELECT number FROM kept") == [(1,)]

"""The helper that steps sessions through an interleaving must not itself be wrong."""

from __future__ import annotations

import psycopg
import pytest


@pytest.fixture
def sessions(empty_database):
    empty_database.execute("CREATE TABLE counter (value integer)")
    empty_database.execute("INSERT INTO counter VALUES (1)")
    return empty_database.session(), empty_database.session()


def test_waiting_statement_is_seen_to_wait_and_ends_after_the_other_commits(sessions):
    first, second = sessions
    first.run("BEGIN")
    first.run("UPDATE counter SET value = 2")
    waiting = second.start("UPDATE counter SET value = value + %s RETURNING value", [10])
    waiting.assert_blocked()
    assert not waiting.done()
    first.run("COMMIT")
    assert waiting.result() == [{"value": 12}]


def test_statement_that_does_not_wait_fails_the_assertion(sessions):
    first, _ = sessions
    with pytest.raises(AssertionError, match=r"did not wait: \[\{'value': 1\}\]"):
        first.start("SELECT value FROM counter").assert_blocked()


def test_sleeping_is_not_waiting_for_a_lock(sessions):
    first, _ = sessions
    with pytest.raises(AssertionError, match="neither ended nor waited for a lock"):
        first.start("SELECT pg_sleep(30)").assert_blocked(timeout=0.2)


def test_missing_result_says_why(sessions):
    first, second = sessions
    first.run("BEGIN")
    first.run("LOCK TABLE counter")
    waiting = second.start("SELECT value FROM counter")
    waiting.assert_blocked()
    with pytest.raises(AssertionError, match="still waits for a lock"):
        waiting.result(timeout=0.1)


def test_error_of_the_database_is_raised_unchanged(sessions):
    first, _ = sessions
    with pytest.raises(psycopg.errors.DivisionByZero):
        first.run("SELECT 1 / 0")
    assert first.run("SELECT 1 AS one") == [{"one": 1}]


def test_busy_session_refuses_a_second_statement(sessions):
    first, second = sessions
    first.run("BEGIN")
    first.run("LOCK TABLE counter")
    second.start("SELECT value FROM counter").assert_blocked()
    with pytest.raises(AssertionError, match="busy"):
        second.run("SELECT 1")

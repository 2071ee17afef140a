"""A test that is named for a version of PostgreSQL runs on that version, whatever ran before it."""

from __future__ import annotations


def test_database_is_of_the_version_that_the_test_is_named_for(postgres, database):
    [row] = database.execute("SHOW server_version_num")
    assert f"pg{int(row['server_version_num']) // 10000}" == postgres

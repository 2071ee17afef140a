"""docs/reference/functions.md equals what the live schema would generate."""

from __future__ import annotations

from psycopg.rows import tuple_row

from leasehold.store.postgres.migrate import SqlFiles
from tests.support import reference


def rendered(database):
    with database.connect().cursor(row_factory=tuple_row) as cursor:
        return reference.render(cursor, SqlFiles())


def test_reference_equals_the_live_schema(database):
    assert rendered(database) == reference.PATH.read_text(), "run `make reference`"


def test_reference_with_a_missing_function_would_fail(database):
    database.execute("REVOKE EXECUTE ON FUNCTION leasehold.renew_lease FROM leasehold_executor")
    assert rendered(database) != reference.PATH.read_text()

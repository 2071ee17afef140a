"""The generated pages of docs/reference equal what the code would generate."""

from __future__ import annotations

from psycopg.rows import tuple_row

from leasehold.config import Settings
from leasehold.store.postgres.migrate import SqlFiles
from tests.support import reference, settings_reference


def rendered(database):
    with database.connect().cursor(row_factory=tuple_row) as cursor:
        return reference.render(cursor, SqlFiles())


def test_reference_equals_the_live_schema(database):
    assert rendered(database) == reference.PATH.read_text(), "run `make reference`"


def test_reference_with_a_missing_function_would_fail(database):
    database.execute("REVOKE EXECUTE ON FUNCTION leasehold.renew_lease FROM leasehold_executor")
    assert rendered(database) != reference.PATH.read_text()


def test_reference_of_settings_equals_the_code():
    assert settings_reference.render() == settings_reference.PATH.read_text(), (
        "run `make reference`"
    )


def test_reference_of_settings_has_every_setting_with_its_reason():
    rows = [line for line in settings_reference.render().splitlines() if "`LEASEHOLD_" in line[:14]]
    assert len(rows) == len(Settings.model_fields)
    assert all(len(row.split("|")[-2].split()) > 3 for row in rows)

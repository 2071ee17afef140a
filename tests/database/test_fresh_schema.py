"""The tables in sql/tables equal the sum of the migrations."""

from __future__ import annotations

import shutil

import psycopg
import pytest

from leasehold.store.postgres.migrate import SqlFiles, migrate
from tests.support.schema_catalog import snapshot
from tests.support.sql_tree import SqlTree

# The files have no order: a file that fails is tried again after the others.
TOO_EARLY = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedObject,
    psycopg.errors.UndefinedFunction,
)

ADD_A_STREAM = "INSERT INTO leasehold.streams (target, stream, last_seq) VALUES ('sms', 'a', 7)"
READ_THE_STREAM = "SELECT last_seq FROM leasehold.streams"


def build_from_declarations(url: str, files: SqlFiles) -> None:
    """Apply tables, functions and views without any numbered migration."""
    with psycopg.connect(url) as connection:
        for step in files.preparation:
            connection.execute(step.sql)  # roles.sql ends as the owner
        connection.execute("SET LOCAL search_path = pg_catalog, leasehold, pg_temp")
        connection.execute("SET LOCAL check_function_bodies = off")
        tables = [path.read_text() for path in sorted((files.root / "tables").glob("*.sql"))]
        waiting = [*tables, *[step.sql for step in files.repeatables]]
        while waiting:
            too_early = [text for text in waiting if not applied(connection, text)]
            assert len(too_early) < len(waiting), f"these depend on each other: {too_early}"
            waiting = too_early
        for step in files.upkeep:
            connection.execute(step.sql)


def applied(connection: psycopg.Connection, text: str) -> bool:
    try:
        with connection.transaction():
            connection.execute(text)
    except TOO_EARLY:
        return False
    return True


def test_declared_tables_equal_the_sum_of_migrations(database, empty_database):
    build_from_declarations(empty_database.url, SqlFiles())
    declared = snapshot(empty_database.connect())
    migrated = snapshot(database.connect())
    assert sorted(set(declared) - set(migrated)) == [], "declared, but not in the migrations"
    assert sorted(set(migrated) - set(declared)) == [], "migrated, but not declared"


def test_database_with_only_the_initial_tables_is_brought_to_the_same_schema(
    database, empty_database, tmp_path
):
    packaged = SqlFiles()
    first = packaged.migrations[0].name
    for name in ("roles.sql", "versions.sql", first):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(packaged.root / name, tmp_path / name)
    migrate(empty_database.url, files=SqlFiles(tmp_path, "0.0.1"))
    empty_database.owner_execute(ADD_A_STREAM)
    applied = [step.name for step in migrate(empty_database.url)]
    numbered = [name for name in applied if name.startswith("migrations/")]
    assert numbered == [step.name for step in packaged.migrations if step.name != first]
    assert snapshot(empty_database.connect()) == snapshot(database.connect())
    assert empty_database.execute(READ_THE_STREAM) == [{"last_seq": 7}]


def test_upgrade_to_a_later_release_keeps_rows_and_equals_a_fresh_database(
    database, empty_database, tmp_path
):
    """The next release adds a column, and changes what a function returns.

    A fresh database has no functions yet when the migration runs, hence IF EXISTS.
    """
    packaged = SqlFiles()
    later = shutil.copytree(packaged.root, tmp_path / "sql")
    number = packaged.version + 1
    (later / f"migrations/{number:04}_next.sql").write_text(
        "ALTER TABLE leasehold.streams ADD COLUMN note text NOT NULL DEFAULT 'none';\n"
        "DROP FUNCTION IF EXISTS leasehold.intent_accepted_at(uuid);\n"
    )
    function = later / "functions/intent_accepted_at.sql"
    function.write_text(function.read_text().replace("RETURNS timestamptz", "RETURNS timestamp"))
    database.owner_execute(ADD_A_STREAM)
    applied = [step.name for step in migrate(database.url, files=SqlFiles(later, "9.0.0"))]
    assert applied[0] == f"migrations/{number:04}_next.sql"
    # A migration may drop functions and views, so all of them are applied again.
    assert applied[1:] == [step.name for step in packaged.repeatables]
    migrate(empty_database.url, files=SqlFiles(later, "9.0.0"))
    assert snapshot(database.connect()) == snapshot(empty_database.connect())
    assert database.execute(READ_THE_STREAM) == [{"last_seq": 7}]


@pytest.fixture
def tiny(empty_database, tmp_path):
    migrate(empty_database.url, files=SqlTree(tmp_path).files())
    empty_database.execute("""
        CREATE TYPE leasehold.mood AS ENUM ('good');
        CREATE SEQUENCE leasehold.numbers;
        CREATE FUNCTION leasehold.fires() RETURNS trigger LANGUAGE plpgsql
          AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER fires BEFORE UPDATE ON leasehold.thing EXECUTE FUNCTION leasehold.fires();
        CREATE TABLE leasehold.parts (id integer) PARTITION BY RANGE (id);
        CREATE TABLE leasehold.part PARTITION OF leasehold.parts FOR VALUES FROM (1) TO (9)""")
    return empty_database


@pytest.mark.one_server
@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE leasehold.thing ADD extra integer",
        "ALTER TABLE leasehold.thing ALTER note SET NOT NULL",
        "ALTER TABLE leasehold.thing ALTER note SET DEFAULT 'some'",
        "ALTER TABLE leasehold.other ALTER id TYPE bigint",
        "ALTER TABLE leasehold.other ALTER id TYPE text COLLATE pg_catalog.ucs_basic",
        "ALTER TABLE leasehold.thing ADD CHECK (id > 0)",
        "ALTER TABLE leasehold.thing ADD CHECK (id > 0) NOT VALID",
        "ALTER TABLE leasehold.thing SET (fillfactor = 50)",
        "ALTER TABLE leasehold.thing DISABLE TRIGGER fires",
        "ALTER TABLE leasehold.thing ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE leasehold.thing OWNER TO leasehold_executor",
        "ALTER TABLE leasehold.parts DETACH PARTITION leasehold.part",
        "ALTER INDEX leasehold.thing_note SET (fillfactor = 50)",
        "DROP INDEX leasehold.thing_note",
        "DROP TRIGGER fires ON leasehold.thing",
        "COMMENT ON TABLE leasehold.thing IS 'other'",
        "COMMENT ON COLUMN leasehold.thing.note IS 'other'",
        "COMMENT ON INDEX leasehold.thing_note IS 'other'",
        "COMMENT ON FUNCTION leasehold.count_all() IS 'other'",
        "GRANT SELECT ON leasehold.thing TO leasehold_auditor",
        "GRANT SELECT (note) ON leasehold.thing TO leasehold_readonly",
        "REVOKE SELECT (id) ON leasehold.thing FROM leasehold_readonly",
        "GRANT EXECUTE ON FUNCTION leasehold.count_things() TO PUBLIC",
        "REVOKE EXECUTE ON FUNCTION leasehold.count_all() FROM PUBLIC",
        "GRANT USAGE ON SEQUENCE leasehold.numbers TO leasehold_ingest",
        "REVOKE USAGE ON SCHEMA leasehold FROM leasehold_auditor",
        "ALTER FUNCTION leasehold.count_things() SECURITY DEFINER",
        "ALTER FUNCTION leasehold.count_things() SET search_path = pg_catalog",
        "ALTER FUNCTION leasehold.count_things() STABLE",
        "ALTER SEQUENCE leasehold.numbers CACHE 5",
        "ALTER TYPE leasehold.mood ADD VALUE 'bad'",
        "ALTER VIEW leasehold.noted SET (security_barrier = true)",
        "CREATE OR REPLACE VIEW leasehold.noted AS SELECT id, note FROM leasehold.thing",
        "CREATE STATISTICS leasehold.both ON id, note FROM leasehold.thing",
        "CREATE POLICY all_rows ON leasehold.thing USING (true)",
        "CREATE RULE silent AS ON DELETE TO leasehold.thing DO INSTEAD NOTHING",
    ],
)
def test_comparison_sees_every_kind_of_difference(tiny, change):
    before = snapshot(tiny.connect())
    tiny.execute(change)
    assert snapshot(tiny.connect()) != before


def test_comparison_does_not_see_the_order_of_grants(tiny):
    grant = "GRANT SELECT ON leasehold.other TO leasehold_{}; "
    revoke = "REVOKE ALL ON leasehold.other FROM leasehold_auditor, leasehold_operator; "
    tiny.execute(grant.format("auditor") + grant.format("operator"))
    before = snapshot(tiny.connect())
    tiny.execute(revoke + grant.format("operator") + grant.format("auditor"))
    assert snapshot(tiny.connect()) == before

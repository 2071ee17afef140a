"""Who may migrate: a DBA first, then a login that can only act as the owner. Never a superuser."""

from __future__ import annotations

import re

import psycopg
import pytest
from psycopg import sql

from leasehold.domain.errors import MigrationError
from leasehold.store.postgres.migrate import migrate, plan, script
from tests.support.database import Database
from tests.support.schema_catalog import snapshot
from tests.support.servers import PASSWORD
from tests.support.sql_tree import SqlTree


@pytest.fixture
def tree(tmp_path):
    return SqlTree(tmp_path)


@pytest.fixture
def place(pristine_server):
    """Return an empty database on a server without our roles, and with the logins below."""
    for login, attributes in {"dba": "CREATEROLE", "application": "NOINHERIT"}.items():
        pristine_server.execute(
            f"CREATE ROLE {{}} LOGIN {attributes} PASSWORD {{}}",
            f"test_{login}",
            sql.Literal(PASSWORD),
        )
    database = Database(pristine_server, pristine_server.create_database(empty=True))
    pristine_server.execute("GRANT CREATE ON DATABASE {} TO test_dba", database.name)
    yield database
    database.close()


def run_script(database, text):
    with psycopg.connect(database.url_as("dba"), autocommit=True) as connection:
        connection.execute(text)


def test_login_that_may_create_roles_migrates_a_new_database(place, tree):
    applied = migrate(place.url_as("dba"), files=tree.files())
    assert applied
    assert migrate(place.url_as("dba"), files=tree.files()) == []
    by = place.execute("SELECT DISTINCT applied_by FROM leasehold.schema_migrations")
    assert by == [{"applied_by": "test_dba"}]


def test_roles_cannot_log_in_and_have_no_attribute(place, tree):
    migrate(place.url_as("dba"), files=tree.files())
    roles = place.execute("""
        SELECT rolname FROM pg_roles
         WHERE rolname LIKE 'leasehold\\_%' AND NOT (rolcanlogin OR rolsuper OR rolcreaterole
               OR rolcreatedb OR rolreplication OR rolbypassrls)
         ORDER BY 1""")
    expected = ["api", "auditor", "executor", "ingest", "operator", "owner", "readonly"]
    assert [row["rolname"] for row in roles] == [f"leasehold_{name}" for name in expected]


def test_login_without_privileges_is_told_what_a_dba_has_to_do(place, tree):
    with pytest.raises(MigrationError, match=r"leasehold migrate --print.*GRANT leasehold_owner"):
        migrate(place.url_as("application"), files=tree.files())
    assert snapshot(place.connect()) == []


def test_printed_script_gives_the_same_schema_as_migrate(place, tree):
    run_script(place, script(files=tree.files()))
    other = Database(place.server, place.server.create_database(empty=True))
    try:
        migrate(other.url, files=tree.files())
        assert snapshot(place.connect()) == snapshot(other.connect())
    finally:
        other.close()


def test_printed_script_of_this_release_gives_the_same_schema_as_migrate(database, empty_database):
    with psycopg.connect(empty_database.url, autocommit=True) as connection:
        connection.execute(script())
        assert plan(connection) == []
    assert snapshot(empty_database.connect()) == snapshot(database.connect())


def test_after_the_script_a_member_of_the_owner_needs_no_other_privilege(place, tree):
    run_script(place, script(files=tree.files()))
    place.execute("GRANT leasehold_owner TO test_application")
    application = place.url_as("application")
    assert migrate(application, files=tree.files()) == []
    tree.write("migrations/0003_next.sql", "CREATE TABLE leasehold.next (id integer);")
    tree.write("roles.sql", (tree.root / "roles.sql").read_text() + "-- the next release\n")
    applied = migrate(application, files=tree.files())
    assert "migrations/0003_next.sql" in [step.name for step in applied]
    owner = "SELECT tableowner FROM pg_tables WHERE tablename = 'next'"
    assert place.execute(owner) == [{"tableowner": "leasehold_owner"}]


def test_error_names_the_role_of_a_later_release_that_a_dba_must_create(place, tree):
    run_script(place, script(files=tree.files()))
    place.execute("GRANT leasehold_owner TO test_application")
    roles = (tree.root / "roles.sql").read_text()
    tree.write("roles.sql", roles.replace("'leasehold_api'", "'leasehold_api', 'test_more'"))
    with pytest.raises(MigrationError, match=r"may not create the role test_more") as raised:
        migrate(place.url_as("application"), files=tree.files())
    [statement] = re.findall(r"have a DBA run: (.*?)\)", str(raised.value))
    with psycopg.connect(place.url_as("dba")) as connection:
        connection.execute(statement)
    assert migrate(place.url_as("application"), files=tree.files())


def test_roles_made_by_hand_are_enough_for_a_member_of_the_owner(place, tree):
    with psycopg.connect(place.url_as("dba")) as connection:
        connection.execute((tree.root / "roles.sql").read_text())
    place.execute("GRANT leasehold_owner TO test_application")
    assert migrate(place.url_as("application"), files=tree.files())


def test_second_database_of_a_server_uses_the_roles_that_are_there(place, tree):
    migrate(place.url_as("dba"), files=tree.files())
    other = Database(place.server, place.server.create_database(empty=True))
    try:
        place.server.execute("GRANT CREATE ON DATABASE {} TO test_dba", other.name)
        assert migrate(other.url_as("dba"), files=tree.files())
        assert snapshot(other.connect()) == snapshot(place.connect())
    finally:
        other.close()


def test_script_run_a_second_time_is_refused_and_changes_nothing(place, tree):
    text = script(files=tree.files())
    run_script(place, text)
    before = snapshot(place.connect())
    with pytest.raises(psycopg.errors.RaiseException, match="already has the schema of Leasehold"):
        run_script(place, text)
    assert snapshot(place.connect()) == before


def test_script_that_fails_in_the_middle_leaves_nothing(place, tree):
    tree.write("views/wrong.sql", "CREATE VIEW leasehold.wrong AS SELECT nothing;")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        run_script(place, script(files=tree.files()))
    assert snapshot(place.connect()) == []


def test_script_has_no_commands_of_psql(tree):
    assert not [line for line in script(files=tree.files()).splitlines() if line[:1] == "\\"]

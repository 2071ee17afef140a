"""Migrations are applied once, in order, by one run, completely or not at all."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import psycopg
import pytest

from leasehold.domain.errors import DatabaseUnavailable, MigrationError
from leasehold.store.postgres import migrate as module
from leasehold.store.postgres.migrate import migrate, plan
from tests.support.pooler import run_pooler
from tests.support.schema_catalog import snapshot
from tests.support.sql_tree import FILES, SqlTree

ALL = ["roles.sql", "versions.sql", *FILES]


@pytest.fixture
def tree(tmp_path):
    return SqlTree(tmp_path)


def names(steps):
    return [step.name for step in steps]


def test_fresh_database_gets_everything_in_order(empty_database, tree):
    reported = []
    applied = migrate(empty_database.url, report=reported.append, files=tree.files())
    assert names(applied) == ALL
    assert reported == [f"applied {name}" for name in ALL]
    assert empty_database.execute("SELECT leasehold.count_all()") == [{"count_all": 0}]
    rows = empty_database.execute("SELECT version, name FROM leasehold.schema_migrations")
    assert rows == [{"version": 1, "name": "first"}, {"version": 2, "name": "second"}]


def test_everything_belongs_to_the_owner_role(empty_database, tree):
    migrate(empty_database.url, files=tree.files())
    owners = empty_database.execute("""
        SELECT pg_get_userbyid(relowner) AS owner FROM pg_class
         WHERE relnamespace = 'leasehold'::regnamespace
        UNION SELECT pg_get_userbyid(proowner) FROM pg_proc
         WHERE pronamespace = 'leasehold'::regnamespace
        UNION SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'leasehold'""")
    assert owners == [{"owner": "leasehold_owner"}]


def test_second_run_applies_nothing(empty_database, tree):
    migrate(empty_database.url, files=tree.files())
    before = snapshot(empty_database.connect())
    assert migrate(empty_database.url, files=tree.files()) == []
    assert snapshot(empty_database.connect()) == before


def test_runs_started_at_once_apply_each_step_once(empty_database, tree):
    runs = 6
    barrier = Barrier(runs)

    def run(_):
        barrier.wait()
        return names(migrate(empty_database.url, files=tree.files()))

    with ThreadPoolExecutor(runs) as pool:
        applied = Counter(name for done in pool.map(run, range(runs)) for name in done)
    assert applied == Counter(ALL)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_run_that_waited_for_another_reads_again_what_is_applied(empty_database, tree, isolation):
    empty_database.execute(
        f"ALTER DATABASE {empty_database.name} SET default_transaction_isolation = '{isolation}'"
    )
    other = empty_database.session()
    other.run("BEGIN")
    other.run("SELECT pg_advisory_xact_lock(%s)", [module.MIGRATION_LOCK])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(migrate, empty_database.url, files=tree.files())
        _until_somebody_waits(empty_database)
        _migrate_inside(other, tree)
        other.run("COMMIT")
        # The other session applied the first migration; this run must not do it again.
        assert names(waiting.result(30)) == [name for name in ALL if "first" not in name][2:]


def _migrate_inside(session, tree):
    """Do the first two transactions of a run in one open transaction."""
    steps = [*tree.files().preparation, tree.files().migrations[0]]
    for _, text in module._statements(steps[:2], "1.0.0"):
        session.run(text)
    for _, text in module._statements(steps[2:], "1.0.0"):
        session.run(text)


def _until_somebody_waits(database):
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    deadline = time.monotonic() + 10
    while database.execute(waits) == [{"count": 0}]:
        assert time.monotonic() < deadline, "no session waits for the migration lock"


def test_plan_says_what_would_run_and_changes_nothing(empty_database, tree):
    connection = empty_database.connect()
    assert names(plan(connection, files=tree.files())) == ALL
    assert snapshot(connection) == []
    migrate(empty_database.url, files=tree.files())
    before = snapshot(connection)
    assert plan(connection, files=tree.files()) == []
    tree.write("functions/count_all.sql", FILES["functions/count_all.sql"] + "\n-- changed")
    assert names(plan(connection, files=tree.files())) == ["functions/count_all.sql"]
    assert snapshot(connection) == before


def test_plan_leaves_an_open_transaction_and_its_role_alone(empty_database, tree):
    migrate(empty_database.url, files=tree.files())
    connection = empty_database.connect(autocommit=False)
    connection.execute("CREATE TABLE mine (i integer)")
    plan(connection, files=tree.files())
    connection.commit()
    assert connection.execute("SELECT current_user = session_user AS same").fetchone()["same"]
    assert connection.execute("SELECT count(*) FROM mine").fetchone() == {"count": 0}


def test_only_the_changed_function_is_applied_again(empty_database, tree):
    migrate(empty_database.url, files=tree.files())
    tree.write(
        "functions/count_things.sql",
        FILES["functions/count_things.sql"].replace("count(*)", "count(*) + 100"),
    )
    assert names(migrate(empty_database.url, files=tree.files())) == ["functions/count_things.sql"]
    assert empty_database.execute("SELECT leasehold.count_all()") == [{"count_all": 100}]


def test_other_line_endings_are_not_a_change(empty_database, tree):
    migrate(empty_database.url, files=tree.files())
    for name, text in FILES.items():
        (tree.root / name).write_bytes(text.replace("\n", "\r\n").encode())
    assert migrate(empty_database.url, files=tree.files()) == []


def test_view_that_a_migration_had_to_drop_comes_back_though_its_file_is_unchanged(
    empty_database, tree
):
    migrate(empty_database.url, files=tree.files())
    tree.write(
        "migrations/0003_wider.sql",
        """DROP VIEW leasehold.noted;
           ALTER TABLE leasehold.thing ALTER COLUMN id TYPE bigint;""",
    )
    planned = names(plan(empty_database.connect(), files=tree.files()))
    applied = names(migrate(empty_database.url, files=tree.files()))
    assert planned == applied
    assert applied == ["migrations/0003_wider.sql", *[name for name in FILES if "migr" not in name]]
    assert empty_database.execute("SELECT leasehold.count_all()") == [{"count_all": 0}]


def test_failing_migration_is_wholly_absent_and_those_before_it_stay(empty_database, tree):
    tree.write(
        "migrations/0003_broken.sql",
        "CREATE TABLE leasehold.half (id integer);\n\nSELECT 1 / 0;\n",
    )
    with pytest.raises(MigrationError, match=r"0003_broken\.sql failed .*division by zero"):
        migrate(empty_database.url, files=tree.files())
    versions = empty_database.execute("SELECT version FROM leasehold.schema_migrations ORDER BY 1")
    assert versions == [{"version": 1}, {"version": 2}]
    assert empty_database.execute("SELECT to_regclass('leasehold.half') AS half") == [
        {"half": None}
    ]
    tree.write("migrations/0003_broken.sql", "CREATE TABLE leasehold.half (id integer);")
    assert names(migrate(empty_database.url, files=tree.files()))[0].endswith("broken.sql")


def test_error_names_the_file_and_the_line(empty_database, tree):
    tree.write("views/wrong.sql", "-- a comment\n\nCREATE VIEW leasehold.wrong AS\nSELECT nothing;")
    with pytest.raises(MigrationError, match=r"views/wrong\.sql .*nothing.* at line 4"):
        migrate(empty_database.url, files=tree.files())


def test_functions_and_views_are_applied_together_or_not_at_all(empty_database, tree):
    tree.write("views/wrong.sql", "CREATE VIEW leasehold.wrong AS SELECT nothing;")
    with pytest.raises(MigrationError):
        migrate(empty_database.url, files=tree.files())
    functions = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'leasehold'::regnamespace"
    assert empty_database.execute(functions) == [{"count": 0}]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(module, "_LOCK", module._LOCK.replace("'5s'", "'50ms'"))


@pytest.mark.usefixtures("impatient")
def test_migration_gives_up_behind_a_long_reader_and_succeeds_when_run_again(empty_database, tree):
    migrate(empty_database.url, files=tree.files())
    reader = empty_database.connect(autocommit=False)
    reader.execute("SELECT FROM leasehold.thing")
    tree.write("migrations/0003_alter.sql", "ALTER TABLE leasehold.thing ADD COLUMN extra text;")
    with pytest.raises(
        MigrationError, match=r"0003_alter\.sql.*lock.*run `leasehold migrate` again"
    ):
        migrate(empty_database.url, files=tree.files())
    reader.rollback()
    assert migrate(empty_database.url, files=tree.files())


def test_lost_connection_says_that_the_database_is_unavailable(empty_database, tree):
    dies = "RESET ROLE; SELECT pg_terminate_backend(pg_backend_pid());"
    tree.write("migrations/0003_dies.sql", dies)
    with pytest.raises(DatabaseUnavailable, match="run `leasehold migrate` again"):
        migrate(empty_database.url, files=tree.files())


def test_error_that_occurs_at_the_commit_is_explained_too(empty_database, tree):
    tree.write(
        "migrations/0003_deferred.sql",
        """ALTER TABLE leasehold.thing ADD other integer REFERENCES leasehold.other (id)
             DEFERRABLE INITIALLY DEFERRED;
           INSERT INTO leasehold.thing VALUES (1, 'one', 1);""",
    )
    with pytest.raises(MigrationError, match="foreign key"):
        migrate(empty_database.url, files=tree.files())


def test_settings_of_the_login_do_not_disturb_a_migration(empty_database, tree):
    empty_database.execute(f"""
        ALTER DATABASE {empty_database.name} SET default_transaction_isolation = 'serializable';
        ALTER DATABASE {empty_database.name} SET default_transaction_read_only = on;
        ALTER DATABASE {empty_database.name} SET statement_timeout = '20ms';
        ALTER DATABASE {empty_database.name} SET search_path = public""")
    tree.write("migrations/0003_slow.sql", "SELECT pg_sleep(0.1);")
    assert "migrations/0003_slow.sql" in names(migrate(empty_database.url, files=tree.files()))


@pytest.mark.program("pgbouncer")
def test_runs_at_once_through_a_transaction_pooler_apply_each_step_once(empty_database, tree):
    runs = 6
    with run_pooler(empty_database) as pooler, ThreadPoolExecutor(runs) as pool:
        done = [pool.submit(migrate, pooler.url, files=tree.files()) for _ in range(runs)]
        assert Counter(name for run in done for name in names(run.result(30))) == Counter(ALL)
        # Others use this session afterwards, so its role must be unchanged.
        with psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as connection:
            state = connection.execute("SELECT current_user = session_user").fetchone()
        assert state == (True,)
        assert migrate(pooler.url, files=tree.files()) == []

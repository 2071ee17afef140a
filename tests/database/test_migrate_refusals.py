"""What a migration refuses, and what a running process accepts: newer yes, older no."""

from __future__ import annotations

import pytest

from leasehold.domain.errors import AccessDenied, MigrationError, SchemaTooNew, SchemaTooOld
from leasehold.store.pool_settings import PoolSettings
from leasehold.store.postgres.migrate import migrate, plan
from leasehold.store.postgres.store import PostgresStore
from tests.support.schema_catalog import snapshot
from tests.support.sql_tree import FILES, SqlTree

pytestmark = pytest.mark.one_server


@pytest.fixture
def tree(tmp_path):
    return SqlTree(tmp_path)


@pytest.fixture
def migrated(empty_database, tree):
    migrate(empty_database.url, files=tree.files())
    return empty_database


def assert_refused(database, files, because):
    before = snapshot(database.connect())
    with pytest.raises(MigrationError, match=because):
        plan(database.connect(), files=files)
    with pytest.raises(MigrationError, match=because):
        migrate(database.url, files=files)
    assert snapshot(database.connect()) == before


def test_edited_migration_is_refused(migrated, tree):
    tree.write("migrations/0001_first.sql", FILES["migrations/0001_first.sql"] + "-- edited")
    assert_refused(migrated, tree.files(), "0001_first.sql was changed after it was applied")


def test_missing_migration_is_refused(migrated, tree):
    tree.remove("migrations/0001_first.sql")
    assert_refused(migrated, tree.files(), "0001 was applied, but its file is missing")


def test_new_migration_with_a_lower_number_is_refused(empty_database, tree):
    second = "migrations/0002_second.sql"
    tree.remove(second)
    tree.write("migrations/0003_third.sql", "SELECT 3;")
    migrate(empty_database.url, files=tree.files())
    tree.write(second, FILES[second])
    assert_refused(empty_database, tree.files(), "give it the next free number")


def test_two_migrations_with_one_number_are_refused(empty_database, tree):
    tree.write("migrations/0002_again.sql", "SELECT 2;")
    assert_refused(empty_database, tree.files(), "have the same number")


def test_badly_named_migration_is_refused(empty_database, tree):
    tree.write("migrations/3-third.sql", "SELECT 3;")
    assert_refused(empty_database, tree.files(), "must be named NNNN_what_it_does.sql")


async def check(database, files=None, *, role=None, acts_as=None):
    url = database.url if role is None else database.url_as(role)
    async with PostgresStore(url, PoolSettings(role=acts_as)) as store:
        return await store.check_schema(files=files)


async def test_older_release_does_not_migrate_a_newer_database_but_runs_on_it(migrated, tree):
    tree.write("migrations/0003_newer.sql", "CREATE TABLE leasehold.newer (id integer);")
    migrate(migrated.url, files=tree.files())
    tree.remove("migrations/0003_newer.sql")
    assert_refused(migrated, tree.files(), "migrated by a newer release")
    await check(migrated, tree.files())


async def test_older_release_does_not_overwrite_a_newer_function_of_the_same_version(
    migrated, tree
):
    name = "functions/count_all.sql"
    tree.write(name, FILES[name] + "-- newer")
    migrate(migrated.url, files=tree.files("1.10.0"))
    tree.write(name, FILES[name])
    assert_refused(migrated, tree.files("1.9.0"), "migrated by a newer release")
    await check(migrated, tree.files("1.9.0"))


async def test_release_that_a_migration_no_longer_supports_is_told_that_it_is_too_old(
    migrated, tree
):
    newer = "-- Drop what releases before 1.10 read.\n-- Oldest release: 1.10.0\nSELECT 3;"
    tree.write("migrations/0003_newer.sql", newer)
    tree.write("migrations/0004_newest.sql", "SELECT 4;")
    migrate(migrated.url, files=tree.files("1.11.0"))
    for name in ("0003_newer", "0004_newest"):
        tree.remove(f"migrations/{name}.sql")
    await check(migrated, tree.files("1.10.0"))
    with pytest.raises(SchemaTooNew, match=r"1\.9\.2 is too old .*upgrade it to 1\.10\.0"):
        await check(migrated, tree.files("1.9.2"))


async def test_process_newer_than_the_schema_is_told_to_migrate(migrated, tree):
    tree.write("migrations/0003_newer.sql", "SELECT 3;")
    with pytest.raises(SchemaTooOld, match=r"version 2, .* needs 3: run `leasehold migrate`"):
        await check(migrated, tree.files())


async def test_process_newer_than_the_functions_is_told_to_migrate(migrated, tree):
    tree.write("functions/count_all.sql", FILES["functions/count_all.sql"] + "-- newer")
    with pytest.raises(SchemaTooOld, match=r"count_all\.sql.*run `leasehold migrate`"):
        await check(migrated, tree.files("1.0.1"))


async def test_database_without_the_schema_is_told_to_migrate(empty_database, tree):
    with pytest.raises(SchemaTooOld, match=r"version 0, .*run `leasehold migrate`"):
        await check(empty_database, tree.files())


@pytest.mark.parametrize("role", ["ingest", "executor", "operator", "readonly", "auditor", "api"])
async def test_every_runtime_role_may_check_the_schema_and_nobody_may_write_it(database, role):
    await check(database, role=role)
    for table in ("schema_migrations", "schema_sources"):
        privileges = database.execute(
            "SELECT has_table_privilege(%s, %s, 'INSERT, UPDATE, DELETE, TRUNCATE') AS writes",
            [f"test_{role}", f"leasehold.{table}"],
        )
        assert privileges == [{"writes": False}]


async def test_login_without_any_role_is_told_which_to_ask_for(migrated, tree):
    with pytest.raises(AccessDenied, match="grant this login one of the roles leasehold_ingest, "):
        await check(migrated, tree.files(), acts_as="pg_monitor")

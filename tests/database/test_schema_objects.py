"""`leasehold doctor` names what is missing from a schema whose version is right."""

from __future__ import annotations

import subprocess

import pytest

from leasehold.store.postgres.examination import declared, examine, missing_or_broken
from leasehold.store.postgres.sql_files import SqlFiles
from tests.support.failover import dump
from tests.support.servers import available_binaries

# Without those of partitions, which are made as time passes, and what a column has in itself.
NAMED = """
SELECT relname AS name FROM pg_class
 WHERE relnamespace = 'leasehold'::regnamespace AND relkind IN ('r', 'p', 'i', 'I')
   AND (NOT relispartition OR relname = 'outbox_attempts_default')
 UNION
SELECT conname FROM pg_constraint
 WHERE connamespace = 'leasehold'::regnamespace AND contype <> 'n' AND conparentid = 0
   AND conrelid::regclass::text NOT LIKE 'leasehold.outbox_attempts\\_%'
 UNION
SELECT tgname FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
 WHERE relnamespace = 'leasehold'::regnamespace AND NOT tgisinternal AND tgparentid = 0
   AND (NOT relispartition OR relname = 'outbox_attempts_default')
"""
BREAK = {
    "leases_pkey": "ALTER TABLE leasehold.leases DROP CONSTRAINT leases_pkey CASCADE",
    "intents_check_row": "ALTER TABLE leasehold.intents DROP CONSTRAINT intents_check_row",
    "leases_paused_from_to": "ALTER TABLE leasehold.leases DROP CONSTRAINT leases_paused_from_to,"
    " ADD CONSTRAINT leases_paused_from_to CHECK (true) NOT VALID",
    "outbox_pending_due": "DROP INDEX leasehold.outbox_pending_due",
    "intents_one_per_key": "UPDATE pg_index SET indisvalid = false"
    " WHERE indexrelid = 'leasehold.intents_one_per_key'::regclass",
    "intents_insert_only": "ALTER TABLE leasehold.intents DISABLE TRIGGER intents_insert_only",
    "call_marks": "DROP TABLE leasehold.call_marks",
}


def schema_check(url):
    [check] = [one for one in examine(url) if one.name == "schema"]
    return check


def test_what_is_declared_is_what_a_fresh_schema_has(database):
    assert {row["name"] for row in database.execute(NAMED)} == declared(SqlFiles())
    assert missing_or_broken(database.connect("readonly"), SqlFiles()) == []
    assert schema_check(database.url_as("executor")).level == "ok"


@pytest.mark.one_server
@pytest.mark.parametrize("name", BREAK)
def test_object_that_is_missing_or_does_not_work_is_named(database, name):
    database.execute(BREAK[name])
    check = schema_check(database.url_as("executor"))
    assert check.level == "fail"
    assert name in check.found
    assert "restore the backup into an empty database" in check.advice


@pytest.mark.one_server
def test_restore_into_a_database_that_is_written_to_is_found(database, empty_database, tmp_path):
    """The keys come last. Rows that another session writes before them cost a table its key."""
    assert schema_check(database.url).level == "ok"
    dump(database.url, tmp_path / "dump")
    restore(tmp_path / "dump", empty_database.url, "pre-data", "data")
    empty_database.execute("INSERT INTO leasehold.generations SELECT * FROM leasehold.generations")
    restore(tmp_path / "dump", empty_database.url, "post-data")
    check = schema_check(empty_database.url)
    assert (check.level, "generations_pkey" in check.found) == ("fail", True), check


def restore(file, url, *sections):
    program = next(iter(available_binaries().values())).bin_dir / "pg_restore"
    given = [part for one in sections for part in ("--section", one)]
    subprocess.run([program, *given, "--dbname", url, file], check=False, capture_output=True)

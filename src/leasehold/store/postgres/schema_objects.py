"""What a migrated schema consists of by name, and what of it a database lacks.

The recorded version says which migrations ran, not what is left of them: `pg_restore --clean` can
leave tables without their primary keys, in a schema whose version is right.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from psycopg.rows import tuple_row

if TYPE_CHECKING:
    import psycopg

    from leasehold.store.postgres.sql_files import SqlFiles

# Only these begin a line like this in our files.
_DECLARED = re.compile(
    r"^(?:CREATE (?:OR REPLACE |UNIQUE )?(?:TABLE|INDEX|TRIGGER)(?: IF NOT EXISTS)?|  CONSTRAINT)"
    r" (?:leasehold\.)?(\w+)",
    re.MULTILINE,
)
# The partitions of the ledger need no look: without theirs, an index of the whole table is invalid.
_PRESENT = """
SELECT found.name, bool_and(found.works)
  FROM pg_catalog.pg_namespace n
 CROSS JOIN LATERAL (
   SELECT c.relname, true
     FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
    UNION ALL
   SELECT c.relname, i.indisvalid
     FROM pg_catalog.pg_class c JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
    WHERE c.relnamespace = n.oid
    UNION ALL
   SELECT k.conname, k.convalidated
     FROM pg_catalog.pg_constraint k WHERE k.connamespace = n.oid
    UNION ALL
   SELECT t.tgname, t.tgenabled <> 'D'
     FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = n.oid
 ) AS found (name, works)
 WHERE n.nspname = 'leasehold'
 GROUP BY found.name
"""


def declared(files: SqlFiles) -> frozenset[str]:
    """Return the names of all tables of a release, their constraints, indexes and triggers."""
    tables = [path.read_text(encoding="utf-8") for path in (files.root / "tables").glob("*.sql")]
    steps = [step.sql for step in (*files.preparation, *files.repeatables)]
    return frozenset(name for text in (*tables, *steps) for name in _DECLARED.findall(text))


def missing_or_broken(connection: psycopg.Connection[Any], files: SqlFiles) -> list[str]:
    """Return the names of what is declared and not there, not valid or switched off, sorted."""
    found = connection.cursor(row_factory=tuple_row).execute(_PRESENT).fetchall()
    return sorted(declared(files) - {name for name, works in found if works})

"""A small SQL folder with the layout of the real one, for tests of migration."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from leasehold.store.postgres.migrate import SqlFiles

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "migrations/0001_first.sql": """
        CREATE TABLE leasehold.thing (id integer PRIMARY KEY, note text DEFAULT 'none');
        CREATE INDEX thing_note ON leasehold.thing (note);
        COMMENT ON COLUMN leasehold.thing.note IS 'a note';
        GRANT SELECT (id) ON leasehold.thing TO leasehold_readonly;""",
    "migrations/0002_second.sql": "CREATE TABLE leasehold.other (id integer PRIMARY KEY);",
    # Needs a function from a later file, which needs a view.
    "functions/count_all.sql": """
        CREATE OR REPLACE FUNCTION leasehold.count_all() RETURNS bigint LANGUAGE sql
        AS 'SELECT leasehold.count_things()';""",
    "functions/count_things.sql": """
        CREATE OR REPLACE FUNCTION leasehold.count_things() RETURNS bigint LANGUAGE sql
        SET search_path = pg_catalog, leasehold, pg_temp
        AS 'SELECT count(*) FROM leasehold.noted';
        REVOKE ALL ON FUNCTION leasehold.count_things() FROM PUBLIC;""",
    "views/noted.sql": """
        CREATE OR REPLACE VIEW leasehold.noted AS
        SELECT id, note FROM leasehold.thing WHERE note IS NOT NULL;""",
}


class SqlTree:
    """The folder; `files` presents it as a release to migrate to."""

    def __init__(self, root: Path):
        self.root = root
        packaged = SqlFiles().root
        for name in ("roles.sql", "versions.sql"):
            shutil.copy(packaged / name, root / name)
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def remove(self, name: str) -> None:
        (self.root / name).unlink()

    def files(self, release: str = "1.0.0") -> SqlFiles:
        return SqlFiles(self.root, release)

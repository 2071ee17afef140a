"""The SQL files of this release, as the steps that a migration applies.

    roles.sql, versions.sql      roles, schema and version tables; repeatable
    migrations/NNNN_name.sql     numbered, frozen once released, forward only
    functions/*.sql views/*.sql  one object per file, CREATE OR REPLACE; repeatable
    upkeep/*.sql                 run at the end of every migration, not recorded

`tables/*.sql` declares the current tables, for readers and for a test. It is never applied.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from leasehold.domain.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal["roles", "versions", "migration", "function", "view", "upkeep"]

_GRANTED = re.compile(r"^GRANT (?:SELECT|EXECUTE)\b[^;]*\bTO ([^;]*);", re.MULTILINE)
_ROLE = re.compile(r"leasehold_[a-z]+")
_MIGRATION_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)")
_OLDEST_RELEASE = re.compile(r"^-- Oldest release: (\d+(?:\.\d+)*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Step:
    """One SQL file to apply. `name` is its path inside the SQL folder."""

    kind: Kind
    name: str
    sql: str
    checksum: str

    @property
    def version(self) -> int:
        """The number of a numbered migration."""
        return int(Path(self.name).name[:4])

    @property
    def title(self) -> str:
        """The name of a numbered migration, without its number."""
        return Path(self.name).stem[5:]

    @property
    def oldest_release(self) -> str | None:
        """The oldest release that can run after a migration; None: as before it."""
        found = _OLDEST_RELEASE.search(self.sql)
        return found[1] if found else None


@dataclass(frozen=True)
class SqlFiles:
    """All SQL files in a folder, read once, and the release that they belong to."""

    root: Path = Path(__file__).parent / "sql"
    release: str = field(default_factory=lambda: metadata.version("leasehold"))

    @cached_property
    def preparation(self) -> list[Step]:
        """Roles, schema and version tables, which every other step needs."""
        return [self._step("roles", "roles.sql"), self._step("versions", "versions.sql")]

    @cached_property
    def migrations(self) -> list[Step]:
        """The numbered migrations, in order."""
        steps = self._folder("migration", "migrations")
        for step in steps:
            if not _MIGRATION_NAME.fullmatch(Path(step.name).stem):
                raise MigrationError(f"{step.name} must be named NNNN_what_it_does.sql")
        for before, after in pairwise(steps):
            if before.version == after.version:
                raise MigrationError(f"{before.name} and {after.name} have the same number")
        return steps

    @cached_property
    def repeatables(self) -> list[Step]:
        """Functions, then the views that may use them."""
        return [*self._folder("function", "functions"), *self._folder("view", "views")]

    @cached_property
    def upkeep(self) -> list[Step]:
        """Maintenance that needs the owner's rights and is safe to run at any time."""
        return self._folder("upkeep", "upkeep")

    @property
    def version(self) -> int:
        """The schema version that this release needs."""
        return self.migrations[-1].version if self.migrations else 0

    def _folder(self, kind: Kind, folder: str) -> list[Step]:
        paths = sorted((self.root / folder).glob("*.sql"))
        return [self._step(kind, f"{folder}/{path.name}") for path in paths]

    def _step(self, kind: Kind, name: str) -> Step:
        # Text mode: a checkout with other line ends has the same checksum.
        sql = (self.root / name).read_text(encoding="utf-8")
        return Step(kind, name, sql, hashlib.sha256(sql.encode()).hexdigest())


def granted_roles(name: str, root: Path = SqlFiles.root) -> tuple[str, ...]:
    """Return the roles that may use a function, view or table; none if it is not ours.

    What is granted to nobody is the owner's.
    """
    for folder in ("functions", "views", "tables"):
        path = root / folder / f"{name}.sql"
        if path.is_file():
            lists = _GRANTED.findall(path.read_text(encoding="utf-8"))
            roles = dict.fromkeys(role for one in lists for role in _ROLE.findall(one))
            return tuple(roles) or ("leasehold_owner",)
    return ()


def is_newer(release: str, than: str) -> bool:
    """Compare the numbers of two releases. Suffixes such as rc1 do not count."""
    return _numbers(release) > _numbers(than)


def newest(releases: Iterable[str]) -> str | None:
    """Return the newest of some releases; None for none."""
    return max(releases, key=_numbers, default=None)


def _numbers(release: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", release)
    return tuple(int(number) for number in match[0].split(".")) if match else ()

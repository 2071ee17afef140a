"""Break a function of the schema on purpose, to see that a test would notice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.database import Database


def mutate(database: Database, function: str, pattern: str, replacement: str) -> None:
    """Replace a part of a function's text; fail if the function reads otherwise now."""
    database.execute("SET search_path = pg_catalog")  # so that all types are in full
    [row] = database.execute(
        "SELECT pg_get_functiondef(%s::regproc) AS text", [f"leasehold.{function}"]
    )
    text, count = re.subn(pattern, replacement, row["text"], flags=re.DOTALL)
    assert count > 0, f"{function} reads otherwise now: give the mutant its new words"
    database.execute(text)

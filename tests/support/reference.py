"""`make reference`: writes docs/reference/functions.md from the schema and the SQL files' comments.

A test fails when the page and the schema differ.
"""

from __future__ import annotations

import re
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from leasehold.embedded.server import EmbeddedPostgres
from leasehold.store.postgres.migrate import SqlFiles, migrate

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH = Path(__file__).parents[2] / "docs" / "reference" / "functions.md"

INTRODUCTION = """\
# Database functions

The functions of the schema `leasehold` are the only way to change its data: no role that an
application runs as may write to a table. A role may call the functions listed under it and no
others. Functions that are not listed are internal. `make reference` generates this page from the
live schema and from the comments in the SQL files; a test fails when they differ.

A batch function returns a verdict per row. It raises only when the whole call is refused. The
SQLSTATEs are:

| SQLSTATE | meaning |
|---|---|
| `P7002` | the lease or claim is lost: drop the result |
| `P7003` | an executor may not report this state, or the call was never begun |
| `P7004` | the retry ceiling (20) is reached |
| `P7005` | the idempotency key was used with another payload, stream or target |
| `P7006` | the database may have lost commits: drop all leases and call `begin_generation` |
| `P7007` | the text of the payload, or the body, has more than 1 MiB |
| `P0001` | UPDATE or DELETE on an append-only table |
| `22023` | an invalid argument: NULL, negative or out of range |
| `23505` | on `outbox_attempts_one_terminal_per_intent`: a second terminal row; else a defect |

There are two NOTIFY channels. `notify_targets` sends the target on `leasehold_due`; `release_lease`
sends the lease name on `leasehold_lease`. Both are hints: polling alone is correct.
"""

_INDENTED = {"initial_indent": "  ", "subsequent_indent": "  "}

GRANTED = """
SELECT p.proname AS name, pg_get_function_arguments(p.oid) AS arguments,
       pg_get_function_result(p.oid) AS result,
       array_agg(r.rolname::text ORDER BY r.rolname) AS roles
  FROM pg_proc p
  JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspname = 'leasehold'
 CROSS JOIN LATERAL aclexplode(p.proacl) AS acl
  JOIN pg_roles r ON r.oid = acl.grantee
 WHERE acl.privilege_type = 'EXECUTE' AND p.prosecdef AND r.rolname <> 'leasehold_owner'
 GROUP BY p.oid
UNION ALL
SELECT p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
       ARRAY['leasehold_owner']
  FROM pg_proc p
 WHERE p.oid = ANY (ARRAY['leasehold.create_token', 'leasehold.list_tokens', 'leasehold.prune',
                          'leasehold.revoke_token']::regproc[])
 ORDER BY 4, 1
"""


def render(cursor: psycopg.Cursor[Any], files: SqlFiles) -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    heading = ""
    for name, arguments, result, roles in cursor.execute(GRANTED).fetchall():
        section = " and ".join(f"`{role}`" for role in roles)
        if section != heading:
            parts.append(f"\n## Called as {section}\n")
            heading = section
        comment = (files.root / "functions" / f"{name}.sql").read_text()
        parts.append(f"\n### {name}\n\n```sql\n{_signature(name, arguments, result)}\n```\n")
        parts.append("\n".join(_prose(comment)) + "\n")
    return "\n".join(parts)


def _signature(name: str, arguments: str, result: str) -> str:
    lines = ",\n  ".join(re.split(r", (?=p_)", arguments))
    columns = re.fullmatch(r"TABLE\((.*)\)", result)
    if columns:
        result = (
            "TABLE (\n"
            + textwrap.fill(
                columns[1].replace("timestamp with time zone", "timestamptz"), 96, **_INDENTED
            )
            + "\n)"
        )
    return f"{name}(\n  {lines}\n) RETURNS {result}".replace(
        "timestamp with time zone", "timestamptz"
    )


def _prose(text: str) -> Iterator[str]:
    """Yield the comment at the head of a file; Locks, Raises, ... each begin a paragraph."""
    for line in text.splitlines():
        if not line.startswith("--"):
            return
        said = line[2:].removeprefix(" ")
        if re.match(r"(Locks|Raises|Verdicts|Returns):?", said) and ":" in said.split(" ")[0]:
            yield ""
        yield said


def main() -> None:
    """Write the page, using a throwaway database."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-reference-"))
    folder.chmod(0o711)
    with EmbeddedPostgres(folder / "postgres") as postgres:
        migrate(postgres.url)
        with psycopg.connect(postgres.url) as connection:
            PATH.write_text(render(connection.cursor(), SqlFiles()))


if __name__ == "__main__":
    main()

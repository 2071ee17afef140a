"""Project rules that no linter checks: SQL files, logging, and that Python writes no rows."""

from __future__ import annotations

import ast
import logging
import re
from enum import StrEnum
from pathlib import Path

import pytest

import leasehold
from leasehold.domain import verdict
from leasehold.domain.intent import AttemptState, Status

PACKAGE = Path(leasehold.__file__).parent
SQL = PACKAGE / "store" / "postgres" / "sql"
SQL_FILES = sorted(SQL.rglob("*.sql"))
FUNCTIONS = sorted((SQL / "functions").glob("*.sql"))
MODULES = sorted(PACKAGE.rglob("*.py"))

MODULE_LINES_MAX = 350
SECURITY = "SECURITY DEFINER SET search_path = pg_catalog, leasehold, pg_temp"
# Readers of a view call it with their own rights; it only reads its arguments.
GRANTED_WITHOUT_RIGHTS = {"final_status"}
GRANTED = [
    path
    for path in FUNCTIONS
    if re.search(r"^GRANT\b", path.read_text(), re.MULTILINE)
    and path.stem not in GRANTED_WITHOUT_RIGHTS
]
# Migrations record themselves; no function of the schema could.
WRITES = {"store/postgres/migrate.py": {"schema_migrations", "schema_sources"}}
DML = re.compile(
    r"\b(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM|TRUNCATE(?:\s+TABLE)?|MERGE\s+INTO|COPY)\s+"
    r"(?:ONLY\s+)?leasehold\.(\w+)",
    re.IGNORECASE,
)


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def without_comments(text: str) -> str:
    return re.sub(r"--[^\n]*", "", text)


def called_in(name: str, text: str) -> bool:
    return re.search(rf"\bleasehold\.{name}\s*\(", text) is not None


@pytest.mark.parametrize("path", SQL_FILES, ids=name_of)
def test_sql_file_opens_with_a_comment_that_says_what_it_does(path):
    first = path.read_text().splitlines()[0]
    assert re.match(r"-- [A-Z\"]\S*(\s+\S+){2,}", first), first


@pytest.mark.parametrize("path", FUNCTIONS, ids=name_of)
def test_function_file_defines_the_one_function_that_it_is_named_for(path):
    text = without_comments(path.read_text())
    defined = re.findall(r"\bCREATE\s+(?:OR REPLACE\s+)?(\w+)\s+(?:leasehold\.)?(\w+)", text)
    functions = [name for kind, name in defined if kind in {"FUNCTION", "PROCEDURE"}]
    assert functions == [path.stem]


@pytest.mark.parametrize("path", SQL_FILES, ids=name_of)
def test_insert_names_its_columns(path):
    inserts = re.findall(r"INSERT INTO [^(]*?\b(SELECT|VALUES|TABLE)\b", path.read_text())
    assert inserts == [], "a column that is added later would move the others"


@pytest.mark.parametrize("path", FUNCTIONS, ids=name_of)
def test_function_has_a_caller(path):
    name = path.stem
    in_python = any(called_in(name, module.read_text()) for module in MODULES)
    in_sql = any(
        called_in(name, without_comments(other.read_text()))
        for other in SQL_FILES
        if other != path and other.parent.name in {"functions", "views", "tables"}
    )
    in_trigger = re.search(
        rf"EXECUTE FUNCTION leasehold\.{name}\(", without_comments(path.read_text())
    )
    assert in_python or in_sql or in_trigger, f"nothing calls {name}: delete it, or call it"


@pytest.mark.parametrize("path", FUNCTIONS, ids=name_of)
def test_function_is_revoked_from_public_and_secured_if_granted(path):
    text = without_comments(path.read_text())
    assert re.search(
        rf"REVOKE ALL ON FUNCTION leasehold\.{path.stem}\b.*?FROM PUBLIC", text, re.DOTALL
    )
    if path in GRANTED:
        assert SECURITY in re.sub(r"\s+", " ", text)


# Users call these in their own transactions.
OF_USERS = {"hold_lease"}


@pytest.mark.parametrize("path", [one for one in GRANTED if one.stem not in OF_USERS], ids=name_of)
def test_granted_function_has_a_method_of_its_name(path):
    modules = (PACKAGE / "store" / "postgres").glob("*.py")
    assert any(f"async def {path.stem}(" in one.read_text() for one in modules)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_python_writes_no_rows(path):
    written = set(DML.findall(path.read_text()))
    assert written <= WRITES.get(name_of(path), set()), "call a function of the schema instead"


def test_search_for_writes_finds_them():
    for statement in (
        "INSERT INTO leasehold.intents VALUES (1)",
        "update leasehold.leases set x = 1",
        "DELETE\n  FROM leasehold.streams",
        "TRUNCATE leasehold.outbox_attempts",
        "MERGE INTO leasehold.intents",
        "COPY leasehold.intents FROM STDIN",
    ):
        assert DML.search(statement), statement
    assert not DML.search("SELECT ... FROM leasehold.intents FOR UPDATE")


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_is_short(path):
    assert len(path.read_text().splitlines()) <= MODULE_LINES_MAX, (
        "split it: it has more than one idea"
    )


LEVELS = set(logging.getLevelNamesMapping())
# Commands print their output.
PRINTING = ("cli/", "demo/")


def foreign_loggers(tree: ast.Module) -> list[str]:
    """Find every line that may log by other means than observe.logs."""
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) if any(one.name.startswith("structlog") for one in names):
                found.append(f"line {node.lineno}: imports structlog")
            case ast.ImportFrom(module=str(module)) if module.startswith(("structlog", "logging")):
                found.append(f"line {node.lineno}: imports from {module}")
            case ast.Attribute(value=ast.Name(id="logging"), attr=attr) if attr not in LEVELS:
                found.append(f"line {node.lineno}: uses logging.{attr}")
            case ast.Call(func=ast.Name(id="print")):
                found.append(f"line {node.lineno}: prints")
            case _:
                pass
    return found


def is_only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_logs_through_observe_logs_alone(path):
    name = name_of(path)
    if name == "observe/logs.py":
        return
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not is_only_for_types(node)]
    found = foreign_loggers(tree)
    if name.startswith(PRINTING):
        found = [one for one in found if not one.endswith("prints")]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import structlog",
        "import structlog.stdlib as s",
        "from structlog import get_logger",
        "from logging import getLogger",
        "def f():\n    import logging\n    logging.getLogger(__name__).info('x')",
        "logging.warning('x')",
        "print('x')",
    ],
)
def test_search_for_foreign_loggers_finds_them(source):
    assert foreign_loggers(ast.parse(source))


def test_search_for_foreign_loggers_permits_levels_and_our_logger():
    source = "import logging\nget_logger(__name__).log(logging.DEBUG, 'x')"
    assert foreign_loggers(ast.parse(source)) == []


VERDICTS = {
    verdict.EnqueueVerdict: ["enqueue_intents"],
    verdict.BeginVerdict: [
        "begin_outbox_attempts",
        "begin_leased_attempts",
        "begin_stream_attempts",
    ],
    verdict.RecordVerdict: [
        "complete_outbox_attempts",
        "record_attempts",
        "record_stream_attempts",
    ],
    verdict.RenewVerdict: ["renew_outbox_leases", "renew_leases"],
    verdict.ReleaseVerdict: ["release_outbox_claims", "release_leases"],
    verdict.CancelVerdict: ["cancel_intent"],
    verdict.ResolveVerdict: ["resolve_intent"],
    verdict.RetryNowVerdict: ["retry_intent_now"],
    verdict.RedriveVerdict: ["redrive_intents", "redrive_intent"],
    verdict.PauseVerdict: ["pause_stream"],
    verdict.ResumeVerdict: ["resume_stream"],
    verdict.SkipVerdict: ["skip_stream_head"],
    verdict.RevokeVerdict: ["revoke_token"],
}


def with_callees(name: str) -> str:
    """The text of a function and of all that it calls, however far down."""
    found: dict[str, str] = {}
    wanted = [name]
    while wanted:
        text = (SQL / "functions" / f"{wanted[-1]}.sql").read_text()
        found[wanted.pop()] = text
        wanted += [f.stem for f in FUNCTIONS if f.stem not in found and called_in(f.stem, text)]
    return "".join(found.values())


@pytest.mark.parametrize("verdicts", VERDICTS, ids=lambda kind: kind.__name__)
def test_each_verdict_is_returned_by_its_functions(verdicts):
    text = "".join(with_callees(name) for name in VERDICTS[verdicts])
    missing = [one for one in verdicts if f"'{one}'" not in text]
    assert missing == []


def test_every_verdict_enum_is_covered_above():
    kinds = {
        kind
        for kind in vars(verdict).values()
        if isinstance(kind, type) and issubclass(kind, StrEnum) and kind is not StrEnum
    }
    # The API's own: it has the database's verdicts and those of the API.
    assert kinds == set(VERDICTS) | {verdict.BatchVerdict}


def test_states_and_statuses_equal_those_of_the_schema():
    ledger = (SQL / "functions" / "check_attempt_row.sql").read_text()
    assert all(f"'{state}'" in ledger for state in AttemptState)
    told = "".join(
        (SQL / name).read_text()
        for name in ("views/intent_status.sql", "functions/final_status.sql")
    )
    assert set(re.findall(r"(?:THEN|ELSE) '([a-z_]+)'", told)) == set(Status)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_commands_print_only_by_the_function_that_escapes(path):
    found = re.findall(r"\btyper\.(?:echo|secho)\(|\bclick\.echo\(", path.read_text())
    assert not found or name_of(path) == "cli/output.py"

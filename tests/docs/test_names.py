"""Every name in the documents exists: functions, settings, metrics, paths, commands, events.

A name that was renamed in the code and not in the documents fails here.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import leasehold
from leasehold.cli.main import COMMANDS, load_command
from leasehold.config import Settings
from leasehold.observe.metrics import Metrics
from leasehold.web.service import WebMetrics

ROOT = Path(__file__).parents[2]
GENERATED = {"functions.md"}
DOCUMENTS = [
    path
    for path in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    )
    if path.name not in GENERATED
]
SEARCHED = ("src", "tests/support", "benchmarks", "deploy", "Makefile", "pyproject.toml", ".ci")
CODE = re.compile(r"```.*?\n(.*?)```|`([^`\n]+)`", re.DOTALL)

# Names of PostgreSQL and its tools.
FOREIGN = {
    "backend_xmin", "catalog_xmin", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin",
    "enable_seqscan", "force_generic_plan", "idle_session_timeout", "pg_locks",
    "pg_prepared_xacts", "pg_read_all_stats", "pg_replication_slots", "pg_sleep",
    "pg_snapshot_xmin",
    "pg_stat_activity", "pg_stat_activity_max_tx_duration", "pg_temp", "pg_terminate_backend",
    "plan_cache_mode", "search_path", "tcp_user_timeout", "xact_start",
    # a login of an example
    "leasehold_serve",
    # columns of the source documents
    "lock_token", "locked_until", "next_attempt_at", "outbox_id", "provider_id",
}  # fmt: skip


def pieces_of_code(document: Path) -> list[str]:
    return [block or inline for block, inline in CODE.findall(document.read_text())]


def inline_code(document: Path) -> list[str]:
    """Code inside sentences and tables. Other tests run the examples."""
    return [inline for _, inline in CODE.findall(document.read_text()) if inline]


def names_in_examples(document: Path) -> set[str]:
    return set(
        re.findall(r"\w+", " ".join(block for block, _ in CODE.findall(document.read_text())))
    )


def by_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="session")
def words() -> set[str]:
    """Every identifier in the sources, and the names of tests."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *SEARCHED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tests = [path.read_text() + path.name for path in (ROOT / "tests").rglob("test_*.py")]
    found = set(re.findall(r"\btest_\w+", " ".join(tests)))
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file():
            found |= set(re.findall(r"\w+", path.read_text(errors="replace") + path.name))
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_quoted_identifier_is_in_the_sources(document, words):
    quoted = {
        name
        for piece in inline_code(document)
        for name in re.findall(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b", piece)
    }
    known = words | FOREIGN | set(exposed_metrics()) | names_in_examples(document)
    assert quoted - known == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_setting_exists(document, words):
    settings = {f"LEASEHOLD_{name.upper()}" for name in Settings.model_fields}
    named = set(re.findall(r"\bLEASEHOLD_[A-Z][A-Z_]*[A-Z]\b", document.read_text()))
    assert named - settings - words == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_metric_role_and_channel_exists(document, words):
    named = set(re.findall(r"\bleasehold_[a-z_]*[a-z]\b", document.read_text()))
    assert named - set(exposed_metrics()) - words - FOREIGN == set()


def test_every_object_of_the_schema_exists(database):
    found = database.execute(
        "SELECT proname::text AS name FROM pg_proc WHERE pronamespace = 'leasehold'::regnamespace"
        " UNION SELECT relname::text FROM pg_class WHERE relnamespace = 'leasehold'::regnamespace"
    )
    schema = {row["name"] for row in found}
    python = set(leasehold.__all__) | {
        path.stem for path in Path(leasehold.__file__).parent.iterdir()
    }
    other = {"toml", "example", "service"}  # leasehold.toml, leasehold.example.org, systemd units
    for document in DOCUMENTS:
        named = set(re.findall(r"\bleasehold\.([a-z_]+)", document.read_text()))
        assert named - schema - python - other == set(), document.name


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_path_exists(document):
    for piece in pieces_of_code(document):
        for path in re.findall(r"(?<![\w/.])(?:src|tests|docs|deploy|benchmarks)/[\w./@-]+", piece):
            assert list(ROOT.glob(path.rstrip("/."))), f"{document.name} names {path}"


def test_every_file_on_the_path_of_an_intent_exists():
    package = Path(leasehold.__file__).parent
    document = ROOT / "CONTRIBUTING.md"
    named = {
        name
        for piece in inline_code(document)
        for name in re.findall(r"(?<![\w/.])[a-z_][\w/]*\.(?:py|sql)\b", piece)
        if not name.startswith(("src/", "tests/"))
    }
    assert {"web/middleware.py", "append_attempts.sql"} <= named
    for name in named:
        assert list(package.rglob(f"**/{name}")), f"{document.name} names {name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_command_and_option_exists(document):
    for piece in pieces_of_code(document):
        for line in piece.splitlines():
            called = re.match(r"(?:\$ )?leasehold ([a-z]+)(?: ([a-z][a-z|-]*))?(.*)", line.strip())
            if called:
                assert called[1] in COMMANDS, line
                check_options(called[1], called[2], called[3].split("#")[0])


def check_options(name: str, subcommand: str | None, rest: str) -> None:
    command = load_command(name)
    commands = [command]
    if hasattr(command, "commands"):
        assert subcommand is None or set(subcommand.split("|")) <= set(command.commands)
        commands = [command.commands[one] for one in (subcommand or "").split("|") if one]
    for one in commands:
        known = {option for parameter in one.params for option in parameter.opts}
        known |= {option for parameter in one.params for option in parameter.secondary_opts}
        assert set(re.findall(r"(?<!\S)--[a-z-]+", rest)) <= known | {"--help"}


def exposed_metrics() -> list[str]:
    metrics = Metrics("worker-1")
    WebMetrics(metrics.registry, "worker-1")
    return [
        name
        for metric in metrics.registry.collect()
        for name in (metric.name, f"{metric.name}_total")
    ]

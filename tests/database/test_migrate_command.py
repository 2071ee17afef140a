"""`leasehold migrate` as people and scripts see it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from leasehold.cli.main import app
from leasehold.store.postgres.migrate import SqlFiles, script
from tests.support.schema_catalog import snapshot
from tests.support.servers import PASSWORD

pytestmark = pytest.mark.one_server

VARIABLE = "LEASEHOLD_DATABASE_URL"


@pytest.fixture(autouse=True)
def no_address_in_the_environment(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def run(*arguments, **environment):
    return CliRunner().invoke(app, ["migrate", *arguments], env=environment)


def assert_one_line_of_error(result, *parts):
    assert result.exit_code == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    for part in parts:
        assert part in result.stderr
    assert "Traceback" not in result.output


def test_command_migrates_and_then_has_nothing_to_do(empty_database):
    version = SqlFiles().version
    first = run("--database-url", empty_database.url)
    assert first.exit_code == 0, first.output
    assert first.stdout.startswith("Applied roles and version tables, ")
    assert first.stdout.endswith(f"The schema is at version {version}.\n")
    second = run(**{VARIABLE: empty_database.url})
    assert second.stdout == f"Nothing to do. The schema is at version {version}.\n"


def test_plan_prints_the_steps_and_changes_nothing(empty_database):
    result = run("--plan", "--database-url", empty_database.url)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:2] == ["roles.sql", "versions.sql"]
    assert result.stdout.splitlines()[-1].startswith("Would apply ")
    assert snapshot(empty_database.connect()) == []


def test_plan_of_a_migrated_database_is_empty(database):
    assert run("--plan", "--database-url", database.url).stdout == "Nothing to do.\n"


def test_print_connects_to_nothing():
    result = run("--print", "--database-url", "postgresql://nobody@203.0.113.1:1/nowhere")
    assert result.exit_code == 0
    assert result.stdout == script()


def test_plan_and_print_together_are_refused():
    assert_one_line_of_error(run("--plan", "--print"), "--plan and --print cannot be used together")


@pytest.mark.parametrize("environment", [{}, {VARIABLE: ""}])
def test_missing_database_url_is_reported(environment):
    assert_one_line_of_error(run(**environment), "--database-url", VARIABLE)


def test_wrong_password_is_reported_in_one_line_and_not_shown(database):
    url = database.server.url_of(database.name, "readonly").replace(PASSWORD, "hunter2 hunter3")
    result = run("--database-url", url)
    assert_one_line_of_error(result, "password authentication failed")
    assert "hunter" not in result.output


def test_refusal_is_reported_in_one_line(database):
    database.execute("INSERT INTO leasehold.schema_migrations VALUES (9999, 'later', '')")
    result = run("--database-url", database.url)
    assert_one_line_of_error(result, "was migrated by a newer release")


def test_help_does_not_show_the_address_of_the_environment():
    result = run("--help", **{VARIABLE: "postgresql://user:hunter2@host/name"})
    assert result.exit_code == 0
    assert "hunter2" not in result.output


def test_version_is_printed():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout.split()[0]) == (0, "leasehold")

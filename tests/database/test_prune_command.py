"""`leasehold prune` as people and scripts see it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from leasehold.cli.main import app
from leasehold.store.postgres import retention
from tests.database.test_partitions_and_prune import add_old_intents, month_name

pytestmark = pytest.mark.one_server

VARIABLE = "LEASEHOLD_DATABASE_URL"


@pytest.fixture(autouse=True)
def no_address_in_the_environment(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def run(*arguments, **environment):
    return CliRunner().invoke(app, ["prune", *arguments], env=environment)


def test_old_months_are_pruned_in_small_steps_and_recent_ones_stay(outbox, database):
    outbox.publish()
    add_old_intents(outbox, months=5, count=5)
    add_old_intents(outbox, months=4, count=3, unfinished=1)
    kept = add_old_intents(outbox, months=1, count=2)
    result = run(
        "--keep-days", "62", "--batch-size", "2", "--database-url", database.url_as("owner")
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"Dropped {month_name(database, -5)} (5 intents so far)",
        "Deleted 5 intents in 1 month.",
        f"Kept because of unfinished intents: {month_name(database, -4)}",
    ]
    [left] = database.execute("SELECT count(*) AS n FROM leasehold.intents")
    assert left["n"] == 3 + len(kept)


def test_day_before_which_to_prune_can_be_given(outbox, database):
    outbox.publish()
    add_old_intents(outbox, months=5, count=2)
    nothing = run("--before", "2001-01-01", "--database-url", database.url)
    assert nothing.stdout == "Deleted 0 intents in 0 months.\n"
    [day] = database.execute("SELECT to_char(now() - interval '2 days', 'YYYY-MM-DD') AS day")
    result = run("--before", day["day"], **{VARIABLE: database.url})
    assert result.stdout.splitlines()[-1] == "Deleted 2 intents in 1 month."


def test_locked_ledger_is_tried_again_later(outbox, database, monkeypatch):
    outbox.publish()
    add_old_intents(outbox, months=5, count=1)
    reader = database.session()
    reader.run("BEGIN")
    reader.run("SELECT count(*) FROM leasehold.outbox_attempts")
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        reader.run("COMMIT")

    monkeypatch.setattr(retention, "time", SimpleNamespace(sleep=pause))
    result = run("--keep-days", "31", "--database-url", database.url)
    assert result.exit_code == 0, result.output
    assert "Deleted 1 intents in 1 month." in result.stdout
    assert len(pauses) == 1


@pytest.mark.parametrize("arguments", [[], ["--keep-days", "3", "--before", "2020-01-01"]])
def test_command_needs_exactly_one_retention_option(arguments):
    result = run(*arguments, "--database-url", "postgresql://127.0.0.1:1/x")
    assert result.exit_code == 1
    assert "either --before or --keep-days" in result.stderr


def test_less_than_a_day_is_refused(database):
    result = run("--before", "2999-01-01", "--database-url", database.url)
    assert (result.exit_code, "at least one day ago" in result.stderr) == (1, True)


def test_login_that_is_not_the_owner_is_refused(database):
    result = run("--keep-days", "31", "--database-url", database.url_as("operator"))
    assert result.exit_code == 1
    assert "have a DBA grant" in result.stderr
    assert "Traceback" not in result.output


def test_missing_database_url_is_reported_with_advice():
    result = run("--keep-days", "31")
    assert (result.exit_code, VARIABLE in result.stderr) == (1, True)

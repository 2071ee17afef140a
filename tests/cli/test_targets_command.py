"""`leasehold targets`, run as a process: from the file to the database and back."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from leasehold.cli.targets import app, read_targets
from leasehold.domain.contract import RetryTerms
from leasehold.domain.errors import InvalidArgument
from leasehold.store.postgres.database import PostgresDatabase
from tests.support.cli_process import run_fork

SMS = """
[targets.sms]
scope = "item"
guarantee = "keyed"
gateway = { kind = "http", url = "https://sms.example.com/send" }
"""
LETTERS = """
[targets.letters]
scope = "item"
guarantee = "blind"
gateway = { kind = "python", function = "post.office:send" }
"""


@pytest.fixture
def targets(database, tmp_path):
    """Runs `leasehold targets` as an operator, in the folder of leasehold.toml."""

    def run(*arguments, file=None, role="operator"):
        if file is not None:
            (tmp_path / "leasehold.toml").write_text(file)
        environment = {
            **os.environ,
            "LEASEHOLD_DATABASE_URL": database.url_as(role),
            "LEASEHOLD_OPERATOR": "ada",
        }
        return run_fork(["targets", *arguments], environment, cwd=tmp_path)

    return run


def test_apply_publishes_changed_targets_and_reports_the_others(targets, outbox, database):
    first = targets("apply", file=SMS + LETTERS)
    assert first.stdout == "sms: version 1 (new)\nletters: version 1 (new)\n", first.stderr
    [before] = outbox.enqueue()
    again = targets("apply")
    assert again.stdout == "sms: unchanged (version 1)\nletters: unchanged (version 1)\n"
    changed = targets("apply", file=SMS + "concurrency = 11")
    assert changed.stdout == (
        "sms: version 2 (was 1)\nletters: not in leasehold.toml, unchanged (version 1)\n"
    )
    [after] = outbox.enqueue()
    versions = {row["intent_id"]: row["contract_version"] for row in outbox.claim()}
    assert versions == {before: 1, after: 2}, "an intent keeps the version it was accepted under"
    rows = database.execute("SELECT DISTINCT published_by FROM leasehold.contracts")
    assert rows == [{"published_by": "ada"}]


def test_apply_publishes_nothing_if_one_target_is_invalid(targets, database):
    result = targets("apply", file=SMS + LETTERS.replace("blind", "hopeful"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: leasehold.toml: targets.letters.guarantee: must be 'keyed', 'fenced', 'lookup' or"
        " 'blind'\n"
    )
    assert database.execute("SELECT * FROM leasehold.contracts") == []


EVERYTHING_WRONG = """
[targets.sms]
scope = "item"
guarantee = "lookup"
concurrency = 0
lease_seconds = 10
[targets.sms.gateway]
kind = "http"
url = "http://10.0.0.7/send"
submissions_max = 7
stream_header = "a b"

[targets.chain]
scope = "cluster"
guarantee = "fenced"
priority = 9
gateway = { kind = "ledger", url = "http://localhost:8008/?a=b" }

[targets.letters]
scope = "item"
guarantee = "lookup"
gateway = { kind = "http", url = "https://a.example/{key}", lookup_url = 7 }

[targets.mail]
scope = "item"
guarantee = "lookup"
gateway = { kind = "http", url = "https://a.example/{key}" }

[targets.pigeon]
scope = "item"
guarantee = "keyed"
deadline_seconds = -1
retry = { policy = "deadline" }
gateway = { kind = "carrier-pigeon" }
"""


def test_check_prints_all_problems_of_a_file_at_once(targets):
    checked = targets("check", file=EVERYTHING_WRONG)
    assert checked.returncode == 1
    start = "Error: leasehold.toml: targets."
    lines = checked.stderr.splitlines()
    assert all(line.startswith(start) for line in lines), lines
    said = [line.removeprefix(start) for line in lines]
    expected = {
        "sms.concurrency: must be greater than or equal to 1",
        "sms.gateway.stream_header: a header name must consist",
        "sms: call_timeout_seconds (25) must be less than lease_seconds (10)",
        "sms: guarantee lookup needs a gateway with a lookup: set lookup_url",
        "sms: submissions_max (7) is only for scope stream, not item",
        "sms.gateway.url: a call to 10.0.0.7 would go to 10.0.0.7, which is private",
        "chain.priority: must be less than or equal to 3",
        "chain.gateway: url must be the address to which",
        "chain: guarantee fenced is not for kind ledger",
        "chain.gateway.url: a call to localhost would go to 127.0.0.1, which is loopback",
        "letters.gateway.lookup_url: must be text",
        "letters.gateway: url must not contain {key}",
        "mail.gateway: url must not contain {key}",
        "mail: guarantee lookup needs a gateway with a lookup: set lookup_url",
        "pigeon.deadline_seconds: must be greater than 0",
        "pigeon.gateway.kind: must be one of 'http', 'ledger', 'python'",
    }
    told = {one: [line for line in said if line.startswith(one)] for one in expected}
    assert [one for one, lines in told.items() if len(lines) != 1] == [], said
    assert len(said) == len(expected), said
    assert targets("apply", file=EVERYTHING_WRONG).stderr == checked.stderr


@pytest.mark.parametrize(
    ("url", "more", "told"),
    [
        ("http://127.0.0.1:8081/a", "", "which is loopback: to permit it, add the host"),
        ("http://[::1]/a", "", "which is loopback"),
        ("http://localhost:8081/a", "", "would go to 127.0.0.1, which is loopback"),
        ("http://2130706433/a", "", "unusual notation"),
        ("http://169.254.169.254/a", "allow_private = true", "a metadata service"),
        ("http://127.0.0.1:8081/a", "allow_private = true", None),
        ("http://localhost:8081/a", 'allow_hosts = ["localhost"]', None),
        ("http://gateway.internal/a", "", None),
    ],
)
def test_address_that_every_instance_would_refuse_is_not_published(targets, url, more, told):
    file = f"""
[targets.sms]
scope = "item"
guarantee = "keyed"
[targets.sms.gateway]
kind = "http"
url = "{url}"
{more}
"""
    results = [targets(command, file=file) for command in ("check", "apply")]
    assert [one.returncode for one in results] == [int(told is not None)] * 2
    if told:
        assert all(told in one.stderr for one in results), results


@pytest.mark.parametrize("scope", ["stream", "cluster"])
def test_targets_of_the_other_scopes_are_published_too(targets, scope):
    applied = targets("apply", file=SMS.replace("item", scope))
    assert (applied.returncode, applied.stdout) == (0, "sms: version 1 (new)\n"), applied.stderr


def test_target_of_a_scope_that_the_database_does_not_serve_is_not_published(
    database, tmp_path, monkeypatch
):
    monkeypatch.setattr(PostgresDatabase, "scopes", frozenset({"cluster"}))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leasehold.toml").write_text(SMS)
    result = CliRunner().invoke(app, ["apply", "--database-url", database.url_as("operator")])
    assert isinstance(result.exception, InvalidArgument)
    assert str(result.exception) == "this database serves no targets of scope item"
    assert database.execute("SELECT * FROM leasehold.contracts") == []


def test_apply_by_a_readonly_login_fails_with_one_line(targets):
    result = targets("apply", file=SMS, role="readonly")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "publish_contract" in result.stderr


def test_check_warns_of_a_function_that_is_not_in_the_working_directory(targets, tmp_path):
    checked = targets("check", file=LETTERS)
    assert (checked.returncode, "1 valid target: letters" in checked.stdout) == (0, True)
    said = " ".join(checked.stderr.split())
    assert "Warning: letters: post.office:send: the module post.office cannot be imported" in said
    assert "--app-dir" in said
    (tmp_path / "elsewhere" / "post").mkdir(parents=True)
    (tmp_path / "elsewhere" / "post" / "office.py").write_text("def send(submission): ...")
    assert targets("check", "--app-dir", "elsewhere").stderr == ""
    (tmp_path / "elsewhere" / "post").rename(tmp_path / "post")
    assert targets("check").stderr == ""
    missing = targets("check", "--app-dir", "nowhere")
    assert missing.returncode == 1
    assert "Error: --app-dir: Path does not point to a directory" in missing.stderr


def test_list_includes_targets_that_this_release_cannot_read(targets, outbox):
    targets("apply", file=SMS + LETTERS)
    outbox.publish("plain")
    outbox.publish("strange", two_phase=True)
    listed = targets("list", role="readonly")
    assert listed.returncode == 0, listed.stderr
    lines = {line.split()[0]: line.split() for line in listed.stdout.splitlines()}
    assert lines["sms"][1:6] == ["1", "item", "keyed", "http", "https://sms.example.com/send"]
    assert lines["letters"][1:6] == ["1", "item", "blind", "python", "post.office:send"]
    assert lines["plain"][1:5] == ["1", "item", "keyed", "none"]
    assert lines["strange"][4] == "unreadable:"
    as_json = json.loads(targets("list", "--json", role="readonly").stdout)
    assert [one["target"] for one in as_json] == ["letters", "plain", "sms", "strange"]
    assert {one["published_by"] for one in as_json} == {"ada", "test"}


def test_list_of_an_empty_database_is_empty_and_says_what_to_do(targets):
    listed = targets("list", "--json", role="readonly")
    assert (listed.returncode, json.loads(listed.stdout)) == (0, [])
    assert "leasehold targets apply" in targets("list", role="readonly").stdout


def test_output_of_show_is_a_file_that_apply_finds_unchanged(targets, tmp_path):
    targets("apply", file=SMS)
    targets("apply", file=SMS + 'retry = { policy = "one_shot" }')
    shown = targets("show", "sms", role="readonly")
    assert shown.stdout.startswith("# sms, version 2, published ")
    assert targets("apply", file=shown.stdout).stdout == "sms: unchanged (version 2)\n"
    earlier = targets("show", "sms", "--version", "1", role="readonly").stdout
    (tmp_path / "earlier.toml").write_text(earlier)
    [contract] = read_targets(tmp_path / "earlier.toml")
    assert contract.retry == RetryTerms()
    terms = json.loads(targets("show", "sms", "--json").stdout)
    assert (terms["retry_policy"], terms["attempts_max"]) == ("one_shot", 1)


def test_show_of_an_unknown_target_names_the_known_ones(targets):
    targets("apply", file=SMS)
    for arguments, message in {
        ("nobody",): "target nobody is not published; published targets: sms",
        ("sms", "--version", "9"): "target sms has no version 9",
    }.items():
        shown = targets("show", *arguments)
        assert (shown.returncode, shown.stdout) == (1, "")
        assert shown.stderr == f"Error: {message}\n"


def test_check_warns_that_a_pipeline_submits_before_a_failure_is_known(targets):
    file = """
[targets.batches]
scope = "stream"
guarantee = "lookup"
pipeline_max = 5
gateway = { kind = "ledger", url = "https://ledger.example.com", submissions_max = 5 }
"""
    checked = targets("check", file=file)
    assert checked.returncode == 0, checked.stderr
    assert "batches: with pipeline_max (5) intents are submitted before" in checked.stderr
    refused = targets("check", file=file.replace("pipeline_max = 5\n", ""))
    assert refused.returncode == 1
    assert "submissions_max (5) must not exceed pipeline_max (1)" in refused.stderr


def test_check_warns_of_a_lease_shorter_than_two_calls(targets):
    file = """
[targets.sms]
scope = "item"
guarantee = "keyed"
gateway = { kind = "http", url = "https://sms.example.com/send" }
"""
    assert targets("check", file=file).stderr == ""
    short = targets(
        "check", file=file.replace("[targets.sms]", "[targets.sms]\nlease_seconds = 40")
    )
    assert short.returncode == 0, short.stderr
    assert "sms: lease_seconds (40) is less than twice call_timeout_seconds (50)" in short.stderr

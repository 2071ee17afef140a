"""leasehold.toml is valid as a whole, or refused with all its problems by key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leasehold.cli.main import app
from leasehold.cli.targets import TargetsFileError, read_targets, write_target
from leasehold.domain.contract import Contract, RetryTerms
from leasehold.domain.gateway_terms import known_kinds
from leasehold.gateway.http.terms import HttpTerms
from leasehold.gateway.python.terms import PythonTerms

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "targets.md"
GATEWAY = 'gateway = { kind = "http", url = "https://sms.example.com/send" }'
STATUS = "must be a status such as 429, or a class such as 4xx"
GOOD = f"""
[targets.sms]
scope = "item"
guarantee = "keyed"
{GATEWAY}
"""


@pytest.fixture
def written(tmp_path):
    """Writes a targets file and returns its path."""

    def write(text):
        path = tmp_path / "leasehold.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def problems_of(path):
    with pytest.raises(TargetsFileError) as raised:
        read_targets(path)
    return [problem.removeprefix(f"{path}: ") for problem in raised.value.problems]


def example_of_the_document():
    [example] = re.findall(r"^```toml\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    return example


def test_file_becomes_contracts_without_a_version(written):
    [contract] = read_targets(written(GOOD))
    assert contract == Contract(
        target="sms",
        scope="item",
        guarantee="keyed",
        gateway=HttpTerms(url="https://sms.example.com/send"),
    )
    assert contract.version is None


def test_all_problems_are_reported_at_once_by_key(written):
    path = written(
        """
        colour = "red"
        [targets.sms]
        scope = "galaxy"
        guarante = "keyed"
        concurrency = true
        lease_seconds = "30"
        [targets.sms.retry]
        attempts_max = 21
        [targets.sms.gateway]
        kind = "http"
        url = "https://user:hunter2@sms.example.com"
        accepted_statuses = [200, "2yy"]
        [targets.payments]
        scope = "item"
        guarantee = "keyed"
        version = 3
        gateway = { kind = "pigeon" }
        [targets.Letters]
        scope = "item"
        guarantee = "blind"
        """
    )
    problems = problems_of(path)
    assert problems == [
        "colour: is not a known table; allowed: targets",
        "targets.sms.scope: must be 'item', 'stream' or 'cluster'",
        "targets.sms.guarantee: is required: 'keyed', 'fenced', 'lookup' or 'blind'",
        "targets.sms.gateway.url: must not contain a user or password: use secret_headers",
        f"targets.sms.gateway.accepted_statuses.1: {STATUS}",
        "targets.sms.retry.attempts_max: must be less than or equal to 20",
        "targets.sms.lease_seconds: must be a number",
        "targets.sms.concurrency: must be an integer",
        "targets.sms.guarante: is not a setting; did you mean guarantee?",
        "targets.payments.version: is assigned by `leasehold targets apply`: remove it",
        "targets.payments.gateway.kind: must be one of 'http', 'ledger', 'python'",
        "targets.Letters.gateway: is required: a table with kind http, ledger or python",
        "targets.Letters: must be 1 to 64 of a-z 0-9 . _ - and start with a letter or digit",
    ]
    assert "hunter2" not in " ".join(problems)


def test_unknown_setting_without_a_close_match_lists_what_is_allowed(written):
    [problem] = problems_of(written(GOOD + "zzz = 1"))
    assert problem.startswith("targets.sms.zzz: is not a setting; allowed here: block_seconds,")


def test_impossible_timings_are_reported_with_their_reasons(written):
    path = written(
        GOOD + "lease_seconds = 30\ncall_timeout_seconds = 40\nconnect_timeout_seconds = 50"
    )
    first, second = problems_of(path)
    assert first.startswith(
        "targets.sms: call_timeout_seconds (40) must be less than lease_seconds (30): a call must"
    )
    assert second.startswith("targets.sms: connect_timeout_seconds (50) must be less than")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "targets: must contain a table for each target, such as [targets.sms]"),
        ("targets = 3", "targets: must contain a table for each target, such as [targets.sms]"),
        ("[targets]\nsms = 3", "targets.sms: must be a table, such as [targets.sms]"),
        ("[targets.sms", "is not valid TOML: "),
        (b"\xff\xfe", "is not UTF-8 text"),
        ("#" * 1_100_000, "is larger than 1048576 bytes"),
        (GOOD + "retry = 5", "targets.sms.retry: must be a table"),
        (GOOD.replace("{ kind", "7 # {"), "targets.sms.gateway: must be a table"),
        (GOOD + "lease_seconds = nan", "targets.sms.lease_seconds: must be a finite number"),
    ],
    ids=range(9),
)
def test_malformed_file_is_refused_with_its_reason(written, text, message):
    [problem] = problems_of(written(text))
    assert problem.startswith(message)


def test_terms_too_long_for_the_database_are_refused(written):
    headers = "\n".join(f'X-{number} = "{"x" * 4000}"' for number in range(20))
    gateway = '[targets.sms.gateway]\nkind = "http"\nurl = "https://a.example"'
    text = GOOD.replace(GATEWAY, f"{gateway}\n[targets.sms.gateway.headers]\n{headers}")
    assert problems_of(written(text)) == ["targets.sms: has more than 60000 characters of terms"]


def test_missing_file_is_reported_with_the_file_option(tmp_path):
    [problem] = problems_of(tmp_path / "nowhere.toml")
    assert problem == "cannot be read: No such file or directory; use --file for another file"


@pytest.mark.parametrize(
    "contract",
    [
        Contract(target="sms", scope="item", guarantee="keyed", gateway=HttpTerms(url="http://a")),
        Contract(
            target="with.dots-1",
            scope="cluster",
            guarantee="lookup",
            gateway=HttpTerms(
                url="https://a.example/%C3%BC",
                lookup_url="https://a.example/{key}",
                headers={"X-Note": 'say "hi" \\ bye'},
                secret_headers={"Authorization": "TOKEN"},
                allow_hosts=("*.internal",),
            ),
            retry=RetryTerms(policy="one_shot"),
        ),
        Contract(
            target="letters",
            scope="stream",
            guarantee="blind",
            gateway=PythonTerms(function="post.office:Letters.send"),
            rate_per_second=0.00001,
        ),
    ],
    ids=lambda contract: contract.target,
)
def test_written_target_reads_back_as_the_same_contract(written, contract):
    assert read_targets(written(write_target(contract))) == [contract]


def run(*arguments):
    return CliRunner().invoke(app, ["targets", *arguments])


def test_check_needs_no_database_and_names_the_targets(written, monkeypatch):
    monkeypatch.delenv("LEASEHOLD_DATABASE_URL", raising=False)
    path = written(GOOD)
    result = run("check", "--file", str(path))
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{path}: 1 valid target: sms\n"


def test_check_reads_the_file_of_the_working_directory(written, monkeypatch):
    monkeypatch.chdir(written(GOOD).parent)
    assert run("check").stdout == "leasehold.toml: 1 valid target: sms\n"


def test_check_prints_one_line_per_problem_and_fails(written):
    path = written(GOOD.replace("item", "items") + "concurrency = 0")
    result = run("check", "--file", str(path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        f"Error: {path}: targets.sms.scope: must be 'item', 'stream' or 'cluster'",
        f"Error: {path}: targets.sms.concurrency: must be greater than or equal to 1",
    ]


def test_apply_of_an_invalid_file_does_not_connect_to_the_database(written):
    path = written(GOOD + "nonsense = 1")
    result = run("apply", "--file", str(path), "--database-url", "postgresql://nobody@203.0.113.1")
    assert result.exit_code == 1
    assert "targets.sms.nonsense" in result.stderr


def test_example_of_the_document_passes_the_check(written):
    result = run("check", "--file", str(written(example_of_the_document())))
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("3 valid targets: sms, payments, letters\n")


def sections_of_the_document():
    """The sections with a table of settings, by the model that they describe."""
    models = {"The target": Contract, "`retry`": RetryTerms} | {
        f"`gateway` of kind `{kind}`": terms for kind, terms in known_kinds().items()
    }
    found = dict(
        section.split("\n", 1)
        for section in re.split(r"^## ", DOCUMENT.read_text(), flags=re.MULTILINE)[1:]
        if re.search(r"^\| `\w+` \|", section, re.MULTILINE)
    )
    assert found.keys() == models.keys(), "a section for each kind that is registered"
    return {model: found[heading] for heading, model in models.items()}


def test_document_has_a_row_for_each_setting_and_no_others():
    for model, text in sections_of_the_document().items():
        rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
        assert rows == set(model.model_fields) - model.assigned


def test_document_states_the_defaults_of_the_models():
    for model, text in sections_of_the_document().items():
        for name, field in model.model_fields.items():
            if isinstance(field.default, int | float) and not isinstance(field.default, bool):
                row = rf"^\| `{name}` \| {field.default:.9g}\b"
                assert re.search(row, text, re.MULTILINE), (model, name)

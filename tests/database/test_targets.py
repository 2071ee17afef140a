"""Targets from file to database and back, as people and executors see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leasehold.cli.targets_file import read_targets
from leasehold.domain.contract import Contract, HttpTerms, PythonTerms, RetryTerms
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import NewIntent
from tests.support.racing import refused

COMMAND = Path(sys.executable).parent / "leasehold"
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
CONTRACTS = [
    Contract(
        target="sms",
        scope="item",
        guarantee="keyed",
        gateway=HttpTerms(
            url="http://127.0.0.1:8080/keyed",
            lookup_url="http://127.0.0.1:8080/lookup/{key}",
            headers={"X-Team": "sms"},
            secret_headers={"Authorization": "TOKEN"},
            allow_private=True,
        ),
        key_window_seconds=86_400,
        deadline_seconds=12.5,
        retry=RetryTerms(policy="deadline", jitter=0.5),
        rate_per_second=0.1,
    ),
    Contract(
        target="payments",
        scope="cluster",
        guarantee="lookup",
        gateway=PythonTerms(function="a:b", lookup="a:c"),
        lease_seconds=12.5,
        call_timeout_seconds=10,
    ),
    Contract(
        target="letters",
        scope="stream",
        guarantee="blind",
        gateway=PythonTerms(function="a:b"),
        retry=RetryTerms(policy="one_shot"),
        priority=0,
    ),
]


@pytest.fixture
def targets(database, tmp_path):
    """Runs `leasehold targets`, as an operator, where its file lies."""

    def run(*arguments, file=None, role="operator"):
        if file is not None:
            (tmp_path / "leasehold.toml").write_text(file)
        environment = {
            **os.environ,
            "LEASEHOLD_DATABASE_URL": database.url_as(role),
            "LEASEHOLD_OPERATOR": "ada",
        }
        return subprocess.run(
            [COMMAND, "targets", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


def test_apply_publishes_what_changed_and_says_what_did_not(targets, outbox, database):
    first = targets("apply", file=SMS + LETTERS)
    assert first.stdout == "sms: version 1 (new)\nletters: version 1 (new)\n", first.stderr
    [before] = outbox.enqueue()
    again = targets("apply")
    assert again.stdout == "sms: unchanged (version 1)\nletters: unchanged (version 1)\n"
    changed = targets("apply", file=SMS + "concurrency = 11")
    assert changed.stdout == (
        "sms: version 2 (was 1)\nletters: not in leasehold.toml, left as it is (version 1)\n"
    )
    [after] = outbox.enqueue()
    versions = {row["intent_id"]: row["contract_version"] for row in outbox.claim()}
    assert versions == {before: 1, after: 2}, "an intent keeps the version it was accepted under"
    rows = database.execute("SELECT DISTINCT published_by FROM leasehold.contracts")
    assert rows == [{"published_by": "ada"}]


def test_apply_of_a_file_with_one_bad_target_publishes_none(targets, database):
    result = targets("apply", file=SMS + LETTERS.replace("blind", "hopeful"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: leasehold.toml: targets.letters.guarantee: must be 'keyed', 'fenced', 'lookup' or"
        " 'blind'\n"
    )
    assert database.execute("SELECT * FROM leasehold.contracts") == []


def test_apply_by_a_login_that_may_not_publish_says_so_in_one_line(targets):
    result = targets("apply", file=SMS, role="readonly")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "publish_contract" in result.stderr


def test_list_shows_every_target_also_those_that_this_release_cannot_read(targets, outbox):
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


def test_list_of_an_empty_database_is_empty(targets):
    listed = targets("list", "--json", role="readonly")
    assert (listed.returncode, json.loads(listed.stdout)) == (0, [])


def test_shown_terms_are_a_file_that_applies_without_a_change(targets, tmp_path):
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


def test_show_of_what_is_not_there_names_what_is(targets):
    targets("apply", file=SMS)
    for arguments, told in {
        ("nobody",): "no contract of nobody is published; targets: sms",
        ("sms", "--version", "9"): "no contract of sms, version 9, is published; targets: sms",
    }.items():
        shown = targets("show", *arguments)
        assert (shown.returncode, shown.stdout) == (1, "")
        assert shown.stderr == f"Error: {told}\n"


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.target)
async def test_contract_comes_back_from_the_database_as_it_was_published(stores, contract):
    version = await stores.operator.publish_contract(contract.target, contract.terms(), "ada")
    published = contract.model_copy(update={"version": version})
    assert await stores.executor.read_contract(contract.target, version) == published
    assert await stores.readonly.read_contracts() == [published]
    again = await stores.operator.publish_contract(contract.target, published.terms(), "ada")
    assert again == version, "terms that were read back are the same terms"


async def test_database_decides_by_what_the_contract_says(stores, database):
    for contract in CONTRACTS:
        await stores.operator.publish_contract(contract.target, contract.terms(), "ada")
    columns = [
        "scope",
        "guarantee",
        "lease_name",
        "deadline_seconds",
        "lease_seconds",
        "call_timeout_seconds",
        "quarantine_seconds",
        "key_window_seconds",
        "can_look_up",
    ]
    rows = {row["target"]: row for row in database.execute("SELECT * FROM leasehold.contracts")}
    for contract in CONTRACTS:
        row = rows[contract.target]
        assert [row[name] for name in columns] == [getattr(contract, name) for name in columns]
        assert row["retry_policy"] == contract.retry.policy
        assert row["attempts_max"] == contract.retry.attempts_max


async def test_defaults_of_the_database_are_those_of_the_contract(stores):
    for scope in ("item", "stream", "cluster"):
        terms = {"scope": scope, "guarantee": "keyed"}
        await stores.operator.publish_contract("plain", terms, "ada")
        published = await stores.readonly.read_published_contract("plain")
        told = published.contract()
        expected = Contract(target="plain", version=told.version, scope=scope, guarantee="keyed")
        assert told == expected
        assert published.terms.value().items() <= expected.terms().items()


async def test_terms_that_cannot_be_read_are_told_and_do_not_hide_their_neighbours(stores):
    await stores.operator.publish_contract("sms", {"scope": "item", "guarantee": "keyed"}, "ada")
    slow = {"scope": "item", "guarantee": "keyed", "call_timeout_seconds": 90}
    await stores.operator.publish_contract("slow", slow, "ada")
    refused = {}
    contracts = await stores.executor.read_contracts(refused.__setitem__)
    assert [contract.target for contract in contracts] == ["sms"]
    assert "call_timeout_seconds (90) must be less than lease_seconds (30)" in refused["slow"]
    with pytest.raises(InvalidArgument, match="slow, version 1"):
        await stores.executor.read_contract("slow", 1)


async def test_contracts_are_read_in_their_current_version_or_in_the_one_asked_for(stores):
    for concurrency in (1, 2, 3):
        contract = CONTRACTS[0].model_copy(update={"concurrency": concurrency})
        await stores.operator.publish_contract("sms", contract.terms(), "ada")
    [current] = await stores.executor.read_contracts()
    assert (current.version, current.concurrency) == (3, 3)
    older = await stores.executor.read_contract("sms", 2)
    assert (older.version, older.concurrency) == (2, 2)
    assert await stores.executor.read_contract("sms", 4) is None
    assert await stores.executor.read_contract("nobody", 1) is None


async def test_intent_without_a_priority_has_that_of_its_contract(stores):
    urgent = CONTRACTS[0].model_copy(update={"priority": 0})
    await stores.operator.publish_contract("sms", urgent.terms(), "ada")
    await stores.ingest.enqueue_intents(
        [NewIntent(target="sms", payload=1), NewIntent(target="sms", payload=2, priority=2)]
    )
    claimed = await stores.executor.claim_outbox_batch(10, "w", 30, ["sms"])
    assert {one.payload.raw: one.priority for one in claimed} == {b"1": 0, b"2": 2}


@pytest.mark.parametrize("priority", [-1, 4, 1.5, "1", None, True, [1]])
def test_priority_that_no_intent_could_have_is_refused_in_plain_sql_too(outbox, priority):
    with refused("22023"):
        outbox.publish(priority=priority)


def test_priority_of_plain_sql_may_be_spelt_as_any_number(outbox):
    outbox.publish(priority=3.0)
    outbox.enqueue()
    assert [claim["priority"] for claim in outbox.claim()] == [3]

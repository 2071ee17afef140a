"""`leasehold tokens`, run as a process: a token is shown once, and an error is one line."""

from __future__ import annotations

import json
import re

import pytest

from leasehold.domain.api_token import token_hash
from tests.support.cli_process import assert_one_line_of_error
from tests.support.cli_process import forked_leasehold as leasehold


@pytest.fixture
def tokens(database):
    def run(*arguments, role="owner"):
        return leasehold("tokens", *arguments, url=database.url_as(role))

    return run


def active(database):
    rows = database.execute("SELECT * FROM leasehold.read_active_tokens()")
    return {bytes(row["token_hash"]): row for row in rows}


def test_token_is_created_listed_and_revoked(tokens, database, outbox):
    outbox.publish("sms")
    made = tokens(
        "create", "ci", "--scope", "ingest", "--scope", "read",
        "--target", "sms", "--target", "mail", "--operator", "ada",
    )  # fmt: skip
    assert made.returncode == 0, made
    token = made.stdout.removesuffix("\n")
    assert re.fullmatch(r"lh_[A-Za-z0-9_-]{43}", token), "nothing else on standard output"
    assert "Created token ci (scopes: ingest, read; targets: mail, sms)." in made.stderr
    assert "cannot be shown again" in made.stderr
    assert "no contract is published yet for mail." in made.stderr
    row = active(database)[token_hash(token)]
    assert (row["name"], row["scopes"], row["targets"]) == (
        "ci",
        ["ingest", "read"],
        ["mail", "sms"],
    )

    listed = tokens("list")
    assert "ingest, read" in listed.stdout
    assert token not in listed.stdout + listed.stderr
    [row] = json.loads(tokens("list", "--json").stdout)
    assert (row["name"], row["created_by"], row["targets"]) == ("ci", "ada", ["mail", "sms"])

    assert tokens("revoke", "ci", "--operator", "eve").stdout == "ci: revoked\n"
    assert active(database) == {}
    assert tokens("revoke", "ci").stdout == "ci: already_revoked\n"
    assert tokens("list").stdout == "No tokens found.\n"
    [row] = json.loads(tokens("list", "--all", "--json").stdout)
    assert row["revoked_by"] == "eve"


def test_token_without_targets_is_for_all_targets(tokens):
    made = tokens("create", "all", "--scope", "audit")
    assert "Created token all (scopes: audit; targets: all)." in made.stderr


def test_wrong_name_fails_with_one_line(tokens):
    assert tokens("create", "ci", "--scope", "read").returncode == 0
    assert_one_line_of_error(
        tokens("create", "ci", "--scope", "read"), "a token named 'ci' already exists"
    )
    assert_one_line_of_error(tokens("create", "No Name", "--scope", "read"), "name is 'No Name'")
    assert_one_line_of_error(tokens("revoke", "nobody"), "no token is named 'nobody'")


def test_missing_or_unknown_scope_is_a_usage_error(tokens, database):
    for arguments in (("create", "ci"), ("create", "ci", "--scope", "everything")):
        result = tokens(*arguments)
        assert result.returncode == 2
        assert "--scope" in result.stderr
    assert active(database) == {}


def test_login_without_the_owner_role_is_told_which_grant_it_needs(tokens):
    result = tokens("create", "ci", "--scope", "read", role="operator")
    assert_one_line_of_error(result, "GRANT leasehold_owner TO the login")
    assert result.stdout == "", "a token that was not made must not be shown"

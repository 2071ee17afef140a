"""`leasehold intents`, run as a process by an operator."""

from __future__ import annotations

import getpass
import re
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner

from leasehold.cli.main import app
from tests.support import cli_process
from tests.support.cli_process import assert_one_line_of_error
from tests.support.cli_process import forked_leasehold as leasehold

ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture
def intents(database):
    return lambda *arguments: leasehold("intents", *arguments, url=database.url_as("operator"))


@pytest.fixture
def held(outbox):
    """An intent whose call has an unknown outcome, held for a person."""
    outbox.publish("letters", guarantee="blind")
    [intent_id] = outbox.enqueue(1, "letters")
    claims = outbox.claim(targets=["letters"])
    outbox.begin(claims)
    outbox.complete(claims, "IN_DOUBT", detail="[red]the line went dead")
    assert outbox.status(intent_id) == "held"
    return intent_id


@pytest.fixture
def rejected(outbox):
    outbox.publish("sms")
    [intent_id] = outbox.enqueue(1, idempotency_key="k")
    outbox.complete(outbox.claim(), "FAILED", reason="no such number")
    return intent_id


def found(result):
    assert result.returncode == 0, result.stderr
    table = [line for line in result.stdout.splitlines() if line.startswith("│")]
    return [UUID(ID.findall(line)[0]) for line in table if ID.search(line)]


def test_show_prints_status_and_ledger_without_interpreting_markup(intents, held):
    result = intents("show", held)
    assert result.returncode == 0, result.stderr
    for part in (str(held), "held", "letters", "IN_DOUBT", "worker-1", "[red]the line went dead"):
        assert part in result.stdout


def test_show_of_an_unknown_intent_fails_with_one_line(intents):
    assert_one_line_of_error(intents("show", uuid4()), "no intent has the id")


def test_malformed_id_is_a_usage_error(intents):
    result = intents("show", "order-4711")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_list_is_newest_first_and_prints_the_next_page(intents, outbox):
    outbox.publish("sms")
    ids = sorted(outbox.enqueue(5))  # ids of the same millisecond have a random order
    first = intents("list", "--limit", 3)
    assert found(first) == ids[:1:-1]
    assert f"--before {ids[2]}" in first.stdout
    assert found(intents("list", "--limit", 3, "--before", ids[2])) == ids[1::-1]


def test_list_filters_by_stream_and_time(intents, outbox, database):
    outbox.publish("sms")
    [first] = outbox.enqueue(1, stream="a")
    [second] = outbox.enqueue(1, stream="b")
    [row] = database.execute(
        "SELECT created_at + interval '1 minute' AS after FROM leasehold.intents LIMIT 1"
    )
    after = row["after"].isoformat()
    assert found(intents("list", "--stream", "a")) == [first]
    assert found(intents("list", "--until", after, "--stream", "b")) == [second]
    assert found(intents("list", "--since", after)) == []
    assert set(found(intents("list", "--since", "15m"))) == {first, second}
    assert_one_line_of_error(intents("list", "--since", "2030-01-31T12:00:00"), "time zone")


@pytest.mark.parametrize("status", ["held", "rejected", "pending"])
def test_list_filters_by_status_and_target(intents, outbox, held, rejected, status):
    [pending] = outbox.enqueue(1)
    expected = {"held": held, "rejected": rejected, "pending": pending}
    assert found(intents("list", "--status", status)) == [expected[status]]
    assert found(intents("list", "--target", "letters")) == [held]
    target = "letters" if status == "held" else "sms"
    assert found(intents("list", "--status", status, "--target", target)) == [expected[status]]
    other = "sms" if status == "held" else "letters"
    assert found(intents("list", "--status", status, "--target", other)) == []


def test_rare_intent_is_found_behind_more_than_the_database_searches_at_once(
    intents, outbox, rejected
):
    for _ in range(11):  # the database looks at 10,000 finished intents per call
        outbox.enqueue(1000)
    result = intents("list", "--status", "rejected")
    assert found(result) == [rejected]
    assert "--before" not in result.stdout
    result = intents("list", "--status", "exhausted")
    assert result.stdout == "No intents found.\n"


def test_search_that_ends_early_does_not_say_that_there_are_none(
    database, outbox, rejected, monkeypatch
):
    for _ in range(11):
        outbox.enqueue(1000)
    monkeypatch.setattr("leasehold.cli.intents.SEARCH_SECONDS", 0)
    command = ["intents", "list", "--status", "rejected", "--database-url", database.url]
    printed = CliRunner().invoke(app, command).output
    assert "No intents found." not in printed
    assert "older intents were not looked at" in printed
    [before] = ID.findall(printed)
    printed = CliRunner().invoke(app, [*command, "--before", before]).output
    assert ID.findall(printed) == [str(rejected)]


def test_cancel_records_the_operator_and_the_note(intents, outbox):
    outbox.publish("sms")
    [intent_id] = outbox.enqueue()
    result = intents("cancel", intent_id, "--note", "sent by hand")
    assert (result.returncode, result.stdout) == (0, f"{intent_id}: cancelled\n")
    [row] = outbox.ledger(intent_id)
    assert (row["state"], row["holder"], row["detail"]) == (
        "CANCELLED",
        getpass.getuser(),
        "sent by hand",
    )


def test_waiting_intent_is_made_due_and_a_doubtful_one_is_not(intents, outbox, held):
    outbox.publish()
    [intent_id] = outbox.enqueue(1)
    outbox.complete(outbox.claim(), "RETRYABLE", retry_after_seconds=3600)
    result = intents("retry-now", intent_id, "--note", "it is up again")
    assert (result.returncode, result.stdout) == (0, f"{intent_id}: due_now\n")
    refusal = intents("retry-now", held, "--note", "it is up again")
    assert refusal.returncode == 1
    assert "held: It waits for a person. Resolve the intent instead." in refusal.stderr


def test_cancel_of_a_doubtful_intent_is_refused_with_advice(intents, held):
    result = intents("cancel", held, "--note", "changed my mind")
    assert (result.returncode, result.stdout) == (1, "")
    assert "in_doubt" in result.stderr
    assert "A call may have had its effect. Resolve the intent instead." in result.stderr


@pytest.mark.parametrize(
    ("resolution", "state", "status"),
    [
        ("dispatched", "DISPATCHED", "accepted"),
        ("failed", "FAILED", "rejected"),
        ("retry", "RETRYABLE", "pending"),
    ],
)
def test_resolve_ends_a_held_intent(intents, outbox, held, resolution, state, status):
    result = intents(
        "resolve", held, "--as", resolution, "--note", "asked by phone",
        "--reference", "L-1", "--operator", "ada",
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, f"{held}: resolved\n")
    row = outbox.ledger(held)[-1]
    assert (row["state"], row["holder"], row["detail"]) == (state, "ada", "asked by phone")
    assert outbox.status(held) == status


def test_second_resolution_is_refused(intents, held):
    assert intents("resolve", held, "--as", "dispatched", "--note", "n").returncode == 0
    result = intents("resolve", held, "--as", "failed", "--note", "n")
    assert result.returncode == 1
    assert "already_terminal" in result.stderr


def test_redrive_makes_a_new_intent_or_says_why_not(intents, outbox, rejected):
    [pending] = outbox.enqueue(1)
    result = intents("redrive", rejected, pending, uuid4(), "--note", "number corrected")
    assert result.returncode == 1
    printed = result.stdout
    assert re.search(rf"{rejected}: redriven, as {ID.pattern}", printed)
    assert f"{pending}: not_terminal: The intent is not finished yet." in printed
    assert "not_found: There is no intent with this id." in printed
    again = intents("redrive", rejected, "--note", "number corrected")
    assert "already_redriven" in again.stdout


@pytest.mark.parametrize("command", [("cancel",), ("resolve", "--as", "failed"), ("redrive",)])
def test_intervention_without_a_note_is_a_usage_error(intents, command):
    result = intents(*command, uuid4())
    assert result.returncode == 2
    assert "--note" in result.stderr


def test_readonly_login_is_told_which_grant_it_needs(database, held):
    result = leasehold("intents", "cancel", held, "--note", "n", url=database.url_as("readonly"))
    assert_one_line_of_error(result, "grant")
    assert leasehold("intents", "show", held, url=database.url_as("readonly")).returncode == 0


def test_fork_that_the_tests_use_answers_as_the_program_does(database, outbox):
    outbox.publish()
    [intent_id] = outbox.enqueue()
    for arguments in (
        ("intents", "show", intent_id),
        ("intents", "show", "nonsense"),
        ("intents", "list", "--status", "nonsense"),
        ("enqueue", "sms", "--payload", "-"),
    ):
        program, fork = [
            run(*arguments, url=database.url_as("readonly"), stdin="{")
            for run in (cli_process.leasehold, leasehold)
        ]
        assert (fork.returncode, fork.stdout, fork.stderr) == (
            program.returncode,
            program.stdout,
            program.stderr,
        )

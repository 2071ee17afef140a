"""`leasehold enqueue`, run as a process."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import UUID

import pytest

from tests.support.cli_process import assert_one_line_of_error
from tests.support.cli_process import forked_leasehold as leasehold

GATEWAY = {"kind": "http", "url": "https://example.org"}


@pytest.fixture(autouse=True)
def published(outbox):
    outbox.publish("sms", gateway=GATEWAY)
    outbox.publish("letters", gateway=GATEWAY)


@pytest.fixture
def enqueue(database):
    return lambda *arguments, stdin="": leasehold(
        "enqueue", *arguments, url=database.url_as("ingest"), stdin=stdin
    )


def lines(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


def intents(database):
    return database.execute(
        "SELECT i.*, p.priority, p.due_at FROM leasehold.intents i"
        "  LEFT JOIN leasehold.outbox_pending p USING (intent_id) ORDER BY i.intent_id"
    )


def test_payload_option_enqueues_one_intent_and_prints_its_id(enqueue, database):
    result = enqueue("sms", "--payload", '{"to": "+41"}', "--key", "k", "--priority", 2)
    assert (result.returncode, result.stderr) == (0, "")
    [row] = intents(database)
    assert UUID(result.stdout.strip()) == row["intent_id"]
    assert (row["payload"], row["idempotency_key"], row["priority"]) == ({"to": "+41"}, "k", 2)


def test_repeated_command_prints_the_same_id_and_a_note(enqueue):
    first = enqueue("sms", "--payload", "1", "--key", "k")
    again = enqueue("sms", "--payload", "1", "--key", "k")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert "Already enqueued" in again.stderr


def test_other_payload_under_the_same_key_fails_with_one_line(enqueue):
    first = enqueue("sms", "--payload", "1", "--key", "k")
    result = enqueue("sms", "--payload", "2", "--key", "k")
    assert_one_line_of_error(result, "'k'", first.stdout.strip(), "use a new key")


def test_key_of_all_targets_conflicts_with_the_intent_of_another_target(enqueue, outbox):
    assert enqueue("sms", "--payload", "1", "--key", "k").returncode == 0
    widened = ("--payload", "1", "--key", "k", "--key-scope", "all")
    first = enqueue("letters", *widened)
    assert first.returncode == 0
    assert enqueue("letters", "--payload", "1", "--key", "k").stdout == first.stdout
    outbox.publish("mail", gateway=GATEWAY)
    line = {"target": "mail", "payload": 1, "idempotency_key": "k", "key_scope": "all"}
    refused = enqueue("sms", stdin=lines(line))
    assert refused.returncode == 1
    assert "line 1: conflict" in refused.stderr


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        ({"gateway": None}, "its contract names no gateway"),
        ({"two_phase": True}, "two_phase"),
    ],
)
def test_intent_that_nobody_will_submit_is_accepted_with_a_warning(enqueue, outbox, terms, reason):
    outbox.publish("idle", **terms)
    one = enqueue("idle", "--payload", "1")
    assert one.returncode == 0
    assert UUID(one.stdout.strip())
    many = enqueue("idle", stdin=lines({"payload": 1}, {"payload": 2}))
    assert many.returncode == 0
    for result in (one, many):
        [warning] = [line for line in result.stderr.splitlines() if "Warning" in line]
        assert warning.startswith("Warning: no instance of this release submits intents of idle: ")
        assert reason in warning


def test_payload_dash_reads_stdin(enqueue, database):
    result = enqueue("sms", "--payload", "-", stdin='{"to": "+41"}\n')
    assert result.returncode == 0, result.stderr
    assert [row["payload"] for row in intents(database)] == [{"to": "+41"}]


@pytest.mark.parametrize(
    ("option", "column", "after"),
    [
        (("--delay", "90"), "due_at", timedelta(seconds=90)),
        (("--delay", "1.5h"), "due_at", timedelta(hours=1.5)),
        (("--deadline", "2d"), "deadline_at", timedelta(days=2)),
    ],
)
def test_durations_count_from_now_on_the_database_clock(enqueue, database, option, column, after):
    assert enqueue("sms", "--payload", "1", *option).returncode == 0
    [row] = intents(database)
    assert row[column] - row["created_at"] == after


def test_time_without_a_time_zone_is_refused(enqueue, database):
    assert enqueue("sms", "--payload", "1", "--delay", "2031-01-31T12:00:00+01:00").returncode == 0
    [row] = intents(database)
    assert row["due_at"].isoformat().startswith("2031-01-31")
    assert_one_line_of_error(
        enqueue("sms", "--payload", "1", "--delay", "2031-01-31T12:00:00"), "time zone"
    )


def test_whole_file_is_enqueued_and_counted(enqueue, database, tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text(lines(*[{"payload": {"n": n}, "idempotency_key": str(n)} for n in range(2500)]))
    result = enqueue("sms", "--file", file)
    assert (result.returncode, result.stdout) == (0, "2500 lines: 2500 accepted\n")
    again = enqueue("sms", "--file", file)
    assert (again.returncode, again.stdout) == (0, "2500 lines: 2500 duplicate\n")
    assert len(intents(database)) == 2500


def test_lines_from_stdin_override_the_options(enqueue, database):
    later = {"body": "AP8=", "content_type": "application/x", "due_at": "2031-01-01T00:00:00Z"}
    given = lines({"payload": 1}, {"payload": 2, "target": "letters", "delay_seconds": 0})
    result = enqueue("sms", "--delay", "1h", stdin=f"{given}\n{lines(later)}")
    assert (result.returncode, result.stdout) == (0, "3 lines: 3 accepted\n")
    first, second, third = sorted(intents(database), key=lambda row: str(row["payload"]))
    assert first["due_at"] - first["created_at"] == timedelta(hours=1)
    assert (second["target"], second["due_at"]) == ("letters", second["created_at"])
    assert (bytes(third["body"]), third["due_at"].year) == (b"\x00\xff", 2031)


def test_bad_lines_are_reported_and_good_ones_enqueued(enqueue, database):
    bad = [
        "not json\n",
        lines({"to": "+41"}),
        lines([1]),
        lines({"payload": {"x": "\0"}}),
        lines({"payload": 1, "priority": "high"}),
        lines({"payload": 1, "priority": 7}),
        lines({"payload": 1, "due_at": "2031-01-01T00:00:00"}),
        '{"payload": {"amount": 1e999}}\n',
        '{"payload": NaN}\n',
        lines({"payload": 1, "target": "nowhere"}),
        lines({"payload": 2, "idempotency_key": "k"}),
    ]
    good = lines({"payload": 1, "idempotency_key": "k"})
    result = enqueue("sms", stdin=good + "".join(bad) + lines({"payload": 3}))
    assert result.returncode == 1
    assert result.stdout == "13 lines: 2 accepted, 1 conflict, 9 invalid, 1 unknown_target\n"
    problems = result.stderr.splitlines()
    assert [line.split(":")[0] for line in problems] == [f"line {n}" for n in range(2, 13)]
    parts = '"payload"', "object", "store", "priority", "priority", "due_at", "out of range", "NaN"
    for part, line in zip(
        ("not valid JSON", *parts, "nowhere", "use a new key"), problems, strict=True
    ):
        assert part in line
    assert len(intents(database)) == 2


def test_numbers_are_stored_with_every_digit(enqueue, database):
    exact = '{"a": 1.10, "b": 0.12345678901234567890}'
    stdin = f'{{"payload": {exact}, "metadata": {{"c": 2.50}}, "delay_seconds": 0.5}}\n'
    assert enqueue("sms", stdin=stdin).stdout == "1 lines: 1 accepted\n"
    assert enqueue("sms", "--payload", exact).returncode == 0
    rows = database.execute("SELECT payload::text, metadata::text FROM leasehold.intents")
    assert {row["payload"] for row in rows} == {exact}
    assert {row["metadata"] for row in rows} == {'{"c": 2.50}', None}


def test_only_the_first_20_problems_are_listed(enqueue):
    result = enqueue("sms", stdin="x\n" * 30)
    assert result.stdout == "30 lines: 30 invalid\n"
    assert len(result.stderr.splitlines()) == 21
    assert result.stderr.splitlines()[-1] == "and 10 more"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--payload", "1", "--file", "x"), "cannot be used together"),
        (("--payload", "{"), "not valid JSON"),
        (("--payload", "null"), "null"),
        (("--payload", "1", "--delay", "soon"), "--delay 'soon' is not a duration"),
        (("--file", "/nowhere/at/all"), "cannot read /nowhere/at/all"),
        (("--key", "k"), "--key needs --payload"),
    ],
)
def test_invalid_options_fail_with_one_line(enqueue, arguments, message):
    assert_one_line_of_error(enqueue("sms", *arguments), message)


def test_login_without_the_role_is_told_which_grant_it_needs(database):
    result = leasehold("enqueue", "sms", "--payload", "1", url=database.url_as("readonly"))
    assert_one_line_of_error(result, "grant")

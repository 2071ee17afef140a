"""`leasehold enqueue`, `intents` and `streams` over the HTTP API, as separate processes."""

from __future__ import annotations

import asyncio
import json
import os
from uuid import UUID, uuid4

import pytest

from tests.support.api import make_token
from tests.support.cli_process import assert_one_line_of_error, run_fork


@pytest.fixture
async def token(api):
    token = make_token(api.database, "ingest", "read", "operate", name="night-shift")
    await api.service.tokens.step()
    return token


@pytest.fixture
def leasehold(api, token):
    """Run a command whose environment names only the API."""

    async def run(*arguments, stdin="", **environment):
        given = {"LEASEHOLD_API_URL": api.url, "LEASEHOLD_API_TOKEN": token} | environment
        clean = {name: value for name, value in os.environ.items() if "LEASEHOLD" not in name}
        given = clean | {name: value for name, value in given.items() if value is not None}
        return await asyncio.to_thread(run_fork, arguments, given, stdin)

    return run


async def test_repeated_enqueue_with_the_same_key_returns_the_same_intent(leasehold, outbox):
    first = await leasehold("enqueue", "sms", "--payload", '{"to": "+41"}', "--key", "k")
    assert (first.returncode, first.stderr) == (0, "")
    assert outbox.status(UUID(first.stdout.strip())) == "pending"
    again = await leasehold("enqueue", "sms", "--payload", '{"to": "+41"}', "--key", "k")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert "enqueued before" in again.stderr
    other = await leasehold("enqueue", "sms", "--payload", "2", "--key", "k")
    assert_one_line_of_error(other, "another payload", "Use a new key")
    bob = ("--payload", '{"to": "+41"}', "--key", "k", "--stream", "bob")
    assert_one_line_of_error(await leasehold("enqueue", "sms", *bob), "another stream")


async def test_every_line_of_a_file_gets_a_verdict(leasehold, api):
    given = [{"payload": n, "idempotency_key": str(n)} for n in range(1100)]
    lines = [*given, {"payload": 1, "target": "nowhere"}, {"payload": 9, "idempotency_key": "1"}]
    stdin = "".join(f"{json.dumps(line)}\n" for line in lines) + "not json\n"
    result = await leasehold("enqueue", "sms", stdin=stdin)
    assert result.returncode == 1
    assert result.stdout == "1103 lines: 1100 accepted, 1 conflict, 1 invalid, 1 unknown_target\n"
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [
        *("line 1101", "line 1102", "line 1103"),
    ]
    assert api.intents() == 1100


async def test_list_that_is_longer_than_a_page_of_the_api_leaves_none_out(leasehold, outbox):
    ids = [str(one) for one in outbox.enqueue(450)]
    listed = await leasehold("intents", "list", "--limit", 430)
    assert [one for one in ids if one in listed.stdout] == ids[20:]
    assert f"--before {ids[20]}" in listed.stdout
    everything = await leasehold("intents", "list", "--limit", 1000)
    assert [everything.stdout.count(one) for one in ids] == [1] * 450
    assert "--before" not in everything.stdout


async def test_intents_are_shown_listed_and_cancelled_in_the_name_of_the_token(leasehold, outbox):
    ids = outbox.enqueue(3)
    shown = await leasehold("intents", "show", ids[0])
    assert shown.returncode == 0, shown.stderr
    assert "pending" in shown.stdout
    listed = await leasehold("intents", "list", "--limit", 2)
    assert [str(one) in listed.stdout for one in ids] == [False, True, True]
    assert f"--before {ids[1]}" in listed.stdout
    rest = await leasehold("intents", "list", "--before", ids[1])
    assert str(ids[0]) in rest.stdout
    assert "--before" not in rest.stdout
    done = await leasehold("intents", "cancel", ids[0], "--note", "a mistake")
    assert (done.returncode, done.stdout) == (0, f"{ids[0]}: cancelled\n")
    [row] = outbox.ledger(ids[0])
    assert "night-shift" in row["holder"]
    again = await leasehold("intents", "cancel", ids[0], "--note", "a mistake")
    assert_one_line_of_error(again, "already_terminal")
    redriven = await leasehold("intents", "redrive", ids[0], "--note", "it was none")
    assert f"{ids[0]}: redriven, as " in redriven.stdout


async def test_deferred_intent_is_shown_and_made_due(leasehold, outbox):
    [intent_id] = outbox.enqueue(1)
    outbox.complete(outbox.claim(), "DEFERRED", reason="access_refused", retry_after_seconds=600)
    shown = await leasehold("intents", "show", intent_id)
    assert "access_refused" in shown.stdout
    assert "deferred since" in shown.stdout
    done = await leasehold("intents", "retry-now", intent_id, "--note", "granted")
    assert (done.returncode, done.stdout) == (0, f"{intent_id}: due_now\n")
    again = await leasehold("intents", "retry-now", intent_id, "--note", "granted")
    assert_one_line_of_error(again, "already_due")


async def test_list_finds_by_stream_and_by_time(leasehold, outbox):
    [first] = outbox.enqueue(1, stream="a")
    [second] = outbox.enqueue(1, stream="b")

    async def found(*arguments):
        result = await leasehold("intents", "list", *arguments)
        assert result.returncode == 0, result.stderr
        return [one for one in (first, second) if str(one) in result.stdout]

    assert await found("--stream", "b") == [second]
    assert await found("--since", "1h") == [first, second]
    assert await found("--until", "1h") == []


async def test_in_doubt_intent_is_resolved(leasehold, outbox):
    outbox.publish("letters", guarantee="blind")
    [held] = outbox.enqueue(1, "letters")
    claims = outbox.claim(targets=["letters"])
    outbox.begin(claims)
    outbox.complete(claims, "IN_DOUBT")
    done = await leasehold("intents", "resolve", held, "--as", "dispatched", "--note", "asked")
    assert (done.returncode, done.stdout) == (0, f"{held}: resolved\n")
    assert outbox.status(held) == "accepted"


@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        (("show", uuid4()), {}, "no intent with this id"),
        (("show", uuid4()), {"LEASEHOLD_API_TOKEN": "lh_of-nobody"}, "unknown or revoked"),
        (("show", uuid4()), {"LEASEHOLD_API_TOKEN": None}, "set LEASEHOLD_API_TOKEN"),
        (("show", uuid4()), {"LEASEHOLD_API_TOKEN": ""}, "set LEASEHOLD_API_TOKEN"),
        (("show", uuid4()), {"LEASEHOLD_API_URL": "nowhere"}, "http://"),
        (("show", uuid4()), {"LEASEHOLD_API_URL": ""}, "no database"),
        (("list", "--since", "yesterday"), {}, "--since 'yesterday' is not a duration"),
        (("list", "--until", "999999999999d"), {}, "--until"),
        (
            ("show", uuid4(), "--api-url", "http://x", "--database-url", "y"),
            {},
            "cannot be used together",
        ),
        (("cancel", uuid4(), "--note", "x", "--operator", "me"), {}, "the name of the token"),
    ],
)
async def test_error_is_one_line(leasehold, arguments, environment, told):
    result = await leasehold("intents", *arguments, **environment)
    assert_one_line_of_error(result, told)
    assert "lh_of-nobody" not in result.stderr


async def test_streams_are_listed_shown_and_skipped_in_the_name_of_the_token(leasehold, outbox):
    heads = {}
    for target in ("mail", "pay"):
        outbox.publish(target, scope="stream")
        [heads[target]] = outbox.enqueue(target=target, stream="a/b")
        paused = await leasehold("streams", "pause", target, "a/b", "--note", "audit")
        assert (paused.returncode, paused.stdout) == (0, f"{target}/a/b: paused\n")
    listed = await leasehold("streams", "list")
    assert [target in listed.stdout for target in heads] == [True, True]
    some = await leasehold("streams", "list", "--target", "pay", "--target", "mail", "--limit", 1)
    assert ["mail" in some.stdout, "pay" in some.stdout] == [True, False]
    assert "There may be more than 1" in some.stderr
    shown = await leasehold("streams", "show", "pay", "a/b")
    assert "night-shift" in shown.stdout
    assert (await leasehold("streams", "show", "pay", "a")).returncode == 1
    skip = ("streams", "skip", "pay", "a/b", heads["pay"], "--note", "poison")
    skipped = await leasehold(*skip)
    assert skipped.stdout == "pay/a/b: skipped_paused\n"
    assert "still paused" in skipped.stderr
    assert outbox.ledger(heads["pay"])[-1]["holder"] == "night-shift"
    again = await leasehold(*skip)
    assert_one_line_of_error(again, "already_terminal")
    resumed = await leasehold("streams", "resume", "pay", "a/b", "--note", "go on")
    assert resumed.stdout == "pay/a/b: resumed\n"
    named = await leasehold("streams", "resume", "pay", "a/b", "--note", "x", "--operator", "me")
    assert_one_line_of_error(named, "the name of the token")


async def test_command_line_overrides_the_environment(leasehold, api, outbox, database):
    [intent_id] = outbox.enqueue(1)
    nowhere = {"LEASEHOLD_API_URL": "http://127.0.0.1:9"}
    asked = ("intents", "show", intent_id)
    by_api = await leasehold(*asked, "--api-url", api.url, **nowhere)
    assert by_api.returncode == 0, by_api.stderr
    by_database = await leasehold(*asked, "--database-url", database.url_as("operator"), **nowhere)
    assert by_database.returncode == 0, by_database.stderr


@pytest.mark.parametrize("has_api", [True, False])
async def test_streams_as_json_have_the_members_that_the_api_answers_with(
    leasehold, api, outbox, has_api
):
    outbox.publish("orders", scope="stream")
    outbox.enqueue(2, "orders", stream="zo\u00eb")
    where = {} if has_api else {"LEASEHOLD_API_URL": None, "LEASEHOLD_API_TOKEN": None}
    if not has_api:
        where |= {"LEASEHOLD_DATABASE_URL": api.database.url_as("operator")}
    assert (await leasehold("streams", "list", "--json", **where)).stdout == "[]\n"
    for operator, seconds in (("ann", None), ("bob", 3600)):
        outbox.database.execute(
            "SELECT leasehold.pause_stream('orders', 'zo\u00eb', %s, 'audit', %s)",
            [operator, seconds],
        )
    listed = await leasehold("streams", "list", "--json", **where)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert json.loads(listed.stdout) == (await api.get("/v1/streams")).json()["streams"]
    shown = await leasehold("streams", "show", "orders", "zo\u00eb", "--json", **where)
    answer = await api.get("/v1/stream?target=orders&stream=zo%C3%AB")
    assert json.loads(shown.stdout) == answer.json()
    assert answer.json()["pauses"][1]["paused_until"].endswith("Z")
    missing = await leasehold("streams", "show", "orders", "nosuch", "--json", **where)
    assert (missing.returncode, missing.stdout) == (1, "")

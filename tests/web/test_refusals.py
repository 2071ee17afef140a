"""A refusal says what is wrong with a value, and never repeats the value."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from leasehold.domain.intent import NewIntent
from tests.support.api import problem

SECRET = "hush4711"
JSON = {"content-type": "application/json"}
ZERO = "00000000-0000-0000-0000-000000000000"


def intent(members):
    return "POST", "/v1/intents", "{" + f'"target": "sms", {members}' + "}"


def batch(members):
    method, path, text = intent(members)
    return method, f"{path}:batch", f'{{"intents": [{text}]}}'


def redrive(members):
    text = f'{{"target": "sms", "status": "rejected", "note": "n", {members}}}'
    return "POST", "/v1/redrive", text


# The secret as the value of everything that can be sent.
REFUSED = {
    "a name twice in the payload": intent(f'"payload": {{"{SECRET}": 1, "{SECRET}": 2}}'),
    "a name twice deep in the payload": intent(
        f'"payload": [[{{"a": {{"{SECRET}": 1, "{SECRET}": 2}}}}]]'
    ),
    "a name twice in a batch": batch(f'"payload": {{"{SECRET}": 1, "{SECRET}": 2}}'),
    "a name twice in a redrive": redrive(f'"until": {{"{SECRET}": 1, "{SECRET}": 2}}'),
    "text without its end": intent(f'"payload": "{SECRET}'),
    "a wrong constant": intent(f'"payload": ["{SECRET}", NaN]'),
    "an unknown member": intent(f'"payload": 1, "colour": "{SECRET}"'),
    "a time": intent(f'"payload": 1, "due_at": "{SECRET}"'),
    "a number": intent(f'"payload": 1, "delay_seconds": "{SECRET}"'),
    "a priority": intent(f'"payload": 1, "priority": "{SECRET}"'),
    "a body": intent(f'"body": "{SECRET}!", "content_type": "a/b"'),
    "a content type": intent(f'"payload": 1, "content_type": "{SECRET}"'),
    "metadata": intent(f'"payload": 1, "metadata": "{SECRET}"'),
    "a key": intent(f'"payload": 1, "idempotency_key": "{SECRET}\\n"'),
    "a stream in a batch": batch(f'"payload": 1, "stream": "{SECRET}\\n"'),
    "an intent of a redrive": redrive(f'"before": "{SECRET}"'),
    "a limit of a redrive": redrive(f'"limit": "{SECRET}"'),
    "a confirmation": redrive(f'"dry_run": false, "confirmation": "{SECRET}"'),
    "a resolution": (
        "POST",
        f"/v1/intents/{ZERO}/resolve",
        f'{{"resolution": "{SECRET}", "note": "n"}}',
    ),
    "an intent": ("GET", f"/v1/intents/{SECRET}", ""),
    "a time to wait": ("GET", f"/v1/intents/{ZERO}?wait_seconds={SECRET}", ""),
    "a limit": ("GET", f"/v1/intents?limit={SECRET}", ""),
    "a status": ("GET", f"/v1/intents?status={SECRET}", ""),
    "a start": ("GET", f"/v1/intents?since={SECRET}", ""),
    "a page": ("GET", f"/v1/intents?before={SECRET}", ""),
    "an unknown parameter": ("GET", f"/v1/intents?colour={SECRET}", ""),
    "a stream": ("GET", f"/v1/intents?stream={SECRET}%00", ""),
    "a prefix": ("GET", f"/v1/leases?prefix={SECRET}%0a", ""),
    "a cursor": ("GET", f"/v1/events?last_event_id={SECRET}", ""),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_refusal_never_repeats_a_value_that_was_sent(api, what):
    method, path, text = REFUSED[what]
    response = await api.request(method, path, content=text.encode(), headers=JSON)
    assert SECRET not in response.text, response.text
    if path.endswith(":batch") and response.status_code == 200:
        assert response.json()["results"][0]["verdict"] == "invalid"
    else:
        assert 400 <= response.status_code < 500, response.text
    assert api.intents() == 0


IDS = [
    f"/v1/intents/{SECRET}",
    f"/v1/intents?before={SECRET}",
    "/v1/intents?before=0123",
]


@pytest.mark.parametrize("path", IDS)
async def test_refusal_of_an_id_repeats_no_character_of_it(api, path):
    [fault] = problem(await api.get(path), 422, "invalid")["problems"]
    assert fault["message"] == "must be a UUID"


CURSORS = [f"999999999999999999-{ZERO}-1", f"1-{ZERO}-999999998"]


@pytest.mark.parametrize("cursor", CURSORS)
async def test_cursor_of_another_database_is_refused_by_name_without_its_numbers(api, cursor):
    headers = {"Last-Event-ID": cursor}
    document = problem(await api.get("/v1/events", headers=headers), 422, "invalid")
    [fault] = document["problems"]
    assert fault["place"] == "last_event_id"
    assert "without" in fault["message"]
    assert "99999999" not in document["detail"]


@pytest.mark.parametrize("offset", ["-20:09", "+23:59"])
async def test_time_of_any_zone_that_the_schema_permits_is_accepted(api, database, offset):
    moment = f"2853-12-08T01:54:19.4{offset}"
    sent = {"target": "sms", "payload": 1, "deadline_at": moment}
    accepted = await api.post("/v1/intents", sent)
    assert accepted.status_code == 201, accepted.text
    [row] = database.execute("SELECT deadline_at FROM leasehold.intents")
    assert row["deadline_at"] == datetime.fromisoformat(moment)
    assert (await api.get("/v1/intents", params={"until": moment})).status_code == 200


@pytest.mark.parametrize("members", [{"priority": 2.0}, {"body": None, "content_type": None}])
async def test_whole_number_and_null_are_accepted_as_the_schema_says(api, members):
    accepted = await api.post("/v1/intents", {"target": "sms", "payload": 1} | members)
    assert accepted.status_code == 201, accepted.text


async def test_value_that_only_the_database_refuses_is_not_repeated(api, caplog):
    caplog.set_level("INFO")
    zone = timezone(timedelta(hours=-20, minutes=-9))
    odd = NewIntent(target="sms", payload=1, deadline_at=datetime(2853, 12, 8, tzinfo=zone))
    good = NewIntent(target="sms", payload=1)
    first, second = await api.service.group_commit.enqueue_many([odd, good], size=2)
    assert (first.verdict, second.verdict) == ("invalid", "accepted")
    assert "2853" not in first.problem
    assert "batch_split" in caplog.text
    assert "2853" not in caplog.text


async def test_member_that_is_sent_twice_is_named_if_it_is_one_of_ours(api):
    text = b'{"target": "sms", "payload": 1, "stream": "a", "stream": "b"}'
    response = await api.request("POST", "/v1/intents", content=text, headers=JSON)
    assert "stream" in problem(response, 400, "invalid_json")["detail"]


@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59-12:00", "9999-12-31T12:00:00Z"])
async def test_time_that_nobody_could_read_back_is_refused_before_it_is_stored(api, moment):
    sent = {"target": "sms", "payload": 1, "deadline_at": moment}
    problem(await api.post("/v1/intents", sent), 422, "invalid")
    assert api.intents() == 0
    problem(await api.get("/v1/intents", params={"until": moment}), 422, "invalid")

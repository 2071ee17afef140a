"""Enqueue over HTTP: a response means a commit, and a repeated request gets the same response."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest

from leasehold.domain.errors import AccessDenied, DatabaseUnavailable, IntakeFull
from tests.support.api import problem
from tests.support.engine import until

SMS = {"target": "sms", "payload": {"to": "+41"}}
JSON = {"content-type": "application/json"}
RAW = b'{"target": "sms", "payload": %s}'


async def test_intent_is_committed_before_the_response(api, outbox):
    response = await api.post("/v1/intents", SMS)
    assert response.status_code == 201
    answer = response.json()
    assert answer.keys() == {"intent_id", "target", "href"}
    assert response.headers["location"] == answer["href"] == f"/v1/intents/{answer['intent_id']}"
    assert outbox.status(answer["intent_id"]) == "pending"
    assert response.headers["server"] == "leasehold"


async def test_every_member_of_an_intent_reaches_the_database(api, database):
    sent = SMS | {
        "idempotency_key": "order-1",
        "stream": "customer-7",
        "priority": 0,
        "due_at": "2030-01-31T12:00:00+01:00",
        "deadline_at": "2030-02-01T12:00:00Z",
        "metadata": {"by": "test", "amount": 1.5},
    }
    response = await api.post(
        "/v1/intents", sent, headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    )
    assert response.status_code == 201, response.text
    [row] = database.execute(
        "SELECT i.*, p.priority, p.due_at FROM leasehold.intents i JOIN leasehold.outbox_pending p"
        " USING (intent_id)"
    )
    assert row["idempotency_key"] == "order-1"
    assert row["stream"] == "customer-7"
    assert row["priority"] == 0
    assert row["due_at"].isoformat() == "2030-01-31T11:00:00+00:00"
    assert row["deadline_at"].isoformat() == "2030-02-01T12:00:00+00:00"
    assert row["metadata"] == {"by": "test", "amount": 1.5}
    assert row["trace_context"].startswith(f"00-{'a' * 32}-")


async def test_intent_can_have_bytes_instead_of_a_payload(api, database):
    sent = {"target": "sms", "body": "AP8=", "content_type": "application/octet-stream"}
    assert (await api.post("/v1/intents", sent)).status_code == 201
    [row] = database.execute("SELECT body, content_type FROM leasehold.intents")
    assert bytes(row["body"]) == b"\x00\xff"


async def test_numbers_reach_the_database_to_the_last_digit(api, database):
    body = b'{"target": "sms", "payload": {"amount": 0.12345678901234567890}}'
    headers = {"content-type": "application/json"}
    response = await api.request("POST", "/v1/intents", content=body, headers=headers)
    assert response.status_code == 201
    [row] = database.execute("SELECT payload ->> 'amount' AS amount FROM leasehold.intents")
    assert row["amount"] == "0.12345678901234567890"


@pytest.mark.parametrize("by_header", [True, False])
async def test_repeated_request_gets_the_first_response(api, by_header):
    headers = {"Idempotency-Key": "order-1"} if by_header else {}
    sent = SMS if by_header else SMS | {"idempotency_key": "order-1"}
    first = await api.post("/v1/intents", sent, headers=headers)
    again = await api.post("/v1/intents", sent, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.content == again.content
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert api.intents() == 1


async def test_200_concurrent_requests_with_one_key_are_one_row_and_one_201(api):
    client = await api.client("ingest")
    responses = await asyncio.gather(
        *[
            client.post("/v1/intents", json=SMS, headers={"Idempotency-Key": "k"})
            for _ in range(200)
        ]
    )
    assert sorted(one.status_code for one in responses) == [200] * 199 + [201]
    assert len({one.content for one in responses}) == 1
    assert api.intents() == 1


async def test_other_payload_with_the_same_key_is_a_conflict(api, database):
    first = (await api.post("/v1/intents", SMS | {"idempotency_key": "k"})).json()
    other = SMS | {"idempotency_key": "k", "payload": {"to": "+49"}}
    document = problem(await api.post("/v1/intents", other), 409, "idempotency_conflict")
    assert document["differs"] == "payload"
    assert document["intent_id"] == first["intent_id"]
    [row] = database.execute("SELECT payload FROM leasehold.intents")
    assert row["payload"] == SMS["payload"]


async def test_token_cannot_block_a_key_of_a_target_that_it_does_not_cover(api, outbox):
    outbox.publish("mail")
    mine = await api.client("ingest", targets=["sms"])
    theirs = await api.client("ingest", targets=["mail"])
    for client, target in ((mine, "sms"), (theirs, "mail"), (mine, "sms"), (theirs, "mail")):
        answer = await client.post(
            "/v1/intents", json=SMS | {"idempotency_key": "k", "target": target}
        )
        assert answer.status_code in {200, 201}, answer.text
    assert api.intents() == 2


@pytest.mark.parametrize("first_scope", ["target", "all"])
async def test_key_of_all_targets_needs_a_token_that_covers_them(api, outbox, first_scope):
    """The refusal is the same whether the key is taken elsewhere or not."""
    outbox.publish("mail")
    await api.post("/v1/intents", SMS | {"idempotency_key": "k", "key_scope": first_scope})
    client = await api.client("ingest", "read", targets=["mail"])
    details = set()
    for key in ("k", "free"):
        widened = {"target": "mail", "payload": 1, "idempotency_key": key, "key_scope": "all"}
        document = problem(await client.post("/v1/intents", json=widened), 403, "forbidden")
        del document["request_id"]
        details.add(json.dumps(document))
        batch = await client.post("/v1/intents:batch", json={"intents": [widened]})
        [verdict] = batch.json()["results"]
        assert (verdict["status"], verdict["verdict"]) == (403, "forbidden")
        assert "intent_id" not in verdict
        plain = {"target": "mail", "payload": 1, "idempotency_key": key}
        assert (await client.post("/v1/intents", json=plain)).status_code == 201
    assert len(details) == 1
    assert api.intents() == 3


async def test_key_of_all_targets_is_one_intent_whatever_its_target(api, outbox):
    outbox.publish("mail")
    widened = SMS | {"idempotency_key": "k", "key_scope": "all"}
    first = await api.post("/v1/intents", widened)
    again = await api.post("/v1/intents", widened)
    assert (first.status_code, again.status_code) == (201, 200)
    other = widened | {"target": "mail"}
    document = problem(await api.post("/v1/intents", other), 409, "idempotency_conflict")
    assert document["differs"] == "target"
    assert document["intent_id"] == first.json()["intent_id"]
    assert api.intents() == 1


async def test_conflict_names_everything_that_differs(api, outbox):
    outbox.publish("mail")
    bytes_sent = {"target": "sms", "body": "AP8=", "content_type": "text/plain"}
    for key, first in (("k", SMS), ("b", bytes_sent)):
        widened = {"idempotency_key": key, "key_scope": "all"}
        await api.post("/v1/intents", first | widened)
        same = first | widened | {"target": "mail"}
        document = problem(await api.post("/v1/intents", same), 409, "idempotency_conflict")
        assert document["differs"] == "target"
        other = widened | {"target": "mail", "payload": 1}
        document = problem(await api.post("/v1/intents", other), 409, "idempotency_conflict")
        assert document["differs"] == "target and payload"
        assert "target and payload" in document["detail"]


async def test_known_key_with_another_stream_is_a_conflict(api):
    alice = SMS | {"idempotency_key": "k", "stream": "alice"}
    first = await api.post("/v1/intents", alice)
    bob = alice | {"stream": "bob"}
    document = problem(await api.post("/v1/intents", bob), 409, "idempotency_conflict")
    assert document["differs"] == "stream"
    assert "with another stream" in document["detail"]
    batch = await api.post("/v1/intents:batch", {"intents": [bob, alice]})
    assert [one["verdict"] for one in batch.json()["results"]] == ["conflict", "duplicate"]
    assert "another stream" in batch.json()["results"][0]["problems"][0]["message"]
    assert document["intent_id"] == first.json()["intent_id"]
    assert api.intents() == 1


async def test_all_faults_of_a_body_are_listed_and_nothing_is_written(api):
    sent = {
        "target": 7,
        "priority": 9,
        "payload": {},
        "body": "!",
        "delay_seconds": -1,
        "due_at": "tomorrow",
        "deadline_seconds": "soon",
        "metadata": [1],
        "idempotency_key": "a\nb",
        "stream": "",
        "colour": "red",
    }
    document = problem(await api.post("/v1/intents", sent), 422, "invalid")
    places = [one["place"] for one in document["problems"]]
    assert set(places) == {*sent, "content_type"}
    assert all(one["message"] for one in document["problems"])
    assert api.intents() == 0


async def test_faults_of_header_query_and_body_are_listed_together(api):
    sent = {"target": 7, "payload": {}, "deadline_seconds": 0}
    headers = {"Idempotency-Key": "é".encode()}
    path = "/v1/intents?wait_seconds=x&colour=red"
    document = problem(await api.post(path, sent, headers=headers), 422, "invalid")
    places = {one["place"] for one in document["problems"]}
    assert places == {"Idempotency-Key", "wait_seconds", "colour", "target", "deadline_seconds"}


async def test_list_of_faults_is_bounded_and_counts_the_rest(api):
    unknown = {f"x{number}": 0 for number in range(50_000)}
    response = await api.post("/v1/intents", SMS | unknown | {"priority": 9})
    document = problem(response, 422, "invalid")
    assert len(document["problems"]) == 100
    assert document["problems_left_out"] == 50_001 - 100
    assert len(response.content) < 20_000
    response = await api.post("/v1/intents:batch", {"intents": [SMS | unknown, SMS]})
    bad, good = response.json()["results"]
    assert len(bad["problems"]) == 10
    assert bad["problems_left_out"] == 50_000 - 10
    assert good["verdict"] == "accepted"
    response = await api.post("/v1/redrive", {str(number): 0 for number in range(5000)})
    document = problem(response, 422, "invalid")
    assert len(document["problems"]) == 100


INVALID = [
    ({"payload": None}, "payload"),
    ({"content_type": "text/plain"}, "content_type"),
    ({"due_at": "2030-01-31T12:00:00"}, "due_at"),
    ({"due_at": 1893456000}, "due_at"),
    ({"due_at": "2030-01-31T12:00:00Z", "delay_seconds": 1}, "delay_seconds"),
    ({"deadline_at": "2030-01-31T12:00:00Z", "deadline_seconds": 1}, "deadline_seconds"),
    ({"deadline_at": "2000-01-31T12:00:00Z"}, "deadline_at"),
    ({"deadline_seconds": 0}, "deadline_seconds"),
    ({"deadline_seconds": 5, "delay_seconds": 6}, "deadline_seconds"),
    ({"deadline_at": "2030-01-31T12:00:00Z", "due_at": "2030-01-31T12:00:00Z"}, "deadline_at"),
    ({"due_at": "2300-01-31T12:00:00Z"}, "due_at"),
    ({"priority": "1"}, "priority"),
    ({"priority": True}, "priority"),
    ({"priority": 1.5}, "priority"),
    ({"metadata": {"x": "y" * 17_000}}, "metadata"),
    ({"trace_context": "00"}, "trace_context"),
    ({"key_scope": "tenant"}, "key_scope"),
    ({"key_scope": True}, "key_scope"),
]


async def test_fault_names_the_member_that_is_wrong(api):
    for change, place in INVALID:
        document = problem(await api.post("/v1/intents", SMS | change), 422, "invalid")
        assert [one["place"] for one in document["problems"]] == [place], change
    assert api.intents() == 0


async def test_key_in_header_and_body_must_be_the_same(api):
    headers = {"Idempotency-Key": "one"}
    sent = SMS | {"idempotency_key": "other"}
    document = problem(await api.post("/v1/intents", sent, headers=headers), 422, "invalid")
    assert document["problems"][0]["place"] == "idempotency_key"
    agreed = SMS | {"idempotency_key": "one"}
    assert (await api.post("/v1/intents", agreed, headers=headers)).status_code == 201


async def test_unknown_target_is_not_found(api):
    problem(await api.post("/v1/intents", SMS | {"target": "nowhere"}), 404, "unknown_target")


async def test_payload_whose_text_is_too_large_is_refused_with_its_size(api):
    # The first is found before the database is asked, the second by the database.
    sent = {
        "written out": (b"[" + b",".join([b"1e308"] * 65_000) + b"]", "at least 20020000 bytes"),
        "with spaces": (b"[" + b",".join([b"1"] * 400_000) + b"]", "has 1200000 bytes as text"),
    }
    for payload, told in sent.values():
        response = await api.request("POST", "/v1/intents", content=RAW % payload, headers=JSON)
        document = problem(response, 413, "too_large")
        assert told in document["detail"]
        assert document["size_bytes"] > document["limit_bytes"] == 1048576
        response = await api.request(
            "POST", "/v1/intents:batch", content=b'{"intents":[%s]}' % (RAW % payload), headers=JSON
        )
        [result] = response.json()["results"]
        assert (result["verdict"], result["status"]) == ("too_large", 413)
        assert told in result["problems"][0]["message"]
    assert api.intents() == 0


async def test_payload_whose_text_fits_is_accepted_however_it_is_written(api):
    fits = [
        b"[" + b",".join([b"1"] * 87_500) + b"]",  # 1 MB as jsonb
        b'"' + b"\\u4e2d" * 200_000 + b'"',  # 1.2 MB with its escapes
        b'"' + b"1e308," * 5_000 + b'"',  # looks like numbers
    ]
    for payload in fits:
        response = await api.request("POST", "/v1/intents", content=RAW % payload, headers=JSON)
        assert response.status_code == 201, response.text


async def test_body_over_the_limit_is_refused(api):
    fits = SMS | {"payload": "x" * (1024 * 1024 - 100)}
    assert (await api.post("/v1/intents", fits)).status_code == 201
    for size in (1024 * 1024 + 10, 3 * 1024 * 1024):
        over = SMS | {"payload": "x" * size}
        problem(await api.post("/v1/intents", over), 413, "too_large")
    assert api.intents() == 1


OTHER_KINDS = [
    {"content-type": "text/plain"},
    {"content-type": "application/json; charset=utf-16"},
    {"content-type": "application/x-www-form-urlencoded"},
    {"content-type": ""},
    {"content-type": "application/json", "content-encoding": "gzip"},
]


async def test_body_of_another_media_type_is_refused(api):
    for headers in OTHER_KINDS:
        content = json.dumps(SMS).encode()
        response = await api.request("POST", "/v1/intents", content=content, headers=headers)
        problem(response, 415, "unsupported_media_type")
    assert api.intents() == 0


async def test_token_that_may_not_read_waits_for_the_status_only(api, outbox):
    client = await api.client("ingest", "operate", "audit")
    sent = SMS | {"idempotency_key": "k"}
    waiting = asyncio.create_task(client.post("/v1/intents?wait_seconds=30", json=sent))
    claims = await until(outbox.claim)
    outbox.complete(claims, reference="ref-1")
    response = await waiting
    again = await client.post("/v1/intents?wait_seconds=30", json=sent)
    assert (response.status_code, again.status_code) == (201, 200)
    for one in (response, again):
        assert one.json().keys() == {"intent_id", "target", "href", "status"}
        assert one.json()["status"] == "accepted"
        assert "ref-1" not in one.text


async def test_long_poll_ends_when_the_intent_is_finished(api, outbox):
    client = await api.client("ingest", "read")
    waiting = asyncio.create_task(client.post("/v1/intents?wait_seconds=30", json=SMS))
    claims = await until(outbox.claim)
    outbox.complete(claims, reference="ref-1")
    response = await waiting
    assert response.status_code == 201
    assert response.json()["status"] == response.json()["intent"]["status"] == "accepted"
    assert response.json()["intent"]["reference"] == "ref-1"


async def test_long_poll_that_times_out_returns_the_current_state(api):
    response = await api.post("/v1/intents?wait_seconds=0.05", SMS)
    assert response.status_code == 201
    assert response.json()["intent"]["status"] == "pending"


async def test_invalid_wait_seconds_is_refused(api):
    for query in (
        "wait_seconds=31",
        "wait_seconds=x",
        "wait_seconds=-1",
        "wait_seconds=nan",
        "wait_seconds=1_0",
        "wait_seconds=4e1",
        "wait_seconds=0&wait_seconds=0",
        "wait=1",
    ):
        problem(await api.post(f"/v1/intents?{query}", SMS), 422, "invalid")
        problem(await api.get(f"/v1/intents/{uuid4()}?{query}"), 422, "invalid")
    assert api.intents() == 0
    # Any JSON number is accepted.
    found = (await api.post("/v1/intents?wait_seconds=1e-2", SMS)).json()
    assert (await api.get(f"{found['href']}?wait_seconds=1E-2")).status_code == 200


async def test_batch_returns_a_verdict_for_each_intent(api, outbox):
    outbox.publish("mail")
    await api.post("/v1/intents", SMS | {"idempotency_key": "old"})
    client = await api.client("ingest", targets=["sms", "nowhere"])
    sent = [
        SMS | {"idempotency_key": "new"},
        SMS | {"idempotency_key": "old"},
        SMS | {"idempotency_key": "old", "payload": 1},
        SMS | {"target": "nowhere"},
        SMS | {"target": "mail"},
        SMS | {"priority": 9, "stream": ""},
        SMS | {"payload": "x" * (1024 * 1024)},
        SMS | {"deadline_at": "2000-01-31T12:00:00Z"},
        SMS,
    ]
    response = await client.post("/v1/intents:batch", json={"intents": sent})
    assert response.status_code == 200, response.text
    results = response.json()["results"]
    assert [(one["ordinal"], one["status"], one["verdict"]) for one in results] == [
        (1, 201, "accepted"),
        (2, 200, "duplicate"),
        (3, 409, "conflict"),
        (4, 404, "unknown_target"),
        (5, 403, "forbidden"),
        (6, 422, "invalid"),
        (7, 413, "too_large"),
        (8, 422, "invalid"),
        (9, 201, "accepted"),
    ]
    assert {one["place"] for one in results[5]["problems"]} == {"priority", "stream"}
    assert api.intents() == 3


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DatabaseUnavailable("away"), 503),
        (AccessDenied("not this role"), 503),
        (IntakeFull("stopping"), 503),
        (RuntimeError("hush"), 500),
    ],
)
async def test_failure_in_a_batch_has_the_status_of_a_single_request(
    api, monkeypatch, error, status
):
    async def enqueue_intents(_):
        raise error

    monkeypatch.setattr(api.service.stores.ingest, "enqueue_intents", enqueue_intents)
    assert (await api.post("/v1/intents", SMS)).status_code == status
    response = await api.post("/v1/intents:batch", {"intents": [SMS, SMS | {"priority": 9}]})
    failed, bad = response.json()["results"]
    assert (failed["status"], failed["verdict"]) == (status, "unavailable")
    assert ("retry_seconds" in failed) == (status == 503)
    assert bad["status"] == 422
    assert "hush" not in response.text


async def test_batch_of_1000_is_one_commit(api, database):
    sent = [SMS | {"idempotency_key": str(number)} for number in range(1000)]
    response = await api.post("/v1/intents:batch", {"intents": sent})
    assert {one["verdict"] for one in response.json()["results"]} == {"accepted"}
    assert len(database.execute("SELECT xmin FROM leasehold.intents GROUP BY xmin")) == 1


async def test_batch_is_bounded(api):
    for sent in ({"intents": []}, {"intents": [SMS] * 1001}):
        document = problem(await api.post("/v1/intents:batch", sent), 422, "invalid")
        assert [one["place"] for one in document["problems"]] == ["intents"]
    assert api.intents() == 0


async def test_batch_of_another_shape_is_refused(api):
    for sent in ({}, {"intents": {}}, {"intents": [1]}, [SMS], {"intents": [SMS], "x": 1}):
        problem(await api.post("/v1/intents:batch", sent), 400, "invalid_json")
    assert api.intents() == 0

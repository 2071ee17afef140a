"""What is sent and what responses mean; and that the sync client is up to date."""

from __future__ import annotations

import json
import logging
from dataclasses import fields
from datetime import UTC, datetime
from uuid import UUID

import httpx
import pytest

from leasehold import Client
from leasehold.client import requests
from leasehold.client.errors import NOTHING_WRITTEN
from leasehold.domain.errors import (
    AccessDenied,
    ApiError,
    ContentTooLarge,
    IdempotencyConflict,
    IntakeFull,
    InvalidArgument,
    UnknownIntent,
    UnknownTarget,
)
from leasehold.domain.intent import JsonDocument, NewIntent
from leasehold.domain.verdict import CancelVerdict, RedriveVerdict
from leasehold.store.reader_rows import Attempt, IntentStatus
from leasehold.web.problems import KINDS
from leasehold.web.schemas import requests as kinds
from leasehold.web.schemas import responses as models
from tests.support import sync_client

ID = UUID("0190a7e4-0000-7000-8000-000000000001")
SECRET = "lh_of-nobody"
ENQUEUE = requests.enqueue(NewIntent(target="sms", payload=1))


def problem(status, code, **more):
    return httpx.Response(
        status,
        json={"code": code, "detail": "what to do", "request_id": "r-1"} | more,
        headers={"content-type": "application/problem+json"},
    )


@pytest.mark.parametrize("name", sync_client.MODULES)
def test_sync_module_is_generated_from_the_async_one(name):
    stored = (sync_client.CLIENT / name).read_text()
    assert stored == sync_client.written(name), "run `make generate`"


def test_only_the_given_fields_of_an_intent_are_sent():
    new = NewIntent(
        target="sms",
        payload={"to": "+41", "note": "caf\u00e9"},
        idempotency_key="order-4711",
        key_scope="all",
        stream="a",
        priority=0,
        due_at=datetime(2030, 1, 31, 12, tzinfo=UTC),
        deadline_seconds=60,
        metadata={"a": 1},
        trace_context="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    call = requests.enqueue(new, wait_seconds=2.5)
    assert json.loads(call.body) == {
        "target": "sms",
        "payload": {"to": "+41", "note": "caf\u00e9"},
        "idempotency_key": "order-4711",
        "key_scope": "all",
        "stream": "a",
        "priority": 0,
        "due_at": "2030-01-31T12:00:00+00:00",
        "deadline_seconds": 60,
        "metadata": {"a": 1},
    }
    assert call.headers["traceparent"] == new.trace_context
    assert call.query == {"wait_seconds": "2.500"}


def test_bytes_are_sent_as_base64_and_raw_json_unchanged():
    call = requests.enqueue(NewIntent(target="t", body=b"\0\xff", content_type="application/x"))
    assert json.loads(call.body)["body"] == "AP8="
    raw = JsonDocument(b'{"amount":0.12345678901234567890}')
    assert raw.raw in requests.enqueue(NewIntent(target="t", payload=raw)).body


@pytest.mark.parametrize("key", [" a", "a ", "caf\u00e9"])
def test_key_that_does_not_fit_a_header_is_sent_in_the_body_only(key):
    call = requests.enqueue(NewIntent(target="t", payload=1, idempotency_key=key))
    assert "Idempotency-Key" not in call.headers
    assert json.loads(call.body)["idempotency_key"] == key


@pytest.mark.parametrize("key", ["order-4711", "a b", "a"])
def test_other_keys_are_sent_as_a_header_too(key):
    call = requests.enqueue(NewIntent(target="t", payload=1, idempotency_key=key))
    assert call.headers["Idempotency-Key"] == key


def test_missing_key_is_generated_and_unique():
    keys = {
        requests.enqueue(NewIntent(target="t", payload=1)).headers["Idempotency-Key"] for _ in "ab"
    }
    assert len(keys) == 2
    assert all(len(key) >= 20 for key in keys)


@pytest.mark.parametrize(
    ("new", "told"),
    [
        (
            NewIntent(target="t", payload=1, idempotency_key="a\r\nX: y"),
            "without control characters",
        ),
        (
            NewIntent(target="t", payload=1, idempotency_key="a" * 256),
            "must be 1 to 255 characters",
        ),
        (NewIntent(target="t", payload=float("nan")), "payload is not valid JSON"),
        (NewIntent(target="t", payload=1, metadata={"x": object()}), "metadata is not valid JSON"),
        (
            NewIntent(target="t", payload=1, due_at=datetime(2030, 1, 1)),  # noqa: DTZ001
            "due_at must be a time with its time",
        ),
    ],
)
def test_unsendable_intent_is_rejected_before_sending(new, told):
    with pytest.raises(InvalidArgument, match=told):
        requests.enqueue(new)


@pytest.mark.parametrize("seconds", [-1, 31, float("nan")])
def test_wait_seconds_out_of_range_is_rejected(seconds):
    with pytest.raises(InvalidArgument, match="wait_seconds"):
        requests.enqueue(NewIntent(target="t", payload=1), seconds)


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (problem(404, "unknown_target"), UnknownTarget),
        (problem(404, "not_found"), ApiError),  # of an address that is not the API's
        (problem(409, "idempotency_conflict"), IdempotencyConflict),
        (problem(401, "unauthenticated"), AccessDenied),
        (problem(403, "forbidden"), AccessDenied),
        (problem(400, "invalid_json"), InvalidArgument),
        (problem(413, "too_large"), ContentTooLarge),
        (problem(422, "invalid"), InvalidArgument),
        (problem(429, "queue_full"), IntakeFull),
        (problem(503, "intake_full"), IntakeFull),
        (problem(500, "internal"), ApiError),
        (problem(418, "of tomorrow"), ApiError),
    ],
)
def test_error_response_raises_the_matching_error(response, error):
    with pytest.raises(error, match="what to do") as caught:
        ENQUEUE.result(response)
    assert type(caught.value) is error
    assert getattr(caught.value, "target", "sms") == "sms"


def test_not_found_raises_unknown_intent_for_requests_about_one_intent():
    for call in (requests.get(ID), requests.attempts(ID)):
        with pytest.raises(UnknownIntent, match="what to do"):
            call.result(problem(404, "not_found"))


def test_client_and_api_use_the_same_names_and_limits():
    assert set(KINDS) >= NOTHING_WRITTEN
    for mine, theirs in ((IntentStatus, models.Intent), (Attempt, models.Attempt)):
        assert {one.name for one in fields(mine)} == set(theirs.model_fields)
    assert requests.PAGE_MAX == kinds.PAGE_MAX
    assert requests.WAIT_SECONDS_MAX == kinds.WAIT_SECONDS_MAX


def test_conflict_names_the_intent_that_has_the_key():
    with pytest.raises(IdempotencyConflict) as caught:
        ENQUEUE.result(problem(409, "idempotency_conflict", intent_id=str(ID)))
    assert caught.value.intent_id == ID


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(200, text="<html>welcome</html>"),
        httpx.Response(200, json=[]),
        httpx.Response(201, json={"intent_id": "4711"}),
        httpx.Response(302, headers={"location": "/login"}),
        httpx.Response(404, text="no such site"),
        httpx.Response(
            500, content=b"[" * 100_000, headers={"content-type": "application/problem+json"}
        ),
    ],
)
def test_response_of_another_server_raises_api_error(response):
    with pytest.raises(ApiError):
        ENQUEUE.result(response)


def test_verdict_is_returned_also_if_nothing_was_done():
    call = requests.cancel(ID, "why")
    done = httpx.Response(200, json={"intent_id": str(ID), "verdict": "cancelled"})
    assert call.result(done) is CancelVerdict.CANCELLED
    refused = problem(409, "not_possible", verdict="in_flight")
    assert call.result(refused) is CancelVerdict.IN_FLIGHT
    assert call.result(problem(404, "not_found")) is CancelVerdict.NOT_FOUND
    with pytest.raises(AccessDenied):
        call.result(problem(403, "forbidden"))
    again = requests.retry(ID, "why").result(problem(409, "not_possible", verdict="not_terminal"))
    assert (again.verdict, again.new_intent_id) == (RedriveVerdict.NOT_TERMINAL, None)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "leasehold.example.org",
        "ftp://x",
        "http://",
        "http://u:p@x",
        "http://x?y=1",
        "http://x:99999",
    ],
)
def test_invalid_url_is_rejected_without_showing_it(url):
    with pytest.raises(InvalidArgument, match="API URL") as caught:
        Client(url)
    assert "u:p" not in str(caught.value)


def test_empty_token_is_rejected():
    with pytest.raises(InvalidArgument, match="the token is empty"):
        Client("http://x", "")


@pytest.mark.parametrize("token", ["lh_a b", "lh_a\n", '"lh_caf\u00e9"'])
def test_malformed_token_is_rejected_without_showing_it(token):
    with pytest.raises(InvalidArgument, match="the token contains") as caught:
        Client("http://x", token)
    assert "lh_" not in str(caught.value)


def test_missing_ca_file_is_named(tmp_path):
    with pytest.raises(InvalidArgument, match="nowhere"):
        Client("https://x", ca_file=tmp_path / "nowhere.pem")


def test_token_is_shown_nowhere(caplog):
    caplog.set_level(logging.DEBUG)
    with Client("http://127.0.0.1:9", SECRET, retry_seconds=0) as client:
        assert SECRET not in repr(client) + repr(vars(client)) + repr(
            vars(client._http)["_headers"]
        )
        with pytest.raises(ApiError) as caught:
            client.get(ID)
    assert SECRET not in caplog.text + repr(caught.value) + repr(caught.value.__cause__)

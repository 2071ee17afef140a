"""What is sent, what its answers mean, and that the two clients are one."""

from __future__ import annotations

import inspect
import json
import logging
from dataclasses import fields
from datetime import UTC, datetime
from uuid import UUID

import httpx
import pytest

from leasehold import AsyncClient, Client
from leasehold.client import requests as calls
from leasehold.client.errors import NOTHING_WRITTEN
from leasehold.client.responses import HandedVerdict
from leasehold.domain.errors import (
    AccessDenied,
    ApiError,
    IdempotencyConflict,
    IntakeFull,
    InvalidArgument,
    UnknownIntent,
    UnknownTarget,
)
from leasehold.domain.intent import JsonDocument, NewIntent
from leasehold.domain.verdict import CancelVerdict, RedriveVerdict
from leasehold.store.rows import Attempt, IntentStatus
from leasehold.web.problems import KINDS
from leasehold.web.schemas import responses as models
from leasehold.web.schemas import types as kinds

ID = UUID("0190a7e4-0000-7000-8000-000000000001")
SECRET = "lh_of-nobody"
ENQUEUE = calls.enqueue(NewIntent(target="sms", payload=1))


def problem(status, code, **more):
    return httpx.Response(
        status,
        json={"code": code, "detail": "what to do", "request_id": "r-1"} | more,
        headers={"content-type": "application/problem+json"},
    )


def public(kind):
    return {
        name: str(inspect.signature(member)).replace("AsyncIterator", "Iterator")
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


def test_clients_differ_in_nothing_but_how_they_wait():
    assert public(Client) == public(AsyncClient)
    assert {
        name: member.__doc__ for name, member in vars(Client).items() if name in public(Client)
    } == {
        name: member.__doc__ for name, member in vars(AsyncClient).items() if name in public(Client)
    }


def test_intent_is_sent_with_what_was_given_and_nothing_else():
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
    call = calls.enqueue(new, wait_seconds=2.5)
    assert json.loads(call.body) == {
        "target": "sms",
        "payload": {"to": "+41", "note": "caf\u00e9"},
        "idempotency_key": "order-4711",
        "stream": "a",
        "priority": 0,
        "due_at": "2030-01-31T12:00:00+00:00",
        "deadline_seconds": 60,
        "metadata": {"a": 1},
    }
    assert call.headers["traceparent"] == new.trace_context
    assert call.query == {"wait_seconds": "2.500"}


def test_bytes_go_as_base64_and_checked_json_as_it_is():
    call = calls.enqueue(NewIntent(target="t", body=b"\0\xff", content_type="application/x"))
    assert json.loads(call.body)["body"] == "AP8="
    raw = JsonDocument(b'{"amount":0.12345678901234567890}')
    assert raw.raw in calls.enqueue(NewIntent(target="t", payload=raw)).body


@pytest.mark.parametrize("key", [" a", "a ", "caf\u00e9", "a\r\nX: y", "a" * 256])
def test_key_that_no_header_can_carry_goes_in_the_body_alone(key):
    call = calls.enqueue(NewIntent(target="t", payload=1, idempotency_key=key))
    assert "Idempotency-Key" not in call.headers
    assert json.loads(call.body)["idempotency_key"] == key


@pytest.mark.parametrize("key", ["order-4711", "a b", "a"])
def test_other_keys_are_told_to_proxies_too(key):
    call = calls.enqueue(NewIntent(target="t", payload=1, idempotency_key=key))
    assert call.headers["Idempotency-Key"] == key


def test_key_is_made_where_none_was_given_and_never_twice():
    keys = {
        calls.enqueue(NewIntent(target="t", payload=1)).headers["Idempotency-Key"] for _ in "ab"
    }
    assert len(keys) == 2
    assert all(len(key) >= 20 for key in keys)


@pytest.mark.parametrize(
    ("new", "told"),
    [
        (NewIntent(target="t", payload=float("nan")), "payload is no JSON"),
        (NewIntent(target="t", payload=1, metadata={"x": object()}), "metadata is no JSON"),
        (NewIntent(target="t", payload=1, due_at=datetime(2030, 1, 1)), "due_at has no time zone"),  # noqa: DTZ001
    ],
)
def test_what_cannot_be_sent_is_told_before_it_is(new, told):
    with pytest.raises(InvalidArgument, match=told):
        calls.enqueue(new)


@pytest.mark.parametrize("seconds", [-1, 31, float("nan")])
def test_absurd_wait_is_refused(seconds):
    with pytest.raises(InvalidArgument, match="wait_seconds"):
        calls.enqueue(NewIntent(target="t", payload=1), seconds)


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (problem(404, "unknown_target"), UnknownTarget),
        (problem(404, "not_found"), ApiError),  # of an address that is not the API's
        (problem(409, "idempotency_conflict"), IdempotencyConflict),
        (problem(401, "unauthenticated"), AccessDenied),
        (problem(403, "forbidden"), AccessDenied),
        (problem(400, "invalid_json"), InvalidArgument),
        (problem(413, "too_large"), InvalidArgument),
        (problem(422, "invalid"), InvalidArgument),
        (problem(429, "queue_full"), IntakeFull),
        (problem(503, "intake_full"), IntakeFull),
        (problem(500, "internal"), ApiError),
        (problem(418, "of tomorrow"), ApiError),
    ],
)
def test_refusal_is_the_error_that_it_means(response, error):
    with pytest.raises(error, match="what to do") as caught:
        ENQUEUE.answer(response)
    assert type(caught.value) is error
    assert getattr(caught.value, "target", "sms") == "sms"


def test_intent_that_is_not_known_is_told_where_one_was_asked_for():
    for call in (calls.get(ID), calls.attempts(ID)):
        with pytest.raises(UnknownIntent, match="what to do"):
            call.answer(problem(404, "not_found"))


def test_client_and_api_use_the_same_words():
    assert {one.value for one in HandedVerdict} == {one.value for one in models.BatchVerdict}
    assert set(KINDS) >= NOTHING_WRITTEN
    for mine, theirs in ((IntentStatus, models.Intent), (Attempt, models.Attempt)):
        assert {one.name for one in fields(mine)} == set(theirs.model_fields)
    assert calls.PAGE_MAX == kinds.PAGE_MAX
    assert calls.WAIT_SECONDS_MAX == kinds.WAIT_SECONDS_MAX


def test_conflict_says_whose_the_key_is():
    with pytest.raises(IdempotencyConflict) as caught:
        ENQUEUE.answer(problem(409, "idempotency_conflict", intent_id=str(ID)))
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
def test_answer_of_somebody_else_is_an_error_and_no_traceback(response):
    with pytest.raises(ApiError):
        ENQUEUE.answer(response)


def test_verdict_is_an_answer_also_where_nothing_was_done():
    call = calls.cancel(ID, "why")
    done = httpx.Response(200, json={"intent_id": str(ID), "verdict": "cancelled"})
    assert call.answer(done) is CancelVerdict.CANCELLED
    refused = problem(409, "not_possible", verdict="in_flight")
    assert call.answer(refused) is CancelVerdict.IN_FLIGHT
    assert call.answer(problem(404, "not_found")) is CancelVerdict.NOT_FOUND
    with pytest.raises(AccessDenied):
        call.answer(problem(403, "forbidden"))
    again = calls.retry(ID, "why").answer(problem(409, "not_possible", verdict="not_terminal"))
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
def test_address_that_is_none_is_told_without_repeating_it(url):
    with pytest.raises(InvalidArgument, match="address of the API") as caught:
        Client(url)
    assert "u:p" not in str(caught.value)


def test_empty_token_is_told_to_be_empty():
    with pytest.raises(InvalidArgument, match="the token is empty"):
        Client("http://x", "")


@pytest.mark.parametrize("token", ["lh_a b", "lh_a\n", '"lh_caf\u00e9"'])
def test_token_that_is_none_is_told_without_repeating_it(token):
    with pytest.raises(InvalidArgument, match="the token has") as caught:
        Client("http://x", token)
    assert "lh_" not in str(caught.value)


def test_authorities_that_are_not_there_are_named(tmp_path):
    with pytest.raises(InvalidArgument, match="nowhere"):
        Client("https://x", ca_file=tmp_path / "nowhere.pem")


def test_token_is_shown_nowhere(caplog):
    caplog.set_level(logging.DEBUG)
    with Client("http://127.0.0.1:9", SECRET, patience_seconds=0) as client:
        assert SECRET not in repr(client) + repr(vars(client)) + repr(
            vars(client._http)["_headers"]
        )
        with pytest.raises(ApiError) as caught:
            client.get(ID)
    assert SECRET not in caplog.text + repr(caught.value) + repr(caught.value.__cause__)

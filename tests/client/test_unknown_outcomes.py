"""What may have been written is never reported as refused, and no error loses the key.

The servers here are real sockets that lose answers or answer badly; test_client.py has the same
losses in front of the real API.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from leasehold.domain.errors import (
    AccessDenied,
    ApiError,
    ApiUnavailable,
    ContentTooLarge,
    IdempotencyConflict,
    IntakeFull,
    InvalidArgument,
    UnknownIntent,
    UnknownTarget,
)
from leasehold.domain.intent import NewIntent
from leasehold.domain.verdict import BatchVerdict
from tests.support.http_gateways import RawServer, abort

LOST = None
REFUSALS = {
    (400, "invalid_json"): InvalidArgument,
    (401, "unauthenticated"): AccessDenied,
    (403, "forbidden"): AccessDenied,
    (404, "unknown_target"): UnknownTarget,
    (404, "not_found"): ApiError,
    (409, "idempotency_conflict"): IdempotencyConflict,
    (413, "too_large"): ContentTooLarge,
    (418, "of tomorrow"): ApiError,
    (422, "invalid"): InvalidArgument,
    (429, "queue_full"): IntakeFull,
}
UNREADABLE = {
    "defect": (500, b'{"code":"internal"}', ApiError),
    "defect of a proxy": (500, b"<html>oops</html>", ApiError),
    "not implemented": (501, b"", ApiError),
    "outage": (503, b'{"code":"database_unavailable"}', ApiUnavailable),
    "page of a proxy": (200, b"<html>welcome</html>", ApiError),
    "empty": (201, b"", ApiError),
    "without an id": (201, b"{}", ApiError),
    "cut": (201, b'{"intent_id":"0190a7e4', ApiError),
}


def response(status, body, kind="application/problem+json"):
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def refusal(status, code):
    return response(status, json.dumps({"code": code, "detail": "What to do."}).encode())


@asynccontextmanager
async def server(*script):
    """Answer each request with the next of `script`; the last one also to all that follow."""
    remaining = list(script)

    async def act(_reader, writer):
        now = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        if now is LOST:
            abort(writer)
            raise ConnectionResetError
        writer.write(now)
        await writer.drain()

    async with RawServer(act).running() as running:
        yield running


def sent_keys(running):
    """The idempotency key of each request."""
    lines = [request.split(b"\r\n") for request in running.requests]
    return [
        line.partition(b": ")[2].decode()
        for head in lines
        for line in head
        if line.lower().startswith(b"idempotency-key:")
    ]


def batch_keys(request):
    """The idempotency keys in a batch."""
    _, _, body = request.partition(b"\r\n\r\n")
    return tuple(one["idempotency_key"] for one in json.loads(body)["intents"])


def retry_seconds(status):
    """Long enough for a second try on a slow machine, but some answers are retried to the end."""
    return 2.0 if status in {429, 503} else 30.0


async def failed(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011 (the caller looks at it)
        await call
    return caught.value


@pytest.mark.parametrize(("refused", "cause"), REFUSALS.items(), ids=str)
async def test_refusal_after_a_lost_answer_leaves_the_outcome_unknown(connect, refused, cause):
    async with (
        server(LOST, refusal(*refused)) as running,
        connect(running.url, retry_seconds=retry_seconds(refused[0])) as client,
    ):
        error = await failed(client.enqueue("sms", 1))
    assert type(error) is ApiUnavailable
    assert error.outcome_unknown
    assert error.status == refused[0]
    assert type(error.__cause__) is cause
    [key] = set(sent_keys(running))
    assert error.idempotency_key == key
    assert "an earlier try got no answer" in str(error)
    assert "What to do. Outcome unknown." in str(error)
    assert f"Retry with the same idempotency key: {key!r}" in str(error)


@pytest.mark.parametrize(("refused", "cause"), REFUSALS.items(), ids=str)
async def test_refusal_of_the_only_try_is_plain_and_carries_the_key(connect, refused, cause):
    async with (
        server(refusal(*refused)) as running,
        connect(running.url, retry_seconds=0) as client,
    ):
        error = await failed(client.enqueue("sms", 1))
    assert type(error) is cause
    assert not getattr(error, "outcome_unknown", False)
    assert [error.idempotency_key] == sent_keys(running)


@pytest.mark.parametrize("before", [[], [LOST]], ids=["at once", "after a lost answer"])
@pytest.mark.parametrize(("status", "body", "kind"), UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_answer_that_tells_nothing_does_not_lose_the_key(connect, before, status, body, kind):
    async with (
        server(*before, response(status, body)) as running,
        connect(running.url, retry_seconds=retry_seconds(status)) as client,
    ):
        error = await failed(client.enqueue("sms", 1))
    assert type(error) is kind
    assert (error.outcome_unknown, error.status) == (True, status)
    [key] = set(sent_keys(running))
    assert error.idempotency_key == key
    assert str(error).count(f"Retry with the same idempotency key: {key!r}") == 1


async def test_lost_answers_alone_do_not_lose_the_key(connect):
    async with server(LOST) as running, connect(running.url, retry_seconds=3) as client:
        error = await failed(client.enqueue("sms", 1))
    assert type(error) is ApiUnavailable
    assert error.outcome_unknown
    assert {error.idempotency_key} == set(sent_keys(running))


async def test_request_that_reached_nobody_leaves_nothing_unknown(connect):
    async with connect("http://127.0.0.1:9", retry_seconds=0) as client:
        error = await failed(client.enqueue("sms", 1, idempotency_key="order-4711"))
    assert type(error) is ApiUnavailable
    assert (error.outcome_unknown, error.idempotency_key) == (False, "order-4711")


async def test_read_whose_first_answer_was_lost_is_refused_plainly(connect):
    async with (
        server(LOST, refusal(404, "not_found")) as running,
        connect(running.url) as client,
    ):
        error = await failed(client.get(uuid4()))
    assert type(error) is UnknownIntent
    assert error.idempotency_key is None


@pytest.mark.parametrize(("status", "body", "kind"), UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_operation_whose_answer_tells_nothing_says_so(connect, status, body, kind):
    async with server(response(status, body)) as running, connect(running.url) as client:
        error = await failed(client.cancel(uuid4(), "why"))
    assert type(error) is kind
    assert error.outcome_unknown
    assert "Outcome unknown. Look at the intent before you try again." in str(error)
    assert len(running.requests) == 1


async def test_unknown_target_is_named(connect):
    async with server(refusal(404, "unknown_target")) as running, connect(running.url) as client:
        error = await failed(client.enqueue("nowhere", 1))
    assert (type(error), error.target) == (UnknownTarget, "nowhere")
    assert str(error) == "The target 'nowhere' has no published contract. What to do."


@pytest.mark.parametrize("last", [refusal(401, "unauthenticated"), response(500, b""), LOST])
async def test_bulk_error_carries_the_keys_of_all_intents_read_so_far(connect, last):
    accepted = json.dumps({"results": [{"ordinal": n, "verdict": "accepted"} for n in (1, 2)]})
    intents = [
        NewIntent(target="sms", payload=n, trace_context=f"00-{n}" if n < 3 else "00-3")
        for n in (1, 1, 3, 4, 5)
    ]
    async with (
        server(response(200, accepted.encode()), LOST, last) as running,
        connect(running.url, retry_seconds=3) as client,
    ):
        error = await failed(client.enqueue_many(intents))
    assert isinstance(error, ApiError)
    assert error.outcome_unknown
    sent = batch_keys(running.requests[0]) + batch_keys(running.requests[-1])
    assert len(sent) == 5
    assert error.idempotency_keys == sent


async def test_intent_of_a_lost_batch_is_not_reported_as_refused(connect):
    verdicts = ["accepted", "conflict", "unknown_target", "invalid", "forbidden"]
    results = [
        {"ordinal": n, "verdict": one, "problems": [{"place": "", "message": f"it is {one}"}]}
        for n, one in enumerate(verdicts, start=1)
    ]
    intents = [NewIntent(target="sms", payload=n) for n in range(5)]
    async with (
        server(LOST, response(200, json.dumps({"results": results}).encode())) as running,
        connect(running.url) as client,
    ):
        first, *others = await client.enqueue_many(intents)
    assert first.verdict is BatchVerdict.ACCEPTED
    assert {one.verdict for one in others} == {BatchVerdict.UNAVAILABLE}
    keys = batch_keys(running.requests[0])
    assert (first.idempotency_key, *(one.idempotency_key for one in others)) == keys
    for one, verdict in zip(others, verdicts[1:], strict=True):
        assert f"the last one was refused: it is {verdict}" in one.problem
        assert f"idempotency key: {one.idempotency_key!r}" in one.problem


async def test_lost_batch_that_is_then_unreadable_to_the_api_has_unknown_outcomes(connect):
    async with (
        server(LOST, refusal(400, "invalid_json")) as running,
        connect(running.url) as client,
    ):
        results = await client.enqueue_many([NewIntent(target="sms", payload=n) for n in range(3)])
    assert {one.verdict for one in results} == {BatchVerdict.UNAVAILABLE}
    assert tuple(one.idempotency_key for one in results) == batch_keys(running.requests[0])


async def test_batch_that_was_answered_but_not_readable_to_the_api_is_invalid(connect):
    async with server(refusal(400, "invalid_json")) as running, connect(running.url) as client:
        results = await client.enqueue_many([NewIntent(target="sms", payload=n) for n in range(3)])
    assert {one.verdict for one in results} == {BatchVerdict.INVALID}
    assert tuple(one.idempotency_key for one in results) == batch_keys(running.requests[0])

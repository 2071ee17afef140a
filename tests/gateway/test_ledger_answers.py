"""What the ledger gateway sends, and what it makes of every answer that a ledger can give."""

from __future__ import annotations

import json

import pytest

from leasehold.domain.outcome import (
    Accepted,
    Deferred,
    NotFound,
    Rejected,
    Retryable,
    Submitted,
    Unknown,
)
from leasehold.gateway.sanitize import DETAIL_MAX
from tests.support.http_gateways import RawServer, batch_id, ledger_gateway, make_batch

ID = batch_id("a")


async def answer_of(asked, status, document, headers="", **changes):
    """Return what a gateway makes of one response, and the request that it sent."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    head = f"HTTP/1.1 {status} X\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode()

    async def act(_reader, writer):
        writer.write(head + body)
        await writer.drain()

    async with (
        RawServer(act).running() as server,
        ledger_gateway(f"{server.url}api/", **changes) as gateway,
    ):
        answer = await getattr(gateway, asked)(make_batch("a", stream="s", attempt_no=4))
        return answer, server.requests


def error(code, message="no"):
    return {"error": {"code": code, "title": "Title", "message": message}}


def entry(status, **more):
    return {"data": [{"id": ID, "status": status} | more]}


async def test_batch_is_sent_as_it_is_with_its_id_and_stream():
    _, [request] = await answer_of(
        "submit", 202, {"link": "http://169.254.169.254/"}, stream_header="Grid-Service-Id"
    )
    head, _, body = request.partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    sent = dict(header.split(": ", 1) for header in headers)
    assert line == "POST /api/batches HTTP/1.1"
    assert body == b"signed a"
    assert sent["Content-Type"] == "application/octet-stream"
    assert sent["Leasehold-Batch-Id"] == ID
    assert sent["Grid-Service-Id"] == "s"
    assert (sent["Leasehold-Attempt"], sent["Fencing-Token"]) == ("4", "4")
    assert "Idempotency-Key" not in sent, "several batches share a request, so it has no key"


async def test_status_is_asked_by_id_and_the_link_of_the_ledger_is_not_followed():
    answer, [request] = await answer_of("lookup", 200, entry("COMMITTED") | {"link": "http://x/"})
    assert request.startswith(f"GET /api/batch_statuses?id={ID} HTTP/1.1\r\n".encode())
    assert answer == Accepted(reference=ID, code="COMMITTED")


@pytest.mark.parametrize("code", [17, 18])
async def test_validator_that_was_lost_may_have_taken_the_batch(code):
    outcome, _ = await answer_of("submit", 503, error(code), "Retry-After: 3\r\n")
    assert isinstance(outcome, Unknown)
    assert (outcome.reason, outcome.reference) == ("validator_lost", ID)
    assert (outcome.code, outcome.retry_after_seconds) == ("503", 3)


@pytest.mark.parametrize(
    ("status", "document", "is_saturated"),
    [
        (503, error(15), True),
        (503, b"<html>a proxy</html>", True),
        (503, {"error": [17]}, True),
        (429, error(31), True),
        (408, error(19), False),
    ],
)
async def test_ledger_that_certainly_took_nothing_is_tried_again(status, document, is_saturated):
    outcome, _ = await answer_of("submit", status, document)
    assert isinstance(outcome, Retryable)
    assert outcome.is_saturated == is_saturated


@pytest.mark.parametrize("status", [401, 403, 407])
async def test_ledger_that_refuses_the_sender_defers_the_batch(status):
    outcome, _ = await answer_of("submit", status, error(10), "Retry-After: 3\r\n")
    assert isinstance(outcome, Deferred)
    assert (outcome.code, outcome.retry_after_seconds) == (str(status), 3)
    assert outcome.is_target_wide


@pytest.mark.parametrize("code", [30, 34, 35, 42])
async def test_batch_that_the_ledger_refuses_is_rejected(code):
    outcome, _ = await answer_of("submit", 400, error(code))
    assert isinstance(outcome, Rejected)
    assert (outcome.reference, outcome.code) == (ID, "400")


@pytest.mark.parametrize("status", [500, 502, 504, 302, 409])
async def test_answer_that_says_nothing_about_the_batch_is_unknown(status):
    outcome, _ = await answer_of("submit", status, error(10))
    assert isinstance(outcome, Unknown)
    assert outcome.reference == ID


@pytest.mark.parametrize("status", [200, 201, 202])
async def test_ledger_that_takes_a_batch_has_not_committed_it(status):
    outcome, _ = await answer_of("submit", status, {"reference": "other"})
    assert outcome == Submitted(reference=ID, ask_after_seconds=5, code=str(status))


@pytest.mark.parametrize("status", ["PENDING", "VALID"])
async def test_ledger_says_when_to_ask_again(status):
    answer, _ = await answer_of("lookup", 200, entry(status), "Retry-After: 9\r\n")
    assert answer == Submitted(reference=ID, ask_after_seconds=9, code=status)


async def test_evicted_batch_is_not_found():
    answer, _ = await answer_of("lookup", 200, entry("UNKNOWN"))
    assert isinstance(answer, NotFound)


@pytest.mark.parametrize(
    ("given", "detail"),
    [
        ([{"id": "t", "message": "bad\x00 nonce\n"}], "bad  nonce"),
        ([{"message": "x" * 9000}], "x" * DETAIL_MAX),
        ([{"message": "got hunter2-hunter2"}], "got ***"),
        ([{"message": None}], "None"),
        ([{}], None),
        ([], None),
        (["text"], None),
        ("text", None),
        (None, None),
    ],
)
async def test_message_about_an_invalid_batch_is_cleaned_bounded_and_redacted(given, detail):
    answer, _ = await answer_of(
        "lookup",
        200,
        entry("INVALID", invalid_transactions=given),
        secret_headers={"Authorization": "TOKEN"},
        environment={"TOKEN": "hunter2-hunter2"},
    )
    assert isinstance(answer, Rejected)
    assert (answer.code, answer.detail) == ("INVALID", detail and detail.strip())


@pytest.mark.parametrize(
    ("status", "document"),
    [
        (404, entry("UNKNOWN")),
        (400, error(60)),
        (503, error(17)),
        (302, entry("COMMITTED")),
        (200, b"not JSON"),
        (200, b"[" * 100_000),
        (200, []),
        (200, {"data": {}}),
        (200, {"data": []}),
        (200, {"data": ["COMMITTED", None]}),
        (200, {"data": [{"id": batch_id("b"), "status": "COMMITTED"}]}),
        (200, {"data": [{"id": [ID], "status": "COMMITTED"}]}),
        (200, entry("committed")),
        (200, entry(["COMMITTED"])),
        (200, entry(None)),
    ],
)
async def test_answer_to_a_lookup_that_makes_no_sense_is_unknown(status, document):
    answer, _ = await answer_of("lookup", status, document)
    assert isinstance(answer, Unknown), "only the status UNKNOWN means not found"
    assert answer.reason == "lookup"


async def test_lookup_that_is_throttled_waits_as_long_as_the_ledger_says():
    answer, _ = await answer_of("lookup", 429, error(31), "Retry-After: 8\r\n")
    assert isinstance(answer, Unknown)
    assert answer.retry_after_seconds == 8


async def test_many_lookups_make_one_request_without_repeated_ids():
    async def act(_reader, writer):
        writer.write(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with RawServer(act).running() as server, ledger_gateway(server.url) as gateway:
        answers = await gateway.lookup_many([make_batch("a"), make_batch("b"), make_batch("a")])
        [request] = server.requests
    assert f"?id={ID},{batch_id('b')} ".encode() in request
    assert [type(one) for one in answers] == [Unknown] * 3


@pytest.mark.parametrize("status", [400, 413, 414, 200])
async def test_batch_that_spoils_a_status_request_does_not_spoil_the_others(status):
    names = "abcde"

    async def act(_reader, writer):
        asked = server.requests[-1].split(b" ")[1].decode().partition("id=")[2].split(",")
        is_spoilt = batch_id("c") in asked
        data = [{"id": one, "status": "COMMITTED"} for one in asked]
        body = b"x" * 5000 if is_spoilt else json.dumps({"data": data}).encode()
        head = f"HTTP/1.1 {status if is_spoilt else 200} X\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    server = RawServer(act)
    async with (
        server.running(),
        ledger_gateway(server.url, response_bytes_max=4000 if status == 200 else 9000) as gateway,
    ):
        answers = await gateway.lookup_many([make_batch(name) for name in names])
    kinds = {name: type(answer) for name, answer in zip(names, answers, strict=True)}
    assert kinds.pop("c") is Unknown
    assert set(kinds.values()) == {Accepted}


@pytest.mark.parametrize("status", [429, 503, 500, 404])
async def test_busy_ledger_is_not_asked_again_in_halves(status):
    async def act(_reader, writer):
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()

    async with RawServer(act).running() as server, ledger_gateway(server.url) as gateway:
        await gateway.lookup_many([make_batch("a"), make_batch("b")])
        assert len(server.requests) == 1

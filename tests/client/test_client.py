"""Both clients against the real API: an intent is enqueued once, whatever answer is lost."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from functools import partial
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from leasehold.domain.errors import (
    AccessDenied,
    ApiUnavailable,
    ContentTooLarge,
    IdempotencyConflict,
    IntakeFull,
    InvalidArgument,
    UnknownIntent,
    UnknownTarget,
)
from leasehold.domain.intent import AttemptState, NewIntent, Status
from leasehold.domain.verdict import CancelVerdict, RedriveVerdict, ResolveVerdict, RetryNowVerdict
from tests.support.engine import until

KEY = "order-4711"
REFUSALS = {
    "overloaded": 503,
    "unauthenticated": 401,
    "unknown_target": 404,
    "invalid_json": 400,
    "idempotency_conflict": 409,
}
# For the code that is generated for the sync client: the loops around requests, pages and streams.
BOTH = pytest.mark.parametrize("clients", ["async", "sync"], indirect=True)


class Lossy:
    """A network that delivers requests, and loses the answers to the first few."""

    def __init__(self, url, lose):
        self._server = urlsplit(url)
        self.lose = lose
        self.lost = 0
        self.url = ""
        # What the network answers by itself after it has lost `lose` answers.
        self.then = b""

    async def connected(self, reader, writer):
        if self.then and self.lost == self.lose:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.then)
            writer.close()
            return
        behind_reader, behind_writer = await asyncio.open_connection(
            self._server.hostname, self._server.port
        )
        forth = asyncio.create_task(self._pump(reader, behind_writer))
        while piece := await behind_reader.read(65536):
            if self.lost < self.lose:
                self.lost += 1
                break
            writer.write(piece)
        forth.cancel()
        behind_writer.close()
        writer.close()

    async def _pump(self, reader, writer):
        while piece := await reader.read(65536):
            writer.write(piece)


@asynccontextmanager
async def lossy(url, lose):
    network = Lossy(url, lose)
    server = await asyncio.start_server(network.connected, "127.0.0.1", 0)
    network.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield network


@BOTH
async def test_intent_is_committed_when_the_call_returns(client, outbox):
    receipt = await client.enqueue("sms", {"to": "+41"}, idempotency_key=KEY)
    assert outbox.status(receipt.intent_id) == "pending"
    assert receipt.is_new
    again = await client.enqueue(
        NewIntent(target="sms", payload={"to": "+41"}, idempotency_key=KEY)
    )
    assert (again.intent_id, again.is_new) == (receipt.intent_id, False)


async def test_two_calls_without_a_key_are_two_intents(client, api):
    first, second = [await client.enqueue("sms", 1) for _ in "ab"]
    assert first.intent_id != second.intent_id
    assert api.intents() == 2


async def test_second_payload_under_a_key_is_a_conflict_that_names_the_first_intent(client, api):
    first = await client.enqueue("sms", {"to": "+41"}, idempotency_key=KEY)
    with pytest.raises(IdempotencyConflict, match="another payload") as caught:
        await client.enqueue("sms", {"to": "+49"}, idempotency_key=KEY)
    assert caught.value.intent_id == first.intent_id
    assert api.intents() == 1


@pytest.mark.parametrize(
    ("new", "error", "told"),
    [
        (NewIntent(target="nowhere", payload=1), UnknownTarget, "'nowhere' .*targets apply"),
        (NewIntent(target="sms"), InvalidArgument, "payload must be given"),
        (NewIntent(target="sms", payload=1, priority=9), InvalidArgument, "priority"),
        (NewIntent(target="sms", payload="\0"), InvalidArgument, "NUL"),
        (NewIntent(target="sms", payload=1, idempotency_key="a\r\nb: c"), InvalidArgument, "key"),
        (NewIntent(target="sms", payload="x" * 3_000_000), InvalidArgument, "bytes"),
    ],
)
async def test_rejected_intent_raises_an_error_that_says_why(client, api, new, error, told):
    with pytest.raises(error, match=told):
        await client.enqueue(new)
    assert api.intents() == 0


async def test_every_field_of_an_intent_is_stored(client, database):
    await client.enqueue(
        "sms",
        body=b"\0\xff",
        content_type="application/x",
        stream="s",
        priority=3,
        delay_seconds=90,
        deadline_seconds=3600,
        metadata={"a": 1},
        trace_context="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        idempotency_key="caf\u00e9 ",
    )
    [row] = database.execute(
        "SELECT i.*, p.priority, p.due_at FROM leasehold.intents i"
        " JOIN leasehold.outbox_pending p USING (intent_id)"
    )
    assert (bytes(row["body"]), row["content_type"], row["stream"]) == (
        *(b"\0\xff", "application/x", "s"),
    )
    assert (row["priority"], (row["due_at"] - row["created_at"]).seconds) == (3, 90)
    assert (row["deadline_at"] - row["created_at"]).seconds == 3600
    assert row["metadata"] == {"a": 1}
    assert row["idempotency_key"] == "caf\u00e9 "
    assert row["trace_context"].startswith("00-0af7651916cd43dd8448eb211c80319c")


@BOTH
async def test_call_that_waits_returns_the_final_status(client, outbox):
    async def work():
        outbox.complete(await until(outbox.claim))

    worker = asyncio.create_task(work())
    receipt = await client.enqueue("sms", 1, wait_seconds=30)
    assert receipt.status is receipt.intent.status is Status.ACCEPTED
    await worker
    assert (await client.get(receipt.intent_id, wait_seconds=30)).status is Status.ACCEPTED


@BOTH
async def test_enqueue_many_gives_each_intent_a_verdict_and_accepts_the_valid_ones(client, api):
    given = [NewIntent(target="sms", payload=n, idempotency_key=f"k-{n}") for n in range(1200)]
    given[3] = NewIntent(target="nowhere", payload=1)
    given[5] = NewIntent(target="sms", payload=["\ud800"])
    given[700] = NewIntent(target="sms", payload=float("inf"))
    given[1100] = NewIntent(target="sms", payload="another", idempotency_key="k-1")
    answers = await client.enqueue_many(iter(given))
    assert [one.ordinal for one in answers] == list(range(1, 1201))
    found = {one.ordinal - 1: one for one in answers if one.verdict != "accepted"}
    assert {place: one.verdict for place, one in found.items()} == {
        3: "unknown_target",
        5: "invalid",
        700: "invalid",
        1100: "conflict",
    }
    assert found[1100].intent_id == answers[1].intent_id
    assert "surrogate" in found[5].problem
    assert api.intents() == 1196
    again = await client.enqueue_many(given[:3])
    assert {one.verdict for one in again} == {"duplicate"}


async def test_status_and_ledger_of_an_intent_are_read(client, outbox):
    receipt = await client.enqueue("sms", 1, idempotency_key=KEY)
    outbox.complete(outbox.claim(), "FAILED", reason="no such number", code="404")
    found = await client.get(receipt.intent_id)
    assert (found.status, found.target, found.idempotency_key) == (Status.REJECTED, "sms", KEY)
    assert found.finished_at.tzinfo is not None
    [attempt] = await client.attempts(receipt.intent_id)
    assert (attempt.state, attempt.reason) == (AttemptState.FAILED, "no such number")
    for ask in (client.get, client.attempts):
        with pytest.raises(UnknownIntent):
            await ask(uuid4())


@BOTH
async def test_list_reads_page_after_page(client, outbox):
    outbox.publish("letters")
    outbox.enqueue(450)
    await client.enqueue("letters", 1, stream="s")
    found = [one.intent_id async for one in client.list(target="sms", status=Status.PENDING)]
    assert len(found) == len(set(found)) == 450
    assert found == sorted(found, reverse=True)
    [letter] = [one async for one in client.list(stream="s")]
    assert letter.target == "letters"
    before = letter.created_at - timedelta(seconds=1)
    assert [one async for one in client.list(until=before, target="letters")] == []
    assert [one async for one in client.list(since=before, target="letters")] == [letter]
    page = await client.page(limit=2)
    assert [one.intent_id for one in page.intents] == [letter.intent_id, found[0]]


@BOTH
async def test_operations_return_what_they_did(client, outbox):
    outbox.publish("letters", guarantee="blind")
    [cancelled] = outbox.enqueue(1)
    [held] = outbox.enqueue(1, "letters")
    claims = outbox.claim(targets=["letters"])
    outbox.begin(claims)
    outbox.complete(claims, "IN_DOUBT")
    assert await client.cancel(cancelled, "why") is CancelVerdict.CANCELLED
    assert await client.cancel(cancelled, "why") is CancelVerdict.ALREADY_TERMINAL
    assert await client.retry_now(cancelled, "why") is RetryNowVerdict.ALREADY_TERMINAL
    assert await client.cancel(uuid4(), "why") is CancelVerdict.NOT_FOUND
    assert await client.resolve(held, "failed", "asked them") is ResolveVerdict.RESOLVED
    again = await client.retry(held, "why")
    assert again.verdict is RedriveVerdict.REDRIVEN
    assert outbox.status(again.new_intent_id) == "pending"
    assert (await client.retry(again.new_intent_id, "why")).verdict is RedriveVerdict.NOT_TERMINAL
    with pytest.raises(InvalidArgument, match="note"):
        await client.cancel(cancelled, "")


async def test_token_allows_only_its_scopes_and_targets(clients, outbox):
    outbox.publish("letters")
    ingest = await clients.make("ingest", targets=["sms"])
    receipt = await ingest.enqueue("sms", 1, wait_seconds=0.01)
    assert (receipt.status, receipt.intent) == (Status.PENDING, None)
    for refused in (
        ingest.enqueue("letters", 1),
        ingest.enqueue("sms", 1, idempotency_key=KEY, key_scope="all"),
        ingest.get(receipt.intent_id),
        ingest.cancel(receipt.intent_id, "why"),
    ):
        with pytest.raises(AccessDenied, match="token"):
            await refused
    [verdict] = await ingest.enqueue_many([NewIntent(target="letters", payload=1)])
    assert verdict.verdict == "forbidden"
    stranger = await clients.make(token="lh_of-nobody")
    with pytest.raises(AccessDenied, match="unknown or revoked"):
        await stranger.enqueue("sms", 1)


@BOTH
async def test_lost_answers_do_not_make_a_second_intent(clients, api):
    lose = 3
    async with lossy(api.url, lose) as network:
        client = await clients.make("ingest", url=network.url)
        await client.enqueue("sms", 1)
        assert (network.lost, api.intents()) == (lose, 1)
        network.lost = 0
        await client.enqueue_many([NewIntent(target="sms", payload=n) for n in range(5)])
        assert (network.lost, api.intents()) == (lose, 6)


@BOTH
async def test_operation_whose_answer_was_lost_is_not_repeated(clients, api, outbox):
    [intent_id] = outbox.enqueue(1)
    async with lossy(api.url, 1) as network:
        client = await clients.make("operate", url=network.url)
        with pytest.raises(ApiUnavailable, match="Look at the intent"):
            await client.cancel(intent_id, "why")
    assert outbox.states(intent_id) == ["CANCELLED"]


@BOTH
async def test_unreachable_api_is_reported_after_retry_seconds(clients):
    client = await clients.make("ingest", url="http://127.0.0.1:9", retry_seconds=0.3)
    with pytest.raises(ApiUnavailable, match=r"the API at http://127\.0\.0\.1:9 did not answer"):
        await client.enqueue("sms", 1)


async def test_full_queue_is_retried_and_then_reported(clients, api, outbox):
    outbox.publish("sms", pending_max=1)
    outbox.enqueue(1)
    outbox.count_depths()
    await api.service.queue_limits.step()
    short = await clients.make("ingest", retry_seconds=2)
    refused, [verdict] = await asyncio.gather(
        short.enqueue("sms", 1),
        short.enqueue_many([NewIntent(target="sms", payload=1)]),
        return_exceptions=True,
    )
    assert isinstance(refused, IntakeFull)
    assert verdict.verdict == "queue_full"
    long = await clients.make("ingest")
    waiting = asyncio.create_task(long.enqueue("sms", 1))
    outbox.complete(outbox.claim())
    assert (await waiting).is_new


def refusal(code):
    body = json.dumps({"code": code}).encode()
    head = (
        f"HTTP/1.1 {REFUSALS[code]} No\r\nContent-Type: application/problem+json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@BOTH
@pytest.mark.parametrize("code", REFUSALS)
async def test_refusal_after_a_lost_answer_does_not_claim_that_nothing_was_written(
    clients, api, code
):
    async with lossy(api.url, 1) as network:
        network.then = refusal(code)
        client = await clients.make("ingest", url=network.url, retry_seconds=3)
        with pytest.raises(ApiUnavailable, match=f"idempotency key: '{KEY}'"):
            await client.enqueue("sms", 1, idempotency_key=KEY)
    assert api.intents() == 1


async def test_key_of_an_error_repeats_the_intent_whose_answer_was_lost(clients, api):
    async with lossy(api.url, 1) as network:
        network.then = refusal("unauthenticated")
        client = await clients.make("ingest", url=network.url)
        with pytest.raises(ApiUnavailable) as caught:
            await client.enqueue("sms", 1)
    client = await clients.make("ingest")
    receipt = await client.enqueue("sms", 1, idempotency_key=caught.value.idempotency_key)
    assert not receipt.is_new
    assert api.intents() == 1


@BOTH
async def test_events_resume_where_the_connection_was_cut(clients, api, outbox):
    outbox.publish("letters")
    outbox.enqueue(1)
    outbox.complete(outbox.claim())
    async with lossy(api.url, 0) as network:
        client = await clients.make("read", url=network.url)
        seen = []
        start = await api.service.events.cursor(None)
        expected = []

        async def follow():
            async with aclosing(client.events(start, target="sms")) as events:
                async for event in events:
                    seen.append((event.attempt.intent_id, event.attempt.state))
                    network.lose = network.lost + (len(seen) in {2, 4})  # cut it off
                    if len(seen) == 6:
                        return

        following = asyncio.create_task(follow())
        for _ in range(6):
            outbox.enqueue(1, "letters")
            expected += outbox.enqueue(1)
            outbox.complete(outbox.claim(targets=["sms", "letters"]))
            await until(partial(lambda count: len(seen) == count, len(expected)))
        await following
        assert seen == [(one, AttemptState.DISPATCHED) for one in expected]
        assert network.lost == 2


async def test_decimal_is_stored_with_every_digit(client, database):
    amounts = {"a": Decimal("1.10"), "b": Decimal("0.12345678901234567890")}
    await client.enqueue("sms", amounts, metadata=amounts)
    [result] = await client.enqueue_many(
        [NewIntent(target="sms", payload=amounts, metadata=amounts)]
    )
    assert result.verdict == "accepted"
    rows = database.execute("SELECT payload::text, metadata::text FROM leasehold.intents")
    exact = '{"a": 1.10, "b": 0.12345678901234567890}'
    assert [tuple(row.values()) for row in rows] == [(exact, exact)] * 2


async def test_key_that_is_no_text_is_refused_before_sending(client, api):
    told = "payload is not valid JSON: a key is of type int"
    with pytest.raises(InvalidArgument, match=told):
        await client.enqueue("sms", {1: 2})
    [result] = await client.enqueue_many([NewIntent(target="sms", payload={1: 2})])
    assert (result.verdict, result.problem.startswith(told)) == ("invalid", True)
    assert api.intents() == 0


async def test_payload_is_stored_exactly_as_given(client, api):
    value = {"text": "\u2028\U0001f600", "number": 12345678901234567890, "nothing": None}
    receipt = await client.enqueue("sms", value)
    content = await api.get(f"/v1/intents/{receipt.intent_id}/content")
    assert json.loads(content.content)["payload"] == value


@BOTH
async def test_content_over_the_limit_is_refused_with_its_size_alone_and_in_bulk(client):
    floats = [1e308] * 65_000
    with pytest.raises(ContentTooLarge) as raised:
        await client.enqueue("sms", floats)
    assert raised.value.size_bytes > raised.value.limit_bytes == 1024 * 1024
    sent = [NewIntent(target="sms", payload=one) for one in (1, floats, "x" * 9_000_000, 2)]
    results = await client.enqueue_many(sent)
    assert [one.verdict for one in results] == ["accepted", "too_large", "too_large", "accepted"]

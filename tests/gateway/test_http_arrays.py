"""Several submissions in one POST to an HTTP gateway: all or a prefix of them is accepted."""

from __future__ import annotations

import json

import pytest
from standardwebhooks.webhooks import Webhook

from leasehold.domain.intent import JsonDocument
from leasehold.domain.outcome import Accepted, Deferred, Rejected, Retryable, Submitted, Unknown
from leasehold.gateway.errors import TrustEnded
from leasehold.sandbox import Sandbox
from tests.support.http_gateways import RawServer, http_gateway, make_submission

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
async def sandbox():
    async with Sandbox(seed=1) as sandbox:
        yield sandbox


def heads(count=3, **changes):
    return [
        make_submission(payload=JsonDocument(f'{{"number": {n}}}'.encode()), stream="s", **changes)
        for n in range(count)
    ]


async def outcomes_of(status, document, submissions, **changes):
    """Return what a gateway makes of one response, and the requests that it sent."""
    body = json.dumps(document).encode()

    async def act(_reader, writer):
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    async with RawServer(act).running() as server:
        lookup = {"lookup_url": f"{server.url}{{key}}"}
        async with http_gateway(server.url, **(lookup | changes)) as gateway:
            return await gateway.submit_many(submissions), server.requests


@pytest.mark.parametrize("guarantee", ["keyed", "fenced", "lookup", "blind"])
async def test_heads_of_a_stream_are_accepted_together_and_in_order(sandbox, guarantee):
    submissions = heads()
    keys = [str(one.submission_key) for one in submissions]
    terms = {"lookup_url": f"{sandbox.url}/lookup/{{key}}"} if guarantee == "lookup" else {}
    async with http_gateway(
        f"{sandbox.url}/{guarantee}",
        guarantee=guarantee,
        stream_header="Leasehold-Stream",
        submissions_max=9,
        **terms,
    ) as gateway:
        assert gateway.submissions_max == 9
        outcomes = await gateway.submit_many(submissions)
    assert outcomes == [Accepted(code="200")] * 3
    assert sandbox.accepted() == {"s": keys}


async def test_head_that_is_refused_ends_the_prefix_that_is_accepted(sandbox):
    first, second, third = heads(fencing_token=2)
    async with http_gateway(f"{sandbox.url}/fenced", guarantee="fenced") as gateway:
        sandbox.set_faults("fenced", refuse_rate=1)
        await gateway.submit(second._replace(fencing_token=7))
        sandbox.set_faults()
        outcomes = await gateway.submit_many([first, second, third])
    assert outcomes == [Accepted(code="200")]
    assert str(first.submission_key) in sandbox.effect_counts("fenced")
    assert str(third.submission_key) not in sandbox.effect_counts("fenced")


async def test_resent_heads_have_one_effect_each_at_a_keyed_gateway(sandbox):
    submissions = heads()
    async with http_gateway(f"{sandbox.url}/keyed") as gateway:
        sandbox.set_faults("keyed", lost_response_rate=1)
        lost = await gateway.submit_many(submissions)
        sandbox.set_faults("keyed")
        await gateway.submit(submissions[0])
        again = await gateway.submit_many(submissions[1:])
    assert [type(one) for one in lost] == [Unknown] * 3
    assert [type(one) for one in again] == [Accepted] * 2
    assert set(sandbox.effect_counts("keyed").values()) == {1}


@pytest.mark.parametrize("fault", ["refuse_rate", "throttle_rate"])
async def test_busy_gateway_answers_for_the_first_of_several_heads(sandbox, fault):
    sandbox.set_faults("keyed", retry_after_seconds=7, **{fault: 1})
    async with http_gateway(f"{sandbox.url}/keyed") as gateway:
        [outcome] = await gateway.submit_many(heads())
    assert isinstance(outcome, Retryable)
    assert (outcome.is_saturated, outcome.retry_after_seconds) == (True, 7)


async def test_gateway_that_refuses_the_sender_defers_the_first_of_several_heads(sandbox):
    sandbox.set_faults("keyed", unauthorized_rate=1)
    async with http_gateway(f"{sandbox.url}/keyed") as gateway:
        [outcome] = await gateway.submit_many(heads())
    assert isinstance(outcome, Deferred)
    assert sandbox.effects("keyed").effects == 0


async def test_heads_that_are_refused_together_leave_the_choice_to_the_executor(sandbox):
    sandbox.set_faults("keyed", reject_rate=1)
    async with http_gateway(f"{sandbox.url}/keyed") as gateway:
        assert list(await gateway.submit_many(heads())) == []
        [alone] = await gateway.submit_many(heads(1))
    assert isinstance(alone, Rejected)


async def test_gateway_that_cannot_be_reached_answers_for_the_first():
    async with http_gateway("http://127.0.0.1:9/") as gateway:
        [outcome] = await gateway.submit_many(heads())
    assert isinstance(outcome, Deferred)


@pytest.mark.parametrize(("taken", "count"), [(1, 1), (2, 2), (3, 3)])
async def test_gateway_says_how_many_of_the_heads_it_took(taken, count):
    outcomes, _ = await outcomes_of(200, {"accepted": taken}, heads())
    assert [type(one) for one in outcomes] == [Accepted] * count
    submissions = heads()
    outcomes, _ = await outcomes_of(202, {"accepted": taken, "reference": "r"}, submissions)
    assert [type(one) for one in outcomes] == [Submitted] * count
    assert all(
        one.reference == str(submission.submission_key)
        for one, submission in zip(outcomes, submissions, strict=False)
    ), "each is asked for by its key"


@pytest.mark.parametrize("taken", [0, -1, 4, True, "2", 1.5, None])
async def test_number_of_accepted_heads_that_makes_no_sense_is_unknown(taken):
    outcomes, _ = await outcomes_of(200, {"accepted": taken}, heads())
    assert outcomes == [Unknown(reason="accepted_unclear", code="200")] * 3


async def test_array_has_the_key_of_each_entry_and_a_signature_over_the_whole():
    submissions = heads(2, attempt_no=4)
    terms = {"signing_secret_env": "SIGNING", "environment": {"SIGNING": SECRET}}
    _, [request] = await outcomes_of(200, {}, submissions, **terms)
    _, [again] = await outcomes_of(200, {}, submissions, **terms)
    head, _, body = request.partition(b"\r\n\r\n")
    sent = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert json.loads(body) == [
        {
            "idempotency_key": str(one.submission_key),
            "fencing_token": 4,
            "attempt": 4,
            "payload": {"number": n},
        }
        for n, one in enumerate(submissions)
    ]
    assert "Idempotency-Key" not in sent
    Webhook(SECRET).verify(body.decode(), sent)
    assert f"webhook-id: {sent['webhook-id']}".encode() in again, "a resend has the same id"


async def test_opaque_body_is_sent_alone_and_ends_an_array(sandbox):
    opaque = make_submission(payload=None, body=b"x", content_type="x/y")
    async with http_gateway(f"{sandbox.url}/keyed") as gateway:
        assert len(await gateway.submit_many([*heads(2), opaque])) == 2
        assert len(await gateway.submit_many([opaque, *heads(2)])) == 1
    assert sandbox.effects("keyed").effects == 3


async def test_heads_of_which_one_is_not_trusted_are_not_sent(sandbox):
    first, second = heads(2)
    async with http_gateway(f"{sandbox.url}/keyed") as gateway:
        with pytest.raises(TrustEnded):
            await gateway.submit_many([first, second._replace(permit=lambda: False)])
    assert list(sandbox.requests()) == []

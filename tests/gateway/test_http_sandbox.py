"""The HTTP gateway against the sandbox: what each class of gateway makes possible."""

from __future__ import annotations

from uuid import uuid4

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
from leasehold.sandbox import Sandbox
from tests.support.engine import until
from tests.support.http_gateways import RawServer, http_gateway, make_submission
from tests.support.passing_time import pass_time

CALL_SECONDS = 30


@pytest.fixture
async def sandbox():
    async with Sandbox(seed=1) as sandbox:
        yield sandbox


def gateway_of(sandbox, guarantee, **changes):
    lookup = {} if guarantee == "blind" else {"lookup_url": f"{sandbox.url}/{guarantee}/{{key}}"}
    return http_gateway(f"{sandbox.url}/{guarantee}", guarantee=guarantee, **(lookup | changes))


@pytest.mark.parametrize("guarantee", ["keyed", "fenced", "lookup", "blind"])
async def test_successful_submission_is_accepted_with_its_reference(sandbox, guarantee):
    async with gateway_of(sandbox, guarantee) as gateway:
        outcome = await gateway.submit(make_submission())
    assert outcome == Accepted(reference=f"{guarantee}-1", code="200")
    assert sandbox.effects(guarantee).effects == 1


@pytest.mark.parametrize(
    ("guarantee", "effects"), [("keyed", 1), ("fenced", 1), ("lookup", 2), ("blind", 2)]
)
async def test_resend_after_a_lost_response_doubles_only_without_key_or_fence(
    sandbox, guarantee, effects
):
    key = uuid4()
    async with gateway_of(sandbox, guarantee) as gateway:
        sandbox.set_faults(lost_response_rate=1)
        lost = await gateway.submit(make_submission(key=key, attempt_no=1))
        assert isinstance(lost, Unknown)
        sandbox.set_faults()
        again = await gateway.submit(make_submission(key=key, attempt_no=2))
        assert isinstance(again, Accepted)
    assert sandbox.effect_counts(guarantee)[str(key)] == effects
    assert sandbox.effects(guarantee).doubled_keys == (1 if effects > 1 else 0)
    requests = sandbox.requests()
    assert [(one.attempt_no, one.status) for one in requests] == [(1, None), (2, 200)]
    assert [one.had_effect for one in requests] == [True, effects == 2]


async def test_paused_executor_that_sends_an_old_fencing_token_is_refused(sandbox):
    key = uuid4()
    async with gateway_of(sandbox, "fenced") as gateway:
        sandbox.set_faults("fenced", refuse_rate=1)
        await gateway.submit(make_submission(key=key, fencing_token=7))
        sandbox.set_faults()
        stale = await gateway.submit(make_submission(key=key, fencing_token=6))
    assert isinstance(stale, Unknown)
    assert stale.code == "409"
    assert sandbox.effects("fenced").effects == 0


async def test_lost_request_is_unknown_too_but_had_no_effect(sandbox):
    sandbox.set_faults(lost_request_rate=1)
    key = uuid4()
    async with gateway_of(sandbox, "lookup") as gateway:
        assert isinstance(await gateway.submit(make_submission(key=key)), Unknown)
        assert isinstance(await gateway.lookup(make_submission(key=key)), NotFound)
    assert sandbox.effects().effects == 0


async def test_refused_and_throttled_calls_carry_retry_after(sandbox):
    async with gateway_of(sandbox, "keyed") as gateway:
        for settings in ({"refuse_rate": 1}, {"throttle_rate": 1}):
            sandbox.set_faults("keyed", retry_after_seconds=7, **settings)
            outcome = await gateway.submit(make_submission())
            assert isinstance(outcome, Retryable)
            assert (outcome.is_saturated, outcome.retry_after_seconds) == (True, 7)
    assert sandbox.effects().effects == 0


@pytest.mark.parametrize(
    ("rate", "code"), [("unauthorized_rate", "401"), ("forbidden_rate", "403")]
)
async def test_sender_that_is_refused_learns_nothing_about_its_submissions(sandbox, rate, code):
    sandbox.set_faults(**{rate: 1})
    submission = make_submission()
    async with gateway_of(sandbox, "lookup") as gateway:
        outcome = await gateway.submit(submission)
        answer = await gateway.lookup(submission)
    assert isinstance(outcome, Deferred)
    assert isinstance(answer, Unknown)
    assert outcome.code == answer.code == code
    assert sandbox.effects().effects == 0


async def test_rejected_submission_is_rejected_when_looked_up(sandbox):
    sandbox.set_faults(reject_rate=1)
    submission = make_submission()
    async with gateway_of(sandbox, "lookup") as gateway:
        assert isinstance(await gateway.submit(submission), Rejected)
        assert isinstance(await gateway.lookup(submission), Rejected)


async def submit_in_vain(sandbox, name, gateway, submission):
    """Let the time of the call run out when the sandbox has the request."""
    injector = sandbox._injectors[name]
    draw = injector.draw

    def draw_and_pass_time():
        pass_time(CALL_SECONDS)
        return draw()

    injector.draw = draw_and_pass_time
    return await gateway.submit(submission)


async def test_late_effect_happens_after_the_call_timed_out(sandbox):
    sandbox.set_faults("lookup", late_rate=1, late_seconds=3600)
    submission = make_submission()
    async with gateway_of(sandbox, "lookup", call_timeout_seconds=CALL_SECONDS) as gateway:
        outcome = await submit_in_vain(sandbox, "lookup", gateway, submission)
        assert isinstance(outcome, Unknown)
        assert isinstance(await gateway.lookup(submission), NotFound)
        pass_time(3600)
        await until(lambda: sandbox.effects("lookup").effects)
        assert isinstance(await gateway.lookup(submission), Accepted)


async def test_early_not_found_denies_an_effect_that_happened(sandbox):
    sandbox.set_faults("lookup", early_not_found_rate=1)
    submission = make_submission()
    async with gateway_of(sandbox, "lookup") as gateway:
        await gateway.submit(submission)
        assert isinstance(await gateway.lookup(submission), NotFound)
        assert sandbox.requests()[-1].remark == "early"
        sandbox.set_faults()
        assert await gateway.lookup(submission) == Accepted(reference="lookup-1", code="200")


async def test_pending_submission_is_confirmed_later(sandbox):
    sandbox.set_faults("keyed", pending_seconds=600)
    submission = make_submission()
    async with gateway_of(sandbox, "keyed") as gateway:
        outcome = await gateway.submit(submission)
        assert isinstance(outcome, Submitted)
        assert outcome.reference == "keyed-1"
        assert isinstance(await gateway.lookup(submission), Submitted)
        pass_time(600)
        assert isinstance(await gateway.lookup(submission), Accepted)


async def test_lookup_without_a_lookup_url_is_unknown(sandbox):
    async with gateway_of(sandbox, "blind") as gateway:
        answer = await gateway.lookup(make_submission())
    assert answer == Unknown(reason="no_lookup", detail="the contract has no lookup_url")


async def test_lookup_that_cannot_connect_is_unknown(sandbox):
    async with gateway_of(sandbox, "lookup") as gateway:
        await sandbox.stop()
        assert isinstance(await gateway.lookup(make_submission()), Unknown)


async def test_body_arrives_unchanged_with_its_content_type():
    async def act(_reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    body = bytes(range(256))
    async with RawServer(act).running() as server, http_gateway(server.url) as gateway:
        await gateway.submit(make_submission(payload=None, body=body, content_type="x/y"))
        [request] = server.requests
    head, _, sent = request.partition(b"\r\n\r\n")
    assert sent == body
    assert b"Content-Type: x/y" in head

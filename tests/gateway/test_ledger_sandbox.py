"""The ledger gateway against the sandbox: each status, each fault, and several batches at once."""

from __future__ import annotations

import json

import pytest

from leasehold.domain.intent import JsonDocument
from leasehold.domain.outcome import (
    Accepted,
    Deferred,
    NotFound,
    Rejected,
    Retryable,
    Submitted,
    Unknown,
)
from leasehold.gateway.errors import TrustEnded
from leasehold.gateway.protocol import LookupBatcher, SubmissionBatcher
from leasehold.sandbox import Sandbox
from tests.support.engine import until
from tests.support.http_gateways import (
    batch_id,
    http_gateway,
    ledger_gateway,
    make_batch,
    make_submission,
)
from tests.support.passing_time import pass_time

A, B, C = (make_batch(name, stream="account/ü 1") for name in "abc")


@pytest.fixture
async def sandbox():
    async with Sandbox(seed=1) as sandbox:
        yield sandbox


def gateway_of(sandbox, **changes):
    return ledger_gateway(f"{sandbox.url}/ledger", **changes)


def submissions(sandbox):
    return [one for one in sandbox.requests() if one.kind == "submission"]


async def test_taken_batch_is_submitted_under_its_id_and_asked_for_later(sandbox):
    async with gateway_of(sandbox, ask_after_seconds=7) as gateway:
        outcome = await gateway.submit(A)
    assert outcome == Submitted(reference=batch_id("a"), ask_after_seconds=7, code="202")
    [request] = sandbox.requests()
    assert (request.key, request.status, request.had_effect) == (batch_id("a"), 202, True)


async def test_status_of_a_batch_moves_from_pending_over_valid_to_committed(sandbox):
    sandbox.set_faults("ledger", pending_seconds=600)
    codes = []
    async with gateway_of(sandbox) as gateway:
        await gateway.submit(A)
        while not isinstance(answer := await gateway.lookup(A), Accepted):
            assert isinstance(answer, Submitted)
            assert answer.reference == batch_id("a")
            codes.append(answer.code)
            pass_time(50)
    assert answer == Accepted(reference=batch_id("a"), code="COMMITTED")
    assert sorted(set(codes)) == ["PENDING", "VALID"]
    assert codes == sorted(codes), "PENDING comes before VALID"


async def test_invalid_batch_is_rejected_with_the_message_of_the_ledger(sandbox):
    sandbox.set_faults("ledger", invalid_rate=1)
    async with gateway_of(sandbox) as gateway:
        assert isinstance(await gateway.submit(A), Submitted)
        answer = await gateway.lookup(A)
        again = await gateway.submit(A)
    assert answer == Rejected(
        reason="invalid_batch",
        reference=batch_id("a"),
        code="INVALID",
        detail="found invalid by the sandbox",
    )
    assert isinstance(again, Submitted), "the ledger takes it and stays with its status"
    assert sandbox.effects("ledger").effects == 0


async def test_evicted_batch_is_not_found_and_its_resend_is_committed(sandbox):
    sandbox.set_faults("ledger", evict_rate=1)
    async with gateway_of(sandbox) as gateway:
        assert isinstance(await gateway.submit(A), Submitted)
        assert isinstance(await gateway.lookup(A), NotFound)
        sandbox.set_faults("ledger")
        assert isinstance(await gateway.submit(A), Submitted)
        assert isinstance(await gateway.lookup(A), Accepted)
    assert sandbox.effect_counts("ledger") == {batch_id("a"): 1}
    assert [one.remark for one in submissions(sandbox)] == ["evicted", ""]


async def test_batch_that_is_evicted_later_is_pending_until_its_block(sandbox):
    sandbox.set_faults("ledger", evict_rate=1, pending_seconds=600)
    async with gateway_of(sandbox) as gateway:
        await gateway.submit(A)
        answer = await gateway.lookup(A)
        await gateway.submit(A)
    assert isinstance(answer, Submitted)
    assert answer.code == "PENDING"
    assert submissions(sandbox)[-1].remark == "repeated"


async def test_batch_that_is_sent_twice_has_one_effect(sandbox):
    async with gateway_of(sandbox) as gateway:
        first = await gateway.submit(A)
        assert await gateway.submit(A) == first
    assert sandbox.effect_counts("ledger") == {batch_id("a"): 1}


async def test_validator_that_has_not_seen_the_batch_yet_answers_not_found(sandbox):
    async with gateway_of(sandbox) as gateway:
        await gateway.submit(A)
        sandbox.set_faults("ledger", early_not_found_rate=1)
        assert isinstance(await gateway.lookup(A), NotFound)


async def test_full_queue_of_the_ledger_pauses_the_target(sandbox):
    sandbox.set_faults("ledger", pending_max=1, pending_seconds=600, retry_after_seconds=7)
    async with gateway_of(sandbox) as gateway:
        assert isinstance(await gateway.submit(A), Submitted)
        full = await gateway.submit(B)
        again = await gateway.submit(A)
    assert isinstance(full, Retryable)
    assert (full.code, full.is_saturated, full.retry_after_seconds) == ("429", True, 7)
    assert isinstance(again, Submitted), "the ledger has it, so it takes no further place"
    assert sandbox.effect_counts("ledger") == {batch_id("a"): 1}


@pytest.mark.parametrize("fault", ["refuse_rate", "throttle_rate"])
async def test_refused_and_throttled_batches_are_resent_after_retry_after(sandbox, fault):
    sandbox.set_faults("ledger", retry_after_seconds=7, **{fault: 1})
    async with gateway_of(sandbox) as gateway:
        outcome = await gateway.submit(A)
    assert isinstance(outcome, Retryable)
    assert (outcome.is_saturated, outcome.retry_after_seconds) == (True, 7)
    assert sandbox.effects("ledger").effects == 0


async def test_batch_that_the_ledger_cannot_read_is_rejected(sandbox):
    sandbox.set_faults("ledger", reject_rate=1)
    async with gateway_of(sandbox) as gateway:
        outcome = await gateway.submit(A)
        assert isinstance(await gateway.lookup(A), NotFound)
    assert isinstance(outcome, Rejected)
    assert (outcome.code, outcome.reference) == ("400", batch_id("a"))
    assert "rejected by the sandbox" in outcome.detail


@pytest.mark.parametrize(
    ("fault", "answer"), [("lost_response_rate", Accepted), ("lost_request_rate", NotFound)]
)
async def test_batch_whose_answer_is_lost_is_found_by_its_id_or_not(sandbox, fault, answer):
    sandbox.set_faults("ledger", **{fault: 1})
    async with gateway_of(sandbox) as gateway:
        assert isinstance(await gateway.submit(A), Unknown)
        assert isinstance(await gateway.lookup(A), answer)
    assert [one.status for one in submissions(sandbox)] == [None]


async def test_batch_that_arrives_after_the_timeout_is_found_later(sandbox):
    sandbox.set_faults("ledger", late_rate=1, late_seconds=3600)
    async with gateway_of(sandbox, call_timeout_seconds=30) as gateway:
        injector = sandbox._injectors["ledger"]
        draw = injector.draw

        def draw_and_pass_time():
            pass_time(30)
            return draw()

        injector.draw = draw_and_pass_time
        outcome = await gateway.submit(A)
        assert isinstance(outcome, Unknown)
        assert outcome.reason == "timeout"
        assert isinstance(await gateway.lookup(A), NotFound)
        pass_time(3600)
        await until(lambda: submissions(sandbox))
        assert isinstance(await gateway.lookup(A), Accepted)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"body": None, "payload": make_submission().payload}, "no_batch"),
        ({"body": b""}, "no_batch"),
        ({"metadata": None}, "batch_id_invalid"),
        ({"metadata": make_submission().payload}, "batch_id_invalid"),
    ],
)
async def test_intent_without_a_batch_or_its_id_is_rejected_and_not_sent(sandbox, changes, reason):
    bad = make_batch("a")._replace(**changes)
    async with gateway_of(sandbox) as gateway:
        outcome = await gateway.submit(bad)
        assert await gateway.submit_many([bad, B]) == [outcome]
        if reason == "batch_id_invalid":
            assert isinstance(await gateway.lookup(bad), NotFound)
    assert isinstance(outcome, Rejected)
    assert outcome.reason == reason
    assert list(sandbox.requests()) == []


@pytest.mark.parametrize(
    "given", ["", "a" * 127, "A" * 128, "a" * 129, "g" * 128, "a" * 127 + "\n", 7, None]
)
async def test_id_that_would_spoil_a_request_about_others_is_refused(sandbox, given):
    document = JsonDocument(json.dumps({"batch_id": given}).encode())
    async with gateway_of(sandbox) as gateway:
        await gateway.submit(B)
        answers = await gateway.lookup_many([make_batch("a", metadata=document), B])
    assert isinstance(answers[0], NotFound)
    assert isinstance(answers[1], Accepted)


async def test_many_lookups_answer_for_each_batch_in_the_order_of_the_question(sandbox):
    async with gateway_of(sandbox) as gateway:
        await gateway.submit(A)
        sandbox.set_faults("ledger", invalid_rate=1)
        await gateway.submit(B)
        sandbox.set_faults("ledger", pending_seconds=600)
        await gateway.submit(C)
        answers = await gateway.lookup_many([C, make_batch("d"), A, B, A])
    assert [type(one) for one in answers] == [Submitted, NotFound, Accepted, Rejected, Accepted]


async def test_as_many_lookups_as_are_allowed_fit_into_one_request(sandbox):
    batches = [make_batch(str(number)) for number in range(50)]
    async with gateway_of(sandbox) as gateway:
        assert gateway.lookups_max == len(batches)
        for batch in batches:
            await gateway.submit(batch)
        answers = await gateway.lookup_many(batches)
    assert [one.reference for one in answers] == [batch_id(str(n)) for n in range(50)]


async def test_lookups_of_a_ledger_that_is_gone_are_all_unknown(sandbox):
    async with gateway_of(sandbox) as gateway:
        await sandbox.stop()
        answers = await gateway.lookup_many([A, B])
    assert [type(one) for one in answers] == [Unknown, Unknown]


async def test_consecutive_heads_are_taken_together_and_in_order(sandbox):
    async with gateway_of(sandbox, submissions_max=3, stream_header="Leasehold-Stream") as gateway:
        assert gateway.submissions_max == 3
        outcomes = await gateway.submit_many([B, A])
        [third] = await gateway.submit_many([C])
    assert [type(one) for one in outcomes] == [Submitted, Submitted]
    assert [one.reference for one in (*outcomes, third)] == [batch_id(name) for name in "bac"]
    assert sandbox.accepted() == {"account/ü 1": [batch_id(name) for name in "bac"]}


async def test_batches_that_are_refused_together_leave_the_choice_to_the_executor(sandbox):
    sandbox.set_faults("ledger", reject_rate=1)
    async with gateway_of(sandbox) as gateway:
        assert list(await gateway.submit_many([A, B])) == []
        [alone] = await gateway.submit_many([A])
    assert isinstance(alone, Rejected)


@pytest.mark.parametrize("fault", ["refuse_rate", "throttle_rate"])
async def test_busy_ledger_answers_for_the_first_of_several_batches(sandbox, fault):
    sandbox.set_faults("ledger", **{fault: 1})
    async with gateway_of(sandbox) as gateway:
        [outcome] = await gateway.submit_many([A, B])
    assert isinstance(outcome, Retryable)
    assert outcome.is_saturated


async def test_ledger_that_refuses_the_sender_defers_batches_and_tells_no_status(sandbox):
    sandbox.set_faults("ledger", forbidden_rate=1)
    async with gateway_of(sandbox) as gateway:
        [outcome] = await gateway.submit_many([A, B])
        answers = await gateway.lookup_many([A, B])
    assert isinstance(outcome, Deferred)
    assert [(type(one), one.code) for one in answers] == [(Unknown, "403")] * 2
    assert sandbox.effects("ledger").effects == 0


async def test_several_batches_that_would_overfill_the_queue_are_not_taken_at_all(sandbox):
    sandbox.set_faults("ledger", pending_max=1, pending_seconds=600)
    async with gateway_of(sandbox) as gateway:
        [outcome] = await gateway.submit_many([A, B])
    assert isinstance(outcome, Retryable)
    assert sandbox.effects("ledger").effects == 0


async def test_several_batches_whose_answer_is_lost_are_all_unknown(sandbox):
    sandbox.set_faults("ledger", lost_response_rate=1)
    async with gateway_of(sandbox) as gateway:
        outcomes = await gateway.submit_many([A, B])
        answers = await gateway.lookup_many([A, B])
    assert [type(one) for one in outcomes] == [Unknown, Unknown]
    assert [type(one) for one in answers] == [Accepted, Accepted]


async def test_batches_behind_one_that_cannot_be_sent_are_not_sent(sandbox):
    async with gateway_of(sandbox) as gateway:
        outcomes = await gateway.submit_many([A, make_batch("b", body=b""), C])
    assert [type(one) for one in outcomes] == [Submitted]
    assert sandbox.effect_counts("ledger") == {batch_id("a"): 1}


async def test_several_batches_of_which_one_is_not_trusted_are_not_sent(sandbox):
    untrusted = B._replace(permit=lambda: False)
    async with gateway_of(sandbox) as gateway:
        with pytest.raises(TrustEnded):
            await gateway.submit_many([A, untrusted])
        with pytest.raises(TrustEnded):
            await gateway.lookup_many([untrusted])
        assert list(sandbox.requests()) == []
        answers = await gateway.lookup_many([untrusted, A])
    assert [type(one) for one in answers] == [NotFound, NotFound], "a lookup serves all who ask"


async def test_gateway_tells_which_of_its_calls_take_several_at_once(sandbox):
    async with gateway_of(sandbox) as ledger, http_gateway(f"{sandbox.url}/keyed") as http:
        assert isinstance(ledger, LookupBatcher)
        assert isinstance(ledger, SubmissionBatcher)
        assert isinstance(http, SubmissionBatcher)
        assert (http.submissions_max, ledger.submissions_max) == (1, 1)
        assert not isinstance(http, LookupBatcher)


async def test_stream_is_told_to_an_http_gateway_whose_contract_names_a_header(sandbox):
    for name, stream in (("Leasehold-Stream", "order 7"), ("Leasehold-Stream", None), (None, "x")):
        async with http_gateway(f"{sandbox.url}/keyed", stream_header=name) as gateway:
            await gateway.submit(make_submission(stream=stream))
    assert [one.stream for one in sandbox.requests()] == ["order 7", "", ""]

"""enqueue_many: each intent gets one verdict, and an invalid one does not fail its batch."""

from __future__ import annotations

import json
from unittest.mock import Mock

import httpx
import pytest

from leasehold.client import bulk as module
from leasehold.client.bulk import BulkEnqueue
from leasehold.client.responses import BulkResult
from leasehold.client.retry import RetryBudget
from leasehold.domain.errors import ApiError, ApiUnavailable, InvalidArgument
from leasehold.domain.intent import NewIntent
from leasehold.domain.verdict import BatchVerdict


def new(number, **more):
    return NewIntent(**{"target": "sms", "payload": number, "stream": "a"} | more)


def sent(call):
    return json.loads(call.body)["intents"]


def verdicts(*names):
    return tuple(
        BulkResult(ordinal=n, verdict=BatchVerdict(name), intent_id=None, problem=None)
        for n, name in enumerate(names, start=1)
    )


def run(bulk, answer):
    """Play the API: `answer` decides on what was sent. Returns the payloads of each request."""
    made = []
    while (retried := bulk.next_request()) is not None:
        entries = sent(retried.request)
        made.append([one.get("payload") for one in entries])
        try:
            bulk.record(verdicts(*answer(entries)))
        except InvalidArgument as error:
            bulk.record_error(error)
    return made


def accepted(entries):
    return ["accepted"] * len(entries)


def test_batches_are_as_large_as_the_api_allows_and_ordinals_continue():
    bulk = BulkEnqueue((new(n) for n in range(2500)), 30)
    assert [len(one) for one in run(bulk, accepted)] == [1000, 1000, 500]
    assert [one.ordinal for one in bulk.results] == list(range(1, 2501))


def test_no_intents_means_no_request():
    assert BulkEnqueue([], 30).next_request() is None


def test_batch_is_bounded_in_bytes_too(monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES_MAX", 1000)
    made = run(BulkEnqueue([new("x" * 300) for _ in range(5)] + [new("y" * 2000)], 30), accepted)
    assert [len(one) for one in made] == [2, 2, 1, 1]


def test_every_intent_has_a_key_and_keeps_it():
    keys = []

    def unavailable_once(entries):
        keys.append([one["idempotency_key"] for one in entries])
        return ["unavailable" if len(keys) == 1 else "accepted"] * len(entries)

    run(BulkEnqueue([new(1), new(2), new(3, idempotency_key="mine")], 30), unavailable_once)
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 3
    assert keys[0][2] == "mine"


def test_temporarily_rejected_intent_is_sent_again_before_later_ones(monkeypatch):
    monkeypatch.setattr(module, "BATCH_MAX", 2)
    full = {1, 2}

    def answer(entries):
        found = ["queue_full" if one["payload"] in full else "accepted" for one in entries]
        full.discard(entries[0]["payload"])
        return found

    bulk = BulkEnqueue([new(n) for n in (1, 2, 3, 4)], 30)
    assert run(bulk, answer) == [[1, 2], [1, 2], [2], [2], [3, 4]]
    assert {one.verdict for one in bulk.results} == {BatchVerdict.ACCEPTED}


def test_queue_that_stays_full_is_reported_after_the_retry_budget():
    bulk = BulkEnqueue([new(1), new(2)], 0)
    assert run(bulk, lambda _: ["queue_full", "accepted"]) == [[1, 2]]
    assert [one.verdict for one in bulk.results] == ["queue_full", "accepted"]


def test_refusal_after_a_lost_answer_is_reported_as_outcome_unknown():
    bulk = BulkEnqueue([new(1, idempotency_key="mine"), new(2), new(3)], 0)
    retried = bulk.next_request()
    with pytest.raises(ApiUnavailable):
        retried.pause_after_error(httpx.ReadError("cut"))
    bulk.record(verdicts("queue_full", "accepted", "invalid"))
    first, second, third = bulk.results
    assert first.verdict is third.verdict is BatchVerdict.UNAVAILABLE
    assert "got no answer, and the last one was refused: queue_full" in first.problem
    assert "idempotency key: 'mine'" in first.problem
    assert "refused: invalid" in third.problem
    assert second.verdict is BatchVerdict.ACCEPTED


def test_unknown_outcome_is_remembered_per_intent_across_batches(monkeypatch):
    monkeypatch.setattr(RetryBudget, "pause", pauses := Mock(side_effect=[0.0, None]))
    bulk = BulkEnqueue([new(1), new(2, idempotency_key="mine")], 30)
    answers = iter([["queue_full", "unavailable"], ["queue_full", "queue_full"]])
    assert run(bulk, lambda _: next(answers)) == [[1, 2], [1, 2]]
    assert pauses.call_count == 2
    assert [one.verdict for one in bulk.results] == ["queue_full", "unavailable"]
    assert "idempotency key: 'mine'" in bulk.results[1].problem


def test_rejection_of_a_batch_with_an_unknown_outcome_is_not_intake_full(monkeypatch):
    bulk = BulkEnqueue([new(1)], 30)
    bulk.next_request()
    bulk.record(verdicts("unavailable"))
    monkeypatch.setattr(RetryBudget, "pause", lambda *_: None)
    with pytest.raises(ApiUnavailable, match="an earlier try got no answer"):
        bulk.next_request().result(httpx.Response(429))


def test_invalid_intent_is_isolated_and_the_rest_of_its_batch_accepted():
    def answer(entries):
        if any(one["payload"] == "bad" for one in entries):
            raise InvalidArgument("this is nested too deeply")
        return accepted(entries)

    bulk = BulkEnqueue([new("bad" if n == 37 else n) for n in range(100)], 30)
    made = run(bulk, answer)
    assert len(made) < 20
    bad = [one for one in bulk.results if one.verdict is not BatchVerdict.ACCEPTED]
    assert [(one.ordinal, one.verdict, one.problem) for one in bad] == [
        (38, BatchVerdict.INVALID, "this is nested too deeply")
    ]
    assert len(bulk.results) == 100


def test_value_that_is_not_json_is_never_sent():
    bulk = BulkEnqueue([new(float("nan")), new(1), new(object())], 30)
    assert run(bulk, accepted) == [[1]]
    assert [one.verdict for one in bulk.results] == ["invalid", "accepted", "invalid"]
    assert "payload is not valid JSON" in bulk.results[0].problem


def test_batch_has_one_trace_context():
    traces = ["a", "a", None, "b"]
    bulk = BulkEnqueue([new(n, trace_context=one) for n, one in enumerate(traces)], 30)
    found = []
    while (retried := bulk.next_request()) is not None:
        found.append((retried.request.headers.get("traceparent"), len(sent(retried.request))))
        bulk.record(verdicts(*accepted(sent(retried.request))))
    assert found == [("a", 2), (None, 1), ("b", 1)]


def test_response_with_too_few_results_is_an_error():
    bulk = BulkEnqueue([new(1), new(2)], 30)
    bulk.next_request()
    with pytest.raises(ApiError, match="1 results") as caught:
        bulk.record(verdicts("accepted"))
    assert caught.value.outcome_unknown

"""Many intents in batches: each gets one verdict, and none fails its neighbours."""

from __future__ import annotations

import json
from unittest.mock import Mock

import httpx
import pytest

from leasehold.client import bulk as module
from leasehold.client.bulk import Handing
from leasehold.client.responses import Handed, HandedVerdict
from leasehold.client.retry import Patience
from leasehold.domain.errors import ApiError, ApiUnavailable, InvalidArgument
from leasehold.domain.intent import NewIntent


def new(number, **more):
    return NewIntent(**{"target": "sms", "payload": number, "stream": "a"} | more)


def sent(call):
    return json.loads(call.body)["intents"]


def verdicts(*names):
    return tuple(
        Handed(ordinal=n, verdict=HandedVerdict(name), intent_id=None, problem=None)
        for n, name in enumerate(names, start=1)
    )


def run(handing, answer):
    """Play the API: `answer` judges what was sent. Gives the payloads of each call."""
    made = []
    while (tries := handing.next_tries()) is not None:
        entries = sent(tries.call)
        made.append([one.get("payload") for one in entries])
        try:
            handing.saw(verdicts(*answer(entries)))
        except InvalidArgument as error:
            handing.refused(error)
    return made


def accepted(entries):
    return ["accepted"] * len(entries)


def test_batches_are_as_large_as_the_api_takes_and_ordinals_go_on():
    handing = Handing((new(n) for n in range(2500)), 30)
    assert [len(one) for one in run(handing, accepted)] == [1000, 1000, 500]
    assert [one.ordinal for one in handing.verdicts] == list(range(1, 2501))


def test_nothing_to_hand_in_is_no_call():
    assert Handing([], 30).next_tries() is None


def test_batch_is_bounded_in_bytes_too(monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES_MAX", 1000)
    made = run(Handing([new("x" * 300) for _ in range(5)] + [new("y" * 2000)], 30), accepted)
    assert [len(one) for one in made] == [2, 2, 1, 1]


def test_every_intent_has_a_key_and_keeps_it():
    keys = []

    def unavailable_once(entries):
        keys.append([one["idempotency_key"] for one in entries])
        return ["unavailable" if len(keys) == 1 else "accepted"] * len(entries)

    run(Handing([new(1), new(2), new(3, idempotency_key="mine")], 30), unavailable_once)
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 3
    assert keys[0][2] == "mine"


def test_what_is_refused_for_a_moment_goes_again_before_all_that_follows(monkeypatch):
    monkeypatch.setattr(module, "BATCH_MAX", 2)
    full = {1, 2}

    def answer(entries):
        found = ["queue_full" if one["payload"] in full else "accepted" for one in entries]
        full.discard(entries[0]["payload"])
        return found

    handing = Handing([new(n) for n in (1, 2, 3, 4)], 30)
    assert run(handing, answer) == [[1, 2], [1, 2], [2], [2], [3, 4]]
    assert {one.verdict for one in handing.verdicts} == {HandedVerdict.ACCEPTED}


def test_what_stays_full_beyond_the_patience_is_told_so():
    handing = Handing([new(1), new(2)], 0)
    assert run(handing, lambda _: ["queue_full", "accepted"]) == [[1, 2]]
    assert [one.verdict for one in handing.verdicts] == ["queue_full", "accepted"]


def test_full_queue_does_not_say_that_nothing_was_written_by_a_try_whose_answer_was_lost():
    handing = Handing([new(1, idempotency_key="mine"), new(2), new(3, priority=9)], 0)
    tries = handing.next_tries()
    with pytest.raises(ApiUnavailable):
        tries.pause_after_error(httpx.ReadError("cut"))
    handing.saw(verdicts("queue_full", "accepted", "invalid"))
    first, *others = handing.verdicts
    assert first.verdict is HandedVerdict.UNAVAILABLE
    assert "not answered" in first.problem
    assert "idempotency key 'mine'" in first.problem
    assert [one.verdict for one in others] == ["accepted", "invalid"]


def test_doubt_is_kept_over_batches_and_is_of_those_only_who_were_in_doubt(monkeypatch):
    monkeypatch.setattr(Patience, "pause", pauses := Mock(side_effect=[0.0, None]))
    handing = Handing([new(1), new(2, idempotency_key="mine")], 30)
    answers = iter([["queue_full", "unavailable"], ["queue_full", "queue_full"]])
    assert run(handing, lambda _: next(answers)) == [[1, 2], [1, 2]]
    assert pauses.call_count == 2
    assert [one.verdict for one in handing.verdicts] == ["queue_full", "unavailable"]
    assert "idempotency key 'mine'" in handing.verdicts[1].problem


def test_batch_with_a_doubt_in_it_that_is_refused_as_a_whole_is_no_refusal(monkeypatch):
    handing = Handing([new(1)], 30)
    handing.next_tries()
    handing.saw(verdicts("unavailable"))
    monkeypatch.setattr(Patience, "pause", lambda *_: None)
    with pytest.raises(ApiUnavailable, match="an earlier try was not answered"):
        handing.next_tries().answer(httpx.Response(429))


def test_one_that_makes_its_batch_unreadable_is_found_and_the_others_are_in():
    def answer(entries):
        if any(one["payload"] == "bad" for one in entries):
            raise InvalidArgument("this is nested too deeply")
        return accepted(entries)

    handing = Handing([new("bad" if n == 37 else n) for n in range(100)], 30)
    made = run(handing, answer)
    assert len(made) < 20
    bad = [one for one in handing.verdicts if one.verdict is not HandedVerdict.ACCEPTED]
    assert [(one.ordinal, one.verdict, one.problem) for one in bad] == [
        (38, HandedVerdict.INVALID, "this is nested too deeply")
    ]
    assert len(handing.verdicts) == 100


def test_what_is_no_json_is_never_sent():
    handing = Handing([new(float("nan")), new(1), new(object())], 30)
    assert run(handing, accepted) == [[1]]
    assert [one.verdict for one in handing.verdicts] == ["invalid", "accepted", "invalid"]
    assert "payload is no JSON" in handing.verdicts[0].problem


def test_each_batch_is_of_one_trace():
    traces = ["a", "a", None, "b"]
    handing = Handing([new(n, trace_context=one) for n, one in enumerate(traces)], 30)
    found = []
    while (tries := handing.next_tries()) is not None:
        found.append((tries.call.headers.get("traceparent"), len(sent(tries.call))))
        handing.saw(verdicts(*accepted(sent(tries.call))))
    assert found == [("a", 2), (None, 1), ("b", 1)]


def test_answer_with_too_few_verdicts_is_no_answer():
    handing = Handing([new(1), new(2)], 30)
    handing.next_tries()
    with pytest.raises(ApiError, match="1 verdicts"):
        handing.saw(verdicts("accepted"))

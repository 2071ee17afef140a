"""When a call is made again, and when that could do harm."""

from __future__ import annotations

import ssl
from uuid import uuid4

import httpx
import pytest

from leasehold.client import requests as calls
from leasehold.client.retry import (
    FIRST_PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    Patience,
    Tries,
)
from leasehold.domain.errors import ApiError, ApiUnavailable, IntakeFull
from leasehold.domain.intent import NewIntent

ID = uuid4()
ENQUEUE = calls.enqueue(NewIntent(target="sms", payload=1, idempotency_key="order-4711"))
READ = calls.get(ID)
CANCEL = calls.cancel(ID, "why")
LOST = [httpx.ReadError("cut"), httpx.ReadTimeout(""), httpx.RemoteProtocolError("disconnected")]
NOT_SENT = [httpx.ConnectError("refused"), httpx.ConnectTimeout(""), httpx.PoolTimeout("")]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def tries(clock):
    return lambda call: Tries(call, Patience(30.0, clock))


def refused(status, code=None, **headers):
    if code is None:
        return httpx.Response(status, text="Bad Gateway", headers=headers)
    kind = {"content-type": "application/problem+json"}
    return httpx.Response(status, json={"code": code, "detail": "no"}, headers=kind | headers)


@pytest.mark.parametrize("error", [*LOST, *NOT_SENT], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("call", [ENQUEUE, READ], ids=["enqueue", "get"])
def test_call_that_is_the_same_twice_is_made_again_after_any_failure(tries, call, error):
    assert 0 < tries(call).pause_after_error(error) <= FIRST_PAUSE_SECONDS


@pytest.mark.parametrize("error", LOST, ids=lambda one: type(one).__name__)
def test_intervention_whose_answer_was_lost_is_not_made_again(tries, error):
    with pytest.raises(ApiUnavailable, match="look at the intent before you try again"):
        tries(CANCEL).pause_after_error(error)


@pytest.mark.parametrize("error", NOT_SENT, ids=lambda one: type(one).__name__)
def test_intervention_that_reached_nobody_is_made_again(tries, error):
    assert tries(CANCEL).pause_after_error(error) > 0


@pytest.mark.parametrize(
    ("status", "code"), [(502, None), (503, None), (504, None), (503, "no_instance")]
)
def test_answer_of_nobody_who_knows_is_passing_only_for_what_may_be_repeated(tries, status, code):
    assert tries(ENQUEUE).pause_after(refused(status, code)) is not None
    assert tries(CANCEL).pause_after(refused(status, code)) is None


@pytest.mark.parametrize(
    ("status", "code"),
    [(429, "queue_full"), (429, None), (503, "intake_full"), (503, "overloaded")],
)
def test_refusal_that_wrote_nothing_is_passing_for_everything(tries, status, code):
    assert tries(CANCEL).pause_after(refused(status, code)) is not None


@pytest.mark.parametrize("status", [200, 201, 400, 401, 403, 404, 409, 413, 415, 422, 500])
def test_answer_that_will_not_change_is_the_answer(tries, status):
    assert tries(ENQUEUE).pause_after(refused(status)) is None


def test_pauses_grow_to_a_bound_and_end_with_the_patience(clock):
    patience = Patience(30.0, clock)
    pauses = []
    while (pause := patience.pause()) is not None:
        clock.now += pause
        pauses.append(pause)
    assert 6 <= len(pauses) <= 20
    assert max(pauses) <= PAUSE_SECONDS_MAX
    assert sum(pauses) < 30
    assert pauses[0] < pauses[3] < pauses[5]


def test_those_who_were_sent_away_together_do_not_come_back_together():
    assert len({Patience(30.0).pause(2.0) for _ in range(50)}) > 40


def test_server_that_asks_for_time_gets_it_or_nobody_waits_for_it(tries):
    pause = tries(ENQUEUE).pause_after(refused(503, "database_unavailable", **{"retry-after": "2"}))
    assert 2 <= pause <= 2.5
    asked = refused(503, "database_unavailable", **{"retry-after": "60"})
    assert tries(ENQUEUE).pause_after(asked) is None


def test_success_begins_the_patience_anew(clock):
    patience = Patience(1.0, clock)
    clock.now += 5
    assert patience.pause() is None
    patience.renew()
    assert patience.pause() <= FIRST_PAUSE_SECONDS


def test_certificate_that_proves_nothing_ends_the_call_at_once(tries):
    error = httpx.ConnectError("CERTIFICATE_VERIFY_FAILED")
    error.__cause__ = ssl.SSLCertVerificationError("self-signed")
    with pytest.raises(ApiUnavailable, match="CERTIFICATE"):
        tries(ENQUEUE).pause_after_error(error)


def test_request_that_cannot_be_sent_is_no_failure_of_the_api(tries):
    with pytest.raises(ApiError, match="cannot be sent") as caught:
        tries(ENQUEUE).pause_after_error(httpx.LocalProtocolError("Illegal header value"))
    assert not isinstance(caught.value, ApiUnavailable)


def test_last_failure_names_the_key_with_which_to_repeat(clock):
    tries = Tries(ENQUEUE, Patience(0.0, clock))
    with pytest.raises(ApiUnavailable, match="idempotency key 'order-4711'"):
        tries.pause_after_error(LOST[0])
    with pytest.raises(
        ApiUnavailable, match=r"answered 503.*idempotency key 'order-4711'"
    ) as caught:
        ENQUEUE.answer(refused(503, "database_unavailable"))
    assert caught.value.status == 503


LOST_FIRST = {
    "no answer": lambda tries: tries.pause_after_error(LOST[0]),
    "answer of nobody who knows": lambda tries: tries.pause_after(refused(502)),
    "database away": lambda tries: tries.pause_after(refused(503, "database_unavailable")),
}


@pytest.mark.parametrize("lose", LOST_FIRST.values(), ids=LOST_FIRST.keys())
@pytest.mark.parametrize(("status", "code"), [(429, "queue_full"), (503, "overloaded")])
def test_refusal_after_a_try_that_nobody_knows_of_names_the_key(tries, lose, status, code):
    made = tries(ENQUEUE)
    lose(made)
    made.pause_after(refused(status, code))
    with pytest.raises(
        ApiUnavailable, match=r"earlier try was not answered.*idempotency key 'order-4711'"
    ) as caught:
        made.answer(refused(status, code))
    assert caught.value.status == status


def test_nobody_there_after_a_try_that_nobody_knows_of_names_the_key(clock):
    made = Tries(ENQUEUE, Patience(1.0, clock))
    made.pause_after(refused(504))
    clock.now += 5
    with pytest.raises(ApiUnavailable, match="idempotency key 'order-4711'"):
        made.pause_after_error(NOT_SENT[0])


def test_refusal_where_no_try_can_have_written_anything_says_so(tries):
    made = tries(ENQUEUE)
    made.pause_after_error(NOT_SENT[0])
    made.pause_after(refused(503, "intake_full"))
    with pytest.raises(IntakeFull):
        made.answer(refused(429, "queue_full"))
    asked = tries(READ)
    asked.pause_after_error(LOST[0])
    with pytest.raises(IntakeFull):
        asked.answer(refused(429, "too_many"))

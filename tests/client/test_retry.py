"""When a request is sent again, and when that would not be safe."""

from __future__ import annotations

import ssl
from uuid import uuid4

import httpx
import pytest

from leasehold.client import requests
from leasehold.client.retry import (
    FIRST_PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    RetriedRequest,
    RetryBudget,
)
from leasehold.domain.errors import ApiError, ApiUnavailable, IntakeFull
from leasehold.domain.intent import NewIntent

ID = uuid4()
ENQUEUE = requests.enqueue(NewIntent(target="sms", payload=1, idempotency_key="order-4711"))
READ = requests.get(ID)
CANCEL = requests.cancel(ID, "why")
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
    return lambda call: RetriedRequest(call, RetryBudget(30.0, clock))


def refused(status, code=None, **headers):
    if code is None:
        return httpx.Response(status, text="Bad Gateway", headers=headers)
    kind = {"content-type": "application/problem+json"}
    return httpx.Response(status, json={"code": code, "detail": "no"}, headers=kind | headers)


@pytest.mark.parametrize("error", [*LOST, *NOT_SENT], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("call", [ENQUEUE, READ], ids=["enqueue", "get"])
def test_idempotent_request_is_repeated_after_any_failure(tries, call, error):
    assert 0 < tries(call).pause_after_error(error) <= FIRST_PAUSE_SECONDS


@pytest.mark.parametrize("error", LOST, ids=lambda one: type(one).__name__)
def test_operation_whose_answer_was_lost_is_not_repeated(tries, error):
    with pytest.raises(ApiUnavailable, match="Look at the intent before you try again"):
        tries(CANCEL).pause_after_error(error)


@pytest.mark.parametrize("error", NOT_SENT, ids=lambda one: type(one).__name__)
def test_operation_that_was_never_sent_is_repeated(tries, error):
    assert tries(CANCEL).pause_after_error(error) > 0


@pytest.mark.parametrize(
    ("status", "code"), [(502, None), (503, None), (504, None), (503, "no_instance")]
)
def test_response_of_a_proxy_is_retried_only_for_idempotent_requests(tries, status, code):
    assert tries(ENQUEUE).pause_after(refused(status, code)) is not None
    assert tries(CANCEL).pause_after(refused(status, code)) is None


@pytest.mark.parametrize(
    ("status", "code"),
    [(429, "queue_full"), (429, None), (503, "intake_full"), (503, "overloaded")],
)
def test_rejection_that_wrote_nothing_is_retried_for_every_request(tries, status, code):
    assert tries(CANCEL).pause_after(refused(status, code)) is not None


@pytest.mark.parametrize("status", [200, 201, 400, 401, 403, 404, 409, 413, 415, 422, 500])
def test_permanent_response_is_not_retried(tries, status):
    assert tries(ENQUEUE).pause_after(refused(status)) is None


def test_pauses_grow_to_a_maximum_and_end_with_the_budget(clock):
    budget = RetryBudget(30.0, clock)
    pauses = []
    while (pause := budget.pause()) is not None:
        clock.now += pause
        pauses.append(pause)
    assert 6 <= len(pauses) <= 20
    assert max(pauses) <= PAUSE_SECONDS_MAX
    assert sum(pauses) < 30
    assert pauses[0] < pauses[3] < pauses[5]


def test_clients_rejected_together_do_not_return_together():
    assert len({RetryBudget(30.0).pause(2.0) for _ in range(50)}) > 40


def test_retry_after_is_respected_if_it_fits_into_the_budget(tries):
    pause = tries(ENQUEUE).pause_after(refused(503, "database_unavailable", **{"retry-after": "2"}))
    assert 2 <= pause <= 2.5
    asked = refused(503, "database_unavailable", **{"retry-after": "60"})
    assert tries(ENQUEUE).pause_after(asked) is None


def test_success_resets_the_budget(clock):
    budget = RetryBudget(1.0, clock)
    clock.now += 5
    assert budget.pause() is None
    budget.reset()
    assert budget.pause() <= FIRST_PAUSE_SECONDS


def test_untrusted_certificate_is_not_retried(tries):
    error = httpx.ConnectError("CERTIFICATE_VERIFY_FAILED")
    error.__cause__ = ssl.SSLCertVerificationError("self-signed")
    with pytest.raises(ApiUnavailable, match="CERTIFICATE"):
        tries(ENQUEUE).pause_after_error(error)


def test_request_that_cannot_be_sent_is_not_reported_as_an_outage(tries):
    with pytest.raises(ApiError, match="cannot be sent") as caught:
        tries(ENQUEUE).pause_after_error(httpx.LocalProtocolError("Illegal header value"))
    assert not isinstance(caught.value, ApiUnavailable)


def test_last_failure_names_the_idempotency_key(clock):
    tries = RetriedRequest(ENQUEUE, RetryBudget(0.0, clock))
    with pytest.raises(ApiUnavailable, match="idempotency key: 'order-4711'"):
        tries.pause_after_error(LOST[0])
    with pytest.raises(
        ApiUnavailable, match=r"answered 503.*idempotency key: 'order-4711'"
    ) as caught:
        ENQUEUE.result(refused(503, "database_unavailable"))
    assert caught.value.status == 503


LOST_FIRST = {
    "no answer": lambda tries: tries.pause_after_error(LOST[0]),
    "response of a proxy": lambda tries: tries.pause_after(refused(502)),
    "database away": lambda tries: tries.pause_after(refused(503, "database_unavailable")),
}


@pytest.mark.parametrize("lose", LOST_FIRST.values(), ids=LOST_FIRST.keys())
@pytest.mark.parametrize(("status", "code"), [(429, "queue_full"), (503, "overloaded")])
def test_rejection_after_an_unanswered_try_names_the_idempotency_key(tries, lose, status, code):
    made = tries(ENQUEUE)
    lose(made)
    made.pause_after(refused(status, code))
    with pytest.raises(
        ApiUnavailable, match=r"earlier try got no answer.*idempotency key: 'order-4711'"
    ) as caught:
        made.result(refused(status, code))
    assert caught.value.status == status


def test_outage_after_an_unanswered_try_names_the_idempotency_key(clock):
    made = RetriedRequest(ENQUEUE, RetryBudget(1.0, clock))
    made.pause_after(refused(504))
    clock.now += 5
    with pytest.raises(ApiUnavailable, match="idempotency key: 'order-4711'"):
        made.pause_after_error(NOT_SENT[0])


def test_rejection_after_unsent_tries_says_that_nothing_was_written(tries):
    made = tries(ENQUEUE)
    made.pause_after_error(NOT_SENT[0])
    made.pause_after(refused(503, "intake_full"))
    with pytest.raises(IntakeFull):
        made.result(refused(429, "queue_full"))
    asked = tries(READ)
    asked.pause_after_error(LOST[0])
    with pytest.raises(IntakeFull):
        asked.result(refused(429, "too_many"))

"""A breaker opens when a target is saturated, probes with one call, and closes if that works."""

from __future__ import annotations

import pytest

from leasehold.domain.outcome import Accepted, Deferred, Retryable, Unknown
from leasehold.executor.limits import Gate

FULL = Retryable(is_saturated=True)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def gate(clock):
    return Gate(5, None, clock)


def test_saturated_target_is_paused_for_as_long_as_it_asked(gate, clock):
    gate.breaker.observe(Retryable(is_saturated=True, retry_after_seconds=7))
    assert (gate.breaker.state, gate.room(0), gate.seconds_until_room()) == ("open", 0, 7)
    clock.now = 7
    assert (gate.breaker.state, gate.room(0), gate.room(1)) == ("half_open", 1, 0)
    gate.breaker.observe(Accepted())
    assert (gate.breaker.state, gate.room(1)) == ("closed", 4)


def test_target_that_refuses_the_sender_is_probed_with_one_call_until_it_takes_one(gate, clock):
    refused = Deferred(reason="credentials_refused", is_target_wide=True)
    for pause_seconds in (1, 2, 4):
        gate.breaker.observe(refused)
        gate.breaker.observe(refused)  # another call that was in flight
        assert (gate.breaker.state, gate.seconds_until_room()) == ("open", pause_seconds)
        clock.now += pause_seconds
        assert (gate.breaker.state, gate.room(0)) == ("half_open", 1)
    gate.breaker.observe(Accepted())
    assert gate.breaker.state == "closed"


@pytest.mark.parametrize("asked", [0, 0.001, -1, float("nan")])
def test_target_that_asks_for_no_pause_gets_one_because_deferred_calls_spend_no_attempt(
    gate, clock, asked
):
    refused = Deferred(reason="r", is_target_wide=True, retry_after_seconds=asked)
    for _ in range(3):
        gate.breaker.observe(refused)
        assert (gate.breaker.state, gate.seconds_until_room()) == ("open", 1)
        clock.now += 1


def test_saturated_target_may_ask_for_a_short_pause(gate):
    gate.breaker.observe(Retryable(is_saturated=True, retry_after_seconds=0.2))
    assert gate.seconds_until_room() == 0.2


def test_deferral_that_is_about_one_account_leaves_the_target_open_for_others(gate):
    gate.breaker.observe(Deferred(reason="balance_too_low"))
    assert gate.breaker.state == "closed"


def test_calls_that_were_in_flight_neither_close_the_breaker_nor_extend_its_pause(gate, clock):
    gate.breaker.observe(FULL)
    gate.breaker.observe(FULL)
    gate.breaker.observe(Accepted())
    assert gate.breaker.state == "open"
    clock.now = 1
    assert gate.breaker.state == "half_open"


@pytest.mark.parametrize("probe", [FULL, Unknown()])
def test_probe_that_fails_doubles_the_pause(gate, clock, probe):
    gate.breaker.observe(FULL)
    clock.now = 1
    gate.breaker.observe(probe)
    assert gate.breaker.seconds_until_probe == 2
    clock.now = 3
    gate.breaker.observe(probe)
    assert gate.breaker.seconds_until_probe == 4


def test_unknown_outcome_alone_is_no_sign_of_saturation(gate):
    gate.breaker.observe(Unknown())
    assert gate.breaker.state == "closed"


def test_endless_retry_after_is_probed_within_minutes(gate):
    gate.breaker.observe(Retryable(is_saturated=True, retry_after_seconds=1e9))
    assert gate.breaker.seconds_until_probe == 300


def test_contract_bounds_the_pause_that_a_gateway_asks_for(gate):
    gate.adopt(5, None, requested_seconds_max=20)
    gate.breaker.observe(Retryable(is_saturated=True, retry_after_seconds=1e6))
    assert gate.breaker.seconds_until_probe == 20
    gate.adopt(5, None, requested_seconds_max=86_400)
    gate.breaker.observe(Retryable(is_saturated=True, retry_after_seconds=1e6))
    assert gate.breaker.seconds_until_probe == 300


def test_rate_bounds_what_may_start_now(clock):
    gate = Gate(100, 50, clock)
    assert gate.room(0) == 5
    gate.bucket.take(5)
    assert gate.room(0) == 0
    assert gate.seconds_until_room() == pytest.approx(0.02)
    clock.now = 0.04
    assert gate.room(0) == 2
    clock.now = 100
    assert gate.room(0) == 5


def test_slow_rate_allows_one_call_at_a_time(clock):
    gate = Gate(10, 0.5, clock)
    assert gate.room(0) == 1
    gate.bucket.take(1)
    assert gate.seconds_until_room() == pytest.approx(2)
    clock.now = 2
    assert gate.room(0) == 1


def test_new_version_of_a_contract_ends_a_pause(clock):
    gate = Gate(5, None, clock)
    gate.breaker.observe(Retryable(is_saturated=True, retry_after_seconds=300))
    assert gate.room(0) == 0
    gate.adopt(5, None, 300)
    assert gate.room(0) == 5

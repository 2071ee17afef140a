"""Each outcome has one ledger state and one delay."""

from __future__ import annotations

from typing import get_args

import pytest

from leasehold.domain.intent import AttemptState
from leasehold.domain.outcome import (
    Accepted,
    Deferred,
    Outcome,
    Rejected,
    Retryable,
    Submitted,
    Unknown,
    attempt_state,
    next_look_seconds,
)

CASES = [
    (Accepted(), AttemptState.DISPATCHED, None),
    (Rejected(), AttemptState.FAILED, None),
    (Retryable(retry_after_seconds=5), AttemptState.RETRYABLE, 5),
    (Retryable(), AttemptState.RETRYABLE, None),
    (Unknown(), AttemptState.IN_DOUBT, None),
    (Unknown(retry_after_seconds=7), AttemptState.IN_DOUBT, 7),
    (Deferred(reason="r"), None, None),
    (Deferred(reason="r", retry_after_seconds=3), None, 3),
    (Submitted(reference="r", ask_after_seconds=9), AttemptState.SUBMITTED, 9),
]


@pytest.mark.parametrize(("outcome", "state", "seconds"), CASES)
def test_outcome_maps_to_its_state(outcome, state, seconds):
    assert attempt_state(outcome) is state
    assert next_look_seconds(outcome) == seconds


def test_every_outcome_is_covered_above():
    assert {type(outcome) for outcome, _, _ in CASES} == set(get_args(Outcome))


def test_value_that_is_not_an_outcome_raises():
    for decide in (attempt_state, next_look_seconds):
        with pytest.raises(AssertionError):
            decide("went fine, I think")


def test_outcome_with_a_delay_is_not_terminal():
    waiting = [state for _, state, seconds in CASES if seconds is not None]
    assert not any(state.is_terminal for state in waiting if state is not None)


def test_only_repair_and_operators_write_zombie_requeue_and_cancelled():
    reported = {state for _, state, _ in CASES if state is not None}
    assert set(AttemptState) - reported == {AttemptState.ZOMBIE_REQUEUE, AttemptState.CANCELLED}

"""Errors keep their data when they cross a process boundary."""

from __future__ import annotations

import copy
import pickle

import pytest

from leasehold.domain.errors import ApiUnavailable, LeaseLost, NotLeader, UnknownTarget

ERRORS = [
    UnknownTarget("no contract", target="sms"),
    NotLeader("not us", lease_name="payments", holder_id="a"),
    LeaseLost("gone", lease_name="payments"),
    ApiUnavailable("no answer", status=503, outcome_unknown=True),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("travel", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy])
def test_error_keeps_its_attributes_in_another_process(error, travel):
    error.idempotency_key = "order-4711"
    again = travel(error)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))

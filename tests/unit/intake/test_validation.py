"""Values that would fail a whole call are found before they are sent."""

from __future__ import annotations

from datetime import UTC, datetime
from types import MappingProxyType
from uuid import UUID

import pytest

from leasehold.domain.errors import InvalidArgument, UnknownTarget
from leasehold.domain.intent import IntentId, NewIntent, as_intent
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.intake.validation import CheckedBatch, accepted_id, find_problem
from leasehold.store.rows import Enqueued

NESTED: list[object] = []
for _ in range(100_000):
    NESTED = [NESTED]


def new(**more):
    return NewIntent(**{"target": "sms", "payload": {"to": "+41"}} | more)


def answer(ordinal=1, verdict=EnqueueVerdict.ACCEPTED, problem=None):
    intent_id = IntentId(UUID(int=ordinal)) if problem is None else None
    return Enqueued(ordinal=ordinal, verdict=verdict, intent_id=intent_id, problem=problem)


@pytest.mark.parametrize(
    "intent",
    [
        new(),
        new(payload={"text": "\\u0000 is only text here"}),
        new(payload={"text": "😀"}),
        new(priority=3, delay_seconds=1.5),
        new(due_at=datetime(2030, 1, 1, tzinfo=UTC), metadata={"a": 1}),
        new(payload=None, body=b"\x00", content_type="application/x"),
    ],
)
def test_sendable_intent_has_no_problem(intent):
    assert find_problem(intent) is None


@pytest.mark.parametrize(
    ("intent", "told"),
    [
        (new(target=None), "target is required"),
        (new(stream=7), "stream must be 1 to 255 characters"),
        (new(idempotency_key="a\0"), "idempotency_key contains a character"),
        (new(idempotency_key="\ud800"), "idempotency_key contains a character"),
        (new(priority="high"), "priority"),
        (new(priority=True), "priority"),
        (new(priority=99999), "priority"),
        (new(delay_seconds="soon"), "delay_seconds must be from 0"),
        (new(delay_seconds=float("inf")), "delay_seconds must be from 0"),
        (new(deadline_seconds=10**400), "deadline_seconds must be above 0"),
        (new(due_at="tomorrow"), "due_at must be a time with its time zone"),
        (new(due_at=datetime(2030, 1, 1)), "due_at must be a time with its time zone"),  # noqa: DTZ001
        (new(body="text"), "body must be bytes"),
        (new(metadata=MappingProxyType({})), "metadata must be an object"),
        (new(payload={"x": "\0"}), "payload contains a character"),
        (new(payload={"\ud800": 1}), "payload contains a character"),
        (new(payload={"x": "\\\0"}), "payload contains a character"),
        (new(payload={"x": {1, 2}}), "payload is not valid JSON"),
        (new(payload=float("nan")), "payload is not valid JSON"),
        (new(payload=NESTED), "payload is nested too deeply"),
        (new(payload="x" * 7_000_000), "payload is over 1 MiB"),
        (new(metadata={"x": "\0"}), "metadata contains a character"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsendable_intent_has_a_problem(intent, told):
    problem = find_problem(intent)
    assert problem is not None
    assert problem.startswith(told)


def test_results_are_merged_in_the_order_of_the_intents():
    batch = CheckedBatch([new(), new(priority="high"), new()])
    assert len(batch.sendable) == 2
    answers = batch.results([answer(1), answer(2)])
    assert [(one.ordinal, one.verdict.value) for one in answers] == [
        (1, "accepted"),
        (2, "invalid"),
        (3, "accepted"),
    ]
    assert answers[2].intent_id == UUID(int=2)


def test_each_verdict_raises_its_own_error():
    assert accepted_id(new(), answer(7)) == UUID(int=7)
    assert accepted_id(new(), answer(7, EnqueueVerdict.DUPLICATE)) == UUID(int=7)
    with pytest.raises(UnknownTarget, match="targets apply"):
        accepted_id(new(), answer(1, EnqueueVerdict.UNKNOWN_TARGET, "no contract"))
    with pytest.raises(InvalidArgument, match="invalid: too large"):
        accepted_id(new(), answer(1, EnqueueVerdict.INVALID, "too large"))


def test_intent_is_given_whole_or_in_parts_but_not_as_both():
    assert as_intent("sms", {"to": "+41"}) == new()
    assert as_intent(new(), None) == new()
    with pytest.raises(InvalidArgument):
        as_intent(new(), {"to": "+49"})

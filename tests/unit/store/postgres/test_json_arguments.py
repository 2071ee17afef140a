"""What the functions read as JSON is written so that nothing changes its meaning on the way."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import IntentId, JsonDocument, NewIntent
from leasehold.domain.lease import LeaseToken
from leasehold.domain.outcome import Accepted, Result, Submitted
from leasehold.store.postgres.json_arguments import (
    intent_entry,
    intents_argument,
    json_argument,
    results_argument,
)

INTENT = IntentId(UUID(int=1))


def test_missing_fields_are_left_out():
    assert intent_entry(NewIntent(target="sms", payload=0)) == {"target": "sms", "payload": 0}


def test_checked_document_is_sent_unchanged():
    amount = b'{"amount": 0.12345678901234567890, "to": "\xc3\xa9"}'
    new = NewIntent(target="sms", payload=JsonDocument(amount), metadata=JsonDocument(b"{}"))
    written = intents_argument([new, NewIntent(target="sms", payload=1)])
    assert amount.decode() in written
    assert [entry.keys() for entry in json.loads(written)] == [
        {"target", "payload", "metadata"},
        {"target", "payload"},
    ]


def test_body_is_sent_as_base64_and_times_with_their_zone():
    east = timezone(timedelta(hours=3))
    entry = intent_entry(
        NewIntent(
            target="sms",
            body=b"\x00\xff",
            content_type="application/octet-stream",
            due_at=datetime(2030, 1, 2, 3, 4, 5, tzinfo=east),
            deadline_at=datetime(2031, 1, 1, tzinfo=UTC),
        )
    )
    assert entry["body"] == "AP8="
    assert entry["due_at"] == "2030-01-02T03:04:05+03:00"
    assert entry["deadline_at"] == "2031-01-01T00:00:00+00:00"


def test_empty_body_is_a_body():
    assert intent_entry(NewIntent(target="sms", body=b""))["body"] == ""


def test_time_without_a_zone_is_refused():
    with pytest.raises(InvalidArgument, match="no time zone"):
        intent_entry(NewIntent(target="sms", payload=1, due_at=datetime(2030, 1, 1)))  # noqa: DTZ001


@pytest.mark.parametrize("payload", [float("nan"), float("inf"), b"bytes", {1, 2}, object()])
def test_payload_that_is_not_json_is_refused(payload):
    with pytest.raises(InvalidArgument, match="a value is not valid JSON"):
        intents_argument([NewIntent(target="sms", payload={"value": payload})])


def test_circular_payload_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidArgument, match="a value is nested too deeply"):
        json_argument(loop)


def test_result_carries_the_fence_of_its_claim():
    [with_claim, without] = json.loads(
        results_argument(
            [
                Result(
                    intent_id=INTENT,
                    lease_token=LeaseToken(UUID(int=2)),
                    outcome=Accepted(reference="r", code="200", detail="fine"),
                    elapsed_seconds=0.5,
                ),
                Result(intent_id=INTENT, outcome=Submitted(reference="s", ask_after_seconds=3)),
            ]
        )
    )
    assert with_claim == {
        "intent_id": str(INTENT),
        "lease_token": str(UUID(int=2)),
        "state": "DISPATCHED",
        "reason": None,
        "reference": "r",
        "code": "200",
        "detail": "fine",
        "retry_after_seconds": None,
        "elapsed_seconds": 0.5,
        "attempt_no": None,
    }
    assert without["lease_token"] is None
    assert (without["state"], without["retry_after_seconds"]) == ("SUBMITTED", 3)


def test_plain_result_of_a_question_carries_its_attempt():
    result = Result(INTENT, Accepted(), elapsed_seconds=0.5, attempt_no=3)
    [sent] = json.loads(results_argument([result]))
    assert (sent["state"], sent["attempt_no"]) == ("DISPATCHED", 3)


def test_document_is_parsed_again_for_each_reader():
    document = JsonDocument(b'{"a": [1]}')
    document.value()["a"].append(2)
    assert document.value() == {"a": [1]}


def test_document_can_be_parsed_without_losing_a_digit():
    document = JsonDocument(b'{"a": [0.12345678901234567890, 1.10, 7]}')
    assert str(document.value(decimals=True)["a"][0]) == "0.12345678901234567890"
    assert document.value(decimals=True) == {
        "a": [Decimal("0.12345678901234567890"), Decimal("1.1"), 7]
    }
    assert document.value() == {"a": [0.12345678901234568, 1.1, 7]}

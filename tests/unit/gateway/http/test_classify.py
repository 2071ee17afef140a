"""A complete response means what the contract's lists say; a status in no list is unknown."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from multidict import CIMultiDict

from leasehold.domain.outcome import (
    Accepted,
    Deferred,
    NotFound,
    Rejected,
    Retryable,
    Submitted,
    Unknown,
)
from leasehold.gateway.http.classify import (
    ASK_AFTER_SECONDS,
    Response,
    StatusTable,
    classify_lookup,
    classify_submission,
)
from leasehold.gateway.http.terms import HttpTerms
from leasehold.gateway.sanitize import Sanitizer

KEY = UUID("01890000-0000-7000-8000-000000000001")
NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
PLAIN = HttpTerms(url="https://api.example.com/")
ASKABLE = HttpTerms(url="https://api.example.com/", lookup_url="https://api.example.com/{key}")


def answer(status, body=b"", **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status=status, headers=CIMultiDict(named), body=body)


def outcome(status, body=b"", terms=PLAIN, **headers):
    return classify_submission(
        answer(status, body, **headers), StatusTable(terms.classify), KEY, NOW, Sanitizer()
    )


def lookup(status, body=b"", **headers):
    return classify_lookup(answer(status, body, **headers), KEY, NOW, Sanitizer())


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, Accepted),
        (201, Accepted),
        (202, Accepted),
        (204, Accepted),
        (301, Unknown),
        (302, Unknown),
        (307, Unknown),
        (400, Rejected),
        (401, Deferred),
        (403, Deferred),
        (405, Rejected),
        (407, Deferred),
        (404, Rejected),
        (408, Retryable),
        (409, Unknown),
        (415, Rejected),
        (422, Rejected),
        (425, Retryable),
        (429, Retryable),
        (500, Unknown),
        (502, Unknown),
        (503, Retryable),
        (504, Unknown),
        (599, Unknown),
        (600, Unknown),
        (999, Unknown),
    ],
)
def test_default_status_lists_claim_only_what_is_certain(status, kind):
    found = outcome(status)
    assert isinstance(found, kind)
    assert found.code == str(status)


def test_only_429_and_503_count_as_saturated():
    assert outcome(429).is_saturated
    assert outcome(503).is_saturated
    assert not outcome(408).is_saturated


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "credentials_refused"),
        (403, "access_refused"),
        (407, "proxy_credentials_refused"),
    ],
)
def test_refusal_of_the_sender_is_deferred_for_the_whole_target(status, reason):
    found = outcome(status, b'{"error": "expired"}', **{"Retry-After": "7"})
    assert found == Deferred(
        reason=reason,
        retry_after_seconds=7,
        is_target_wide=True,
        code=str(status),
        detail='{"error": "expired"}',
    )


def test_exact_status_of_the_contract_overrides_its_hundred():
    terms = HttpTerms(
        url="https://api.example.com/",
        accepted_statuses=("2xx", "409"),
        rejected_statuses=("3xx",),
        retryable_statuses=("5xx",),
        saturated_statuses=("503",),
        unknown_statuses=("204", "4xx"),
    )
    assert isinstance(outcome(409, terms=terms), Accepted)
    assert isinstance(outcome(302, terms=terms), Rejected)
    assert isinstance(outcome(204, terms=terms), Unknown)
    assert isinstance(outcome(404, terms=terms), Unknown)
    assert outcome(500, terms=terms) == Retryable(reason="retryable", code="500")
    assert outcome(503, terms=terms).is_saturated


def test_redirect_has_a_reason_of_its_own():
    assert outcome(302, Location="http://169.254.169.254/").reason == "redirect"
    assert outcome(500).reason == "status"


@pytest.mark.parametrize(
    ("body", "reference"),
    [
        (b'{"reference": "pay-1"}', "pay-1"),
        (b' \n{"reference": 4711}', "4711"),
        (b'{"reference": ""}', None),
        (b'{"reference": null}', None),
        (b'{"reference": true}', None),
        (b'{"reference": ["pay-1"]}', None),
        (b'{"reference": "a\\u0000b\\n"}', "a b"),
        (b'{"reference": "\\ud800"}', None),
        (b'{"reference": "' + b"x" * 256 + b'"}', None),
        (b'{"reference": "pay-1"', None),
        (b'["pay-1"]', None),
        (b"OK", None),
        (b"\xff\xfe", None),
        (b"", None),
        (b'{"a":' * 100_000, None),
    ],
)
def test_reference_is_read_from_any_body_without_failing(body, reference):
    assert outcome(200, body) == Accepted(reference=reference, code="200")


def test_location_header_is_the_reference_if_the_body_has_none():
    assert outcome(201, b"made", Location="/payments/7").reference == "/payments/7"
    assert outcome(201, b'{"reference": "b"}', Location="/a").reference == "b"


def test_submitted_without_a_reference_uses_the_submission_key():
    assert outcome(202, terms=ASKABLE) == Submitted(
        reference=str(KEY), ask_after_seconds=ASK_AFTER_SECONDS, code="202"
    )
    assert outcome(202, b'{"reference": "r"}', terms=ASKABLE, Retry_After="3") == Submitted(
        reference="r", ask_after_seconds=3, code="202"
    )


def test_rejection_has_a_reason_and_a_bounded_printable_detail():
    found = outcome(422, b'{"reason": "no such number"}')
    assert found.reason == "no such number"
    long = outcome(400, b"\x1b[31m" + b"\xff" * 5000)
    assert len(long.detail) <= 500
    assert long.detail.isprintable()
    assert len(outcome(422, b'{"reason": "' + b"x" * 500 + b'"}').reason) == 64


def test_retry_after_is_passed_on():
    assert outcome(429, Retry_After="9").retry_after_seconds == 9
    assert outcome(500, Retry_After="9").retry_after_seconds == 9
    assert outcome(429).retry_after_seconds is None


def test_lookup_responses_are_classified_by_their_status_field():
    assert lookup(404, b"nothing") == NotFound(detail="nothing")
    assert lookup(200, b'{"status": "accepted", "reference": "r"}') == Accepted(
        reference="r", code="200"
    )
    assert lookup(200, b'{"status": "rejected", "reason": "closed"}') == Rejected(
        reason="closed", code="200"
    )
    assert lookup(200, b'{"status": "pending"}', Retry_After="4") == Submitted(
        reference=str(KEY), ask_after_seconds=4, code="200"
    )


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""),
        (200, b"{}"),
        (200, b'{"status": "no idea"}'),
        (200, b'{"status": ["accepted"]}'),
        (200, b'{"status": "accepted"'),
        (201, b'{"status": "accepted"}'),
        (204, b""),
        (302, b""),
        (400, b""),
        (401, b""),
        (410, b""),
        (429, b""),
        (500, b'{"status": "accepted"}'),
        (503, b""),
    ],
)
def test_any_other_response_to_a_lookup_is_unknown(status, body):
    assert isinstance(lookup(status, body), Unknown)

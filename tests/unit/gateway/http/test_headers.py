"""Secrets come from the environment and are never shown; receivers can verify signatures."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from uuid import UUID

import pytest
from standardwebhooks.webhooks import Webhook

from leasehold.gateway.errors import GatewayMisconfigured
from leasehold.gateway.http.headers import Headers
from leasehold.gateway.http.terms import HttpTerms
from tests.support.http_gateways import WrittenTrace, make_submission

KEY = UUID("01890000-0000-7000-8000-000000000001")
RAW_SECRET = b"0123456789abcdef0123456789abcdef"
SECRET = f"whsec_{base64.b64encode(RAW_SECRET).decode()}"
OTHER = f"whsec_{base64.b64encode(b'another secret of 24 byt').decode()}"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def terms(**changes):
    return HttpTerms(url="https://api.example.com/", **changes)


def headers_of(submission, *, body=b"{}", environment=None, **changes):
    made = Headers(terms(**changes), environment or {})
    return made.for_submission(submission, body, datetime.now(UTC))


def test_key_fencing_token_and_attempt_are_sent():
    headers = headers_of(make_submission(key=KEY, attempt_no=3, fencing_token=17))
    assert headers["Idempotency-Key"] == str(KEY)
    assert headers["Fencing-Token"] == "17"
    assert headers["Leasehold-Attempt"] == "3"
    assert headers["Content-Type"] == "application/json"
    assert "webhook-signature" not in headers


def test_contract_cannot_repeat_our_headers_in_another_case():
    given = {"content-type": "x/y", "leasehold-attempt": "9"}
    headers = headers_of(make_submission(attempt_no=3), headers=given)
    assert headers.getall("Leasehold-Attempt") == ["3"]
    assert headers.getall("Content-Type") == ["application/json"]


def test_malformed_traceparent_is_not_sent():
    assert headers_of(make_submission(trace=WrittenTrace(TRACE)))["traceparent"] == TRACE
    for odd in ("", "no trace", TRACE + "\r\nX: y", TRACE.upper(), TRACE + "-"):
        assert "traceparent" not in headers_of(make_submission(trace=WrittenTrace(odd)))


def test_content_type_cannot_inject_a_header():
    given = make_submission(payload=None, body=b"x", content_type="text/plain; charset=utf-8")
    assert headers_of(given)["Content-Type"] == "text/plain; charset=utf-8"
    odd = make_submission(payload=None, body=b"x", content_type="text/plain\r\nX: ä")
    sent = headers_of(odd)["Content-Type"]
    assert sent.isascii()
    assert sent.isprintable()


def test_secret_header_is_read_from_the_environment():
    headers = headers_of(
        make_submission(),
        environment={"SMS_TOKEN": "Bearer abc\n"},
        secret_headers={"Authorization": "SMS_TOKEN"},
        headers={"X-Region": "eu"},
    )
    assert headers["Authorization"] == "Bearer abc"
    assert headers["X-Region"] == "eu"


@pytest.mark.parametrize(
    "value", [None, "", "  ", "a\r\nX-Evil: hunter2", "hunter2\x00", "hunter2 ✓"]
)
def test_missing_or_invalid_secret_is_named_but_never_shown(value):
    environment = {} if value is None else {"SMS_TOKEN": value}
    with pytest.raises(GatewayMisconfigured, match="SMS_TOKEN") as refused:
        Headers(terms(secret_headers={"Authorization": "SMS_TOKEN"}), environment)
    assert "hunter2" not in str(refused.value)


def test_receiver_verifies_the_signature_with_the_library():
    body = '{"amount": 1, "name": "Ä"}'.encode()
    signed = headers_of(
        make_submission(key=KEY),
        body=body,
        environment={"SIGNING": SECRET},
        signing_secret_env="SIGNING",
    )
    assert signed["webhook-id"] == str(KEY)
    assert Webhook(SECRET).verify(body, signed) == {"amount": 1, "name": "Ä"}


def test_bytes_that_are_not_text_are_signed_by_the_specification():
    body = b"\xff\x00\xfe"
    signed = headers_of(
        make_submission(key=KEY),
        body=body,
        environment={"SIGNING": SECRET},
        signing_secret_env="SIGNING",
    )
    content = f"{KEY}.{signed['webhook-timestamp']}.".encode() + body
    digest = hmac.new(RAW_SECRET, content, hashlib.sha256).digest()
    assert signed["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


def test_during_a_rotation_both_secrets_verify():
    signed = headers_of(
        make_submission(),
        environment={"SIGNING": f"{SECRET} {OTHER}"},
        signing_secret_env="SIGNING",
    )
    for secret in (SECRET, OTHER):
        Webhook(secret).verify(b"{}", signed)


@pytest.mark.parametrize("secret", ["whsec_", "whsec_!!!!", "hunter2", "whsec_c2hvcnQ=", "ä"])
def test_invalid_signing_secret_is_refused_without_showing_it(secret):
    with pytest.raises(GatewayMisconfigured, match="SIGNING") as refused:
        Headers(terms(signing_secret_env="SIGNING"), {"SIGNING": secret})
    assert secret not in str(refused.value).replace("expected whsec_ and", "")


def test_lookup_carries_the_secret_headers_but_no_idempotency_key():
    made = Headers(terms(secret_headers={"Authorization": "T"}), {"T": "Bearer abc"})
    headers = made.for_lookup(make_submission(trace=WrittenTrace(TRACE)))
    assert headers["Authorization"] == "Bearer abc"
    assert headers["traceparent"] == TRACE
    assert "Idempotency-Key" not in headers

"""A contract is public: it contains no secret, and sends none in clear text to the internet."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from leasehold.domain.refused_terms import problems_of
from leasehold.gateway.registry import Contract

# Each could also be the name of a variable, as far as its characters go.
SECRETS = [
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "sk_live_51H8xExampleExampleExample",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "f3d2c1b0a99887766554433221100ffe",
    "F3D2C1B0A99887766554433221100FFE",
    "AKIAIOSFODNN7EXAMPLE",
    "JBSWY3DPEHPK3PXP",
    "hunter",
]
NAMES = ["T", "SMS_TOKEN", "_TOKEN", "SMS_AUTHORIZATION_2", "TOKEN_OF_2024_06", "OAUTH2_CLIENT"]


def problems(**gateway):
    with pytest.raises(ValidationError) as raised:
        accept(**gateway)
    assert not any(secret in str(raised.value) for secret in SECRETS)
    return [str(problem) for problem in problems_of(Contract, raised.value)]


def accept(**gateway):
    terms = {"kind": "http", "url": "https://a.example"} | gateway
    return Contract.model_validate(
        {"target": "sms", "scope": "item", "guarantee": "keyed", "gateway": terms}
    )


@pytest.mark.parametrize("secret", SECRETS)
def test_secret_in_place_of_a_variable_name_is_refused_and_not_shown(secret):
    for gateway in ({"signing_secret_env": secret}, {"secret_headers": {"X-Token": secret}}):
        [problem] = problems(**gateway)
        assert "must be the name of an environment variable" in problem
        assert secret not in problem


@pytest.mark.parametrize("secret", SECRETS[:-1])
def test_secret_in_place_of_the_name_of_its_header_is_refused_unseen(secret):
    [problem] = problems(secret_headers={secret: "Authorization"})
    assert problem.startswith("gateway.secret_headers: the name of a header looks like a secret")
    assert secret not in problem


def test_secret_in_place_of_a_setting_is_refused_unseen():
    with pytest.raises(ValidationError) as raised:
        accept(**{SECRETS[0]: "signing_secret_env"})
    [problem] = problems_of(Contract, raised.value)
    assert str(problem).startswith("gateway.***: is not a setting")


@pytest.mark.parametrize("name", NAMES)
def test_name_of_a_variable_is_accepted(name):
    accept(signing_secret_env=name, secret_headers={"Authorization": name})


PUBLIC = "http://api.example.com/send"


@pytest.mark.parametrize(
    "gateway",
    [
        {"url": PUBLIC},
        {"url": PUBLIC, "allow_hosts": ["gateway.internal"]},
        {"url": PUBLIC, "allow_hosts": ["*.internal", "127.0.0.1"]},
        {"url": PUBLIC, "allow_hosts": ["*.api.example.com"]},
        {"url": PUBLIC, "allow_private": True},
        {"url": "http://93.184.215.14/", "allow_private": True},
        {"url": "http://93.184.215.14/", "allow_hosts": ["93.184.215.14"]},
        {"url": "http://[2606:2800:21f::1]/", "allow_hosts": ["2606:2800:21f::1"]},
        {"url": "http://[::ffff:93.184.215.14]/", "allow_private": True},
        {"url": "http://10.0.0.1/"},
        {"url": "http://10.0.0.1/", "allow_hosts": ["10.0.0.2"]},
        {"lookup_url": f"{PUBLIC}/{{key}}", "allow_private": True},
        {"lookup_url": f"{PUBLIC}/{{key}}", "allow_hosts": ["a.example"]},
        {
            "url": "http://gateway.internal/",
            "lookup_url": f"{PUBLIC}/{{key}}",
            "allow_hosts": ["gateway.internal"],
        },
    ],
    ids=str,
)
def test_secret_headers_are_refused_over_plain_http_to_a_public_host(gateway):
    [problem] = problems(secret_headers={"Authorization": "SMS_TOKEN"}, **gateway)
    assert problem.startswith("gateway: secret_headers need https")


@pytest.mark.parametrize(
    "gateway",
    [
        {"url": "https://api.example.com/", "allow_hosts": ["gateway.internal"]},
        {"url": "http://gateway.internal/", "allow_hosts": ["Gateway.Internal"]},
        {"url": "http://GATEWAY.internal:8080/", "allow_hosts": ["gateway.internal"]},
        {"url": "http://a.svc.internal/", "allow_hosts": ["*.svc.internal"]},
        {"url": "http://10.0.0.1:8080/", "allow_hosts": ["10.0.0.1"]},
        {"url": "http://127.0.0.1/", "allow_private": True},
        {"url": "http://[::1]/", "allow_private": True},
        {"url": "http://localhost:8080/", "allow_private": True},
    ],
    ids=str,
)
def test_secret_headers_are_accepted_over_https_and_to_a_host_of_your_own(gateway):
    accept(secret_headers={"Authorization": "SMS_TOKEN"}, **gateway)


def test_plain_http_to_a_public_host_is_accepted_without_a_secret():
    accept(url=PUBLIC, headers={"X-Team": "sms"}, signing_secret_env="SMS_SIGNING")

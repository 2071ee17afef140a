"""Known secrets are hidden in every spelling, and nothing else is changed."""

from __future__ import annotations

import base64

import pytest

from leasehold.observe.redact import Redactor, environment_secrets, spellings


def redactor(*secrets):
    return Redactor(spellings(secrets))


def test_text_without_a_secret_is_returned_unchanged():
    for text in ("", "100 %", r"a\/b %41 &amp; \u0041", "Bearer is not a secret", "***"):
        assert redactor("Bearer hunter2").hide(text) == text


def test_parts_of_a_header_are_secrets_but_its_scheme_is_not():
    hide = redactor("Bearer hunter2").hide
    assert hide("no such Bearer: hunter2, HUNTER2") == "no such Bearer: ***, ***"
    assert hide("Bearer hunter2") == "***"


def test_password_of_basic_credentials_is_a_secret():
    login = base64.b64encode(b"shop:swordfish").decode()
    hide = redactor(f"Basic {login}").hide
    assert hide(f"{login} is shop:swordfish: wrong password swordfish for shop") == (
        "*** is ***: wrong password *** for shop"
    )


def test_parameters_and_several_secrets_are_secrets_each():
    hide = redactor(
        'Digest name="shop-1", response="0a4f113b"', "whsec_AAAABBBB whsec_CCCCDDDD"
    ).hide
    assert hide("0a4f113b / AAAABBBB / whsec_CCCCDDDD") == "*** / *** / ***"


def test_secret_outside_ascii_is_hidden_however_it_is_decoded():
    hide = redactor("schlüssel-ä").hide
    mistaken = "schlüssel-ä".encode().decode("latin-1")
    assert hide(f"schlüssel-ä {mistaken} schl%C3%BCssel-%C3%A4") == "*** *** ***"


def test_short_secret_is_not_hidden_because_it_would_hide_letters_everywhere():
    assert redactor("abc").hide("abc") == "abc"
    assert redactor("abcd").hide("abcd") == "***"


@pytest.mark.parametrize("secret", ["a" * 4, "x" * 2000, "\\", "(", "a|b|", "%25%25%25", "&amp;"])
def test_any_secret_can_be_searched_for(secret):
    expected = "<***>" if len(secret) >= 4 else f"<{secret}>"
    assert redactor(secret).hide(f"<{secret}>") == expected


def test_environment_is_searched_by_name_and_for_urls():
    environment = {
        "PATH": "/usr/bin",
        "HOME": "/root",
        "SMS_TOKEN": "hunter-1",
        "PGPASSWORD": "hunter-2",
        "STRIPE_API_KEY": "hunter-3",
        "STRIPE_KEY": "hunter-4",
        "SHOP_DB": "postgresql://shop:hunter%2F5@db/shop",
        "TOKEN_FILE": "/run/secrets/token",
        "LEASEHOLD_HTTP_TOKEN_SECONDS": "2",
        "KEYBOARD": "qwertz-de",
        "MONKEY": "capuchin",
    }
    assert set(environment_secrets(environment)) == {
        "hunter-1",
        "hunter-2",
        "hunter-3",
        "hunter-4",
        "hunter%2F5",
        "hunter/5",
    }

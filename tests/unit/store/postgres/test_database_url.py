"""A database URL is read or refused, and its password never shows."""

from __future__ import annotations

import traceback

import pytest

from leasehold.domain.errors import DatabaseUnavailable, InvalidArgument, LeaseholdError
from leasehold.store.postgres.database_url import (
    connect,
    connection_parameters,
    passwords_in,
    with_tls,
    without_password,
)

# Each part between special characters counts as a secret: libpq may take one for a host, a port or
# an option, and name it in its error message.
UNREADABLE = [
    "postgresql://user:hunter1@hunter2@127.0.0.1:1/name",
    "postgresql://user:hunter1/hunter2@127.0.0.1:1/name",
    "postgresql://user:hunter1?hunter2@127.0.0.1:1/name",
    "postgresql://user:hunter1#hunter2@127.0.0.1:1/name",
    "postgresql://user:hunter1%zz@127.0.0.1:1/name",
    "postgresql://user:hunter1@127.0.0.1:1/name?nonsense=1",
    "postgresql//user:hunter1@127.0.0.1/name",
    "mysql://user:hunter1@127.0.0.1/name",
    "host=127.0.0.1 password='hunter1 hunter2",
    "host=127.0.0.1 password=hunter1 hunter2",
    "hunter1",
]
UNREACHABLE = [
    "postgresql://user:hunter1@127.0.0.1:1/name",
    "postgresql://user:hunter1%40hunter2@127.0.0.1:1/name",
    "postgresql://user@127.0.0.1:1/name?password=hunter1",
    "host=127.0.0.1 port=1 user=user password=hunter1",
    "postgresql://user:hunter1@127.0.0.1:99999/name",
    "postgresql://user:hunter1@[::1:1/name",
]


@pytest.mark.parametrize("url", UNREADABLE)
def test_unreadable_address_is_refused_with_advice(url):
    with pytest.raises(InvalidArgument, match="postgresql://user@host:port/database"):
        connection_parameters(url)


@pytest.mark.parametrize("url", UNREADABLE + UNREACHABLE)
def test_error_never_contains_the_password_not_even_in_its_causes(url):
    with pytest.raises(LeaseholdError) as raised:
        connect(url, application_name="test")
    told = "".join(traceback.format_exception(raised.value, chain=True))
    source_lines = [line for line in told.splitlines() if "hunter" in line]
    assert source_lines == []


def test_unreachable_database_is_reported_as_unreachable():
    with pytest.raises(DatabaseUnavailable, match=r"cannot connect to the database: .*refused"):
        connect(UNREACHABLE[0], application_name="test")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:a%40b@h:1/d", {"user": "u", "password": "a@b", "host": "h", "port": "1"}),
        ("postgres://h", {"host": "h"}),
        ("postgresql:///d?host=/tmp", {"dbname": "d", "host": "/tmp"}),
        ("postgresql://u:a:b@[::1]/d", {"host": "::1", "password": "a:b"}),
        ("postgresql://a,b:2/d?target_session_attrs=read-write", {"host": "a,b", "port": ",2"}),
        ("host=h dbname=d password='a b'", {"host": "h", "password": "a b"}),
    ],
)
def test_addresses_that_libpq_knows_are_read(url, expected):
    assert expected.items() <= connection_parameters(url).items()


def test_connect_timeout_of_the_address_is_kept():
    assert connection_parameters("postgresql://h/d")["connect_timeout"] == 10
    assert connection_parameters("postgresql://h/d?connect_timeout=3")["connect_timeout"] == "3"


def test_password_in_a_message_of_the_driver_is_hidden():
    assert without_password("no\n  hunter1  here", {"password": "hunter1"}) == "no *** here"
    assert without_password("nothing secret", {}) == "nothing secret"


PLAIN = "postgresql://u:hunter1%40@h:1/d"


@pytest.fixture
def authorities(tmp_path):
    path = tmp_path / "authorities.pem"
    path.write_text("a certificate")
    return str(path)


def tls_of(url, tls=None, ca=None):
    said = connection_parameters(with_tls(url, tls, ca))
    return {name: value for name, value in said.items() if name.startswith(("ssl", "gss"))}


def test_address_without_settings_is_left_as_it_is():
    assert with_tls(PLAIN, None, None) == PLAIN


def test_settings_become_a_part_of_the_address_and_change_nothing_else(authorities):
    before = connection_parameters(PLAIN)
    after = connection_parameters(with_tls(PLAIN, "verify-full", authorities))
    assert after == before | {
        "sslmode": "verify-full",
        "sslrootcert": authorities,
        "gssencmode": "disable",
    }


def test_stricter_sslmode_of_the_url_is_kept():
    assert tls_of(f"{PLAIN}?sslmode=verify-full", "require")["sslmode"] == "verify-full"
    assert tls_of(f"{PLAIN}?sslmode=require", "prefer")["sslmode"] == "require"


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("disable", "prefer"),
        ("disable", "require"),
        ("prefer", "require"),
        ("require", "verify-full"),
        ("verify-ca", "verify-full"),
        ("nonsense", "require"),
    ],
)
def test_weaker_sslmode_of_the_url_is_refused(said, asked):
    with pytest.raises(InvalidArgument, match=rf"{asked}, .* weaker sslmode={said}: remove it"):
        with_tls(f"{PLAIN}?sslmode={said}", asked, None)


def test_certificate_authority_without_verification_is_refused(authorities):
    for tls in (None, "prefer", "require"):
        with pytest.raises(InvalidArgument, match="set database_tls to verify-full"):
            with_tls(PLAIN, tls, authorities)
    assert tls_of(f"{PLAIN}?sslmode=verify-full", ca=authorities)["sslrootcert"] == authorities


def test_two_different_authority_files_are_refused(authorities):
    with pytest.raises(InvalidArgument, match="differ: remove one of them"):
        with_tls(f"{PLAIN}?sslrootcert=/other.pem", "verify-full", authorities)


def test_missing_authority_file_is_named():
    with pytest.raises(InvalidArgument, match=r"the file /nowhere\.pem does not exist"):
        with_tls(PLAIN, "verify-full", "/nowhere.pem")
    assert tls_of(PLAIN, "verify-full", "system")["sslrootcert"] == "system"


def test_kerberos_encryption_does_not_count_as_tls():
    with pytest.raises(InvalidArgument, match="gssencmode: remove one of them"):
        with_tls(f"{PLAIN}?gssencmode=prefer", "verify-full", None)


def test_keyword_address_can_have_slashes_in_its_password():
    assert connection_parameters("host=h password=a://b")["password"] == "a://b"


def test_passwords_in_an_address_are_found_decoded():
    assert passwords_in("postgresql://u:a%2Fb@host/db?sslpassword=c") == ["a/b", "c"]
    assert passwords_in("host=h password='a b' dbname=d") == ["a b"]
    assert passwords_in("postgresql://u@host/db") == []

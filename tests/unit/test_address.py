"""A database URL is read or refused, and its password never shows."""

from __future__ import annotations

import traceback

import pytest

from leasehold.domain.errors import DatabaseUnavailable, InvalidArgument, LeaseholdError
from leasehold.store.postgres.address import connect, connection_parameters, without_password

# Each part between special characters is a secret of its own: libpq would take one for a host, a
# port or an option, and name it in its complaint.
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
    with pytest.raises(InvalidArgument, match="postgresql://user:password@host:port/database"):
        connection_parameters(url)


@pytest.mark.parametrize("url", UNREADABLE + UNREACHABLE)
def test_error_never_contains_the_password_not_even_in_its_causes(url):
    with pytest.raises(LeaseholdError) as raised:
        connect(url, application_name="test")
    told = "".join(traceback.format_exception(raised.value, chain=True))
    source_lines = [line for line in told.splitlines() if "hunter" in line]
    assert source_lines == []


def test_unreachable_database_is_told_as_such():
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


def test_password_that_a_driver_repeats_is_blanked_out():
    assert without_password("no\n  hunter1  here", {"password": "hunter1"}) == "no *** here"
    assert without_password("nothing secret", {}) == "nothing secret"

"""Settings are read once, refuse what cannot work, and never show the password."""

from __future__ import annotations

import traceback

import pytest
from pydantic import ValidationError

from leasehold.config import read_settings
from leasehold.domain.errors import InvalidArgument
from leasehold.store.postgres.pool import PoolSettings

URL = "postgresql://user:hunter1@127.0.0.1/name"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    monkeypatch.delenv("LEASEHOLD_DATABASE_URL", raising=False)


def test_environment_is_read(monkeypatch):
    monkeypatch.setenv("LEASEHOLD_DATABASE_URL", URL)
    monkeypatch.setenv("LEASEHOLD_THROUGH_POOLER", "true")
    monkeypatch.setenv("LEASEHOLD_POOL_SIZE_MAX", "3")
    settings = read_settings()
    assert settings.required_database_url() == URL
    assert settings.pool() == PoolSettings(through_pooler=True, size_max=3)


def test_what_is_given_goes_before_the_environment_and_none_does_not(monkeypatch):
    monkeypatch.setenv("LEASEHOLD_DATABASE_URL", "postgresql://elsewhere/x")
    assert read_settings(database_url=URL).required_database_url() == URL
    assert read_settings(database_url=None).required_database_url() == "postgresql://elsewhere/x"


def test_defaults_of_both_objects_are_the_same():
    assert read_settings().pool() == PoolSettings()


def test_missing_database_says_how_to_give_one():
    with pytest.raises(InvalidArgument, match=r"--database-url or set LEASEHOLD_DATABASE_URL"):
        read_settings().required_database_url()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"pool_size_min": 5, "pool_size_max": 2},
            r"size_min \(5\) must not be over size_max \(2\)",
        ),
        ({"lock_seconds": 5}, r"lock_seconds \(5\) must be less than statement_seconds \(5\)"),
        ({"statement_seconds": 28}, r"the longest call \(35 seconds\) .* lease_seconds \(30\)"),
        ({"pool_wait_seconds": 25}, r"the longest call \(32 seconds\)"),
        ({"lease_seconds": 10}, r"must be less than lease_seconds \(10\)"),
        ({"idle_in_transaction_seconds": 30}, r"idle_in_transaction_seconds \(30 seconds\)"),
        ({"pool_size_max": 0}, "LEASEHOLD_POOL_SIZE_MAX: Input should be greater than"),
        ({"through_pooler": "perhaps"}, "LEASEHOLD_THROUGH_POOLER: "),
    ],
)
def test_impossible_relation_is_refused_by_name(given, reason):
    with pytest.raises(InvalidArgument, match=reason):
        read_settings(**given)


def test_password_never_shows_not_even_in_a_refusal():
    settings = read_settings(database_url=URL)
    shown = f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert "hunter1" not in shown
    with pytest.raises(InvalidArgument) as raised:
        read_settings(database_url=URL, pool_size_max="hunter1")
    told = "".join(traceback.format_exception(raised.value, chain=True)).splitlines()
    assert [line for line in told if "hunter1" in line and "read_settings(" not in line] == []


def test_settings_do_not_change_after_they_were_read():
    with pytest.raises(ValidationError):
        read_settings().pool_size_max = 7


def test_tls_settings_are_in_every_address_that_is_given_out(monkeypatch):
    monkeypatch.setenv("LEASEHOLD_DATABASE_TLS", "verify-full")
    monkeypatch.setenv("LEASEHOLD_DATABASE_TLS_CA", "system")
    address = read_settings(database_url=URL).required_database_url()
    assert "sslmode=verify-full" in address
    assert "sslrootcert=system" in address
    with pytest.raises(InvalidArgument, match="sslmode=disable, which is less"):
        read_settings(database_url=f"{URL}?sslmode=disable").required_database_url()


def test_way_of_tls_that_is_not_known_is_refused():
    with pytest.raises(InvalidArgument, match=r"LEASEHOLD_DATABASE_TLS: .*verify-full"):
        read_settings(database_tls="verify")


def test_role_reaches_the_pool_and_nothing_but_a_role_does():
    assert read_settings(database_role="leasehold_executor").pool().role == "leasehold_executor"
    with pytest.raises(InvalidArgument, match="must be the name of a role"):
        read_settings(database_role="x; y")

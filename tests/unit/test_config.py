"""Settings are read once, refuse what cannot work, and never show the password."""

from __future__ import annotations

import ast
import inspect
import os
import traceback

import pytest
from pydantic import ValidationError

from leasehold import config
from leasehold.config import Settings, ignored_variables, read_settings
from leasehold.domain.errors import InvalidArgument
from leasehold.store.pool_settings import PoolSettings

URL = "postgresql://user:hunter1@127.0.0.1/name"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("LEASEHOLD_")]:
        monkeypatch.delenv(name)


def test_every_setting_has_a_description():
    tree = ast.parse(inspect.getsource(config))
    [settings] = [node for node in tree.body if getattr(node, "name", "") == "Settings"]
    described = {
        field.target.id
        for field, text in zip(settings.body, settings.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
    assert described == Settings.model_fields.keys()


def test_environment_is_read(monkeypatch):
    monkeypatch.setenv("LEASEHOLD_DATABASE_URL", URL)
    monkeypatch.setenv("LEASEHOLD_THROUGH_POOLER", "true")
    monkeypatch.setenv("LEASEHOLD_POOL_SIZE_MAX", "3")
    settings = read_settings()
    assert settings.required_database_url() == URL
    assert settings.pool() == PoolSettings(through_pooler=True, size_max=3)


def test_given_value_overrides_the_environment_unless_it_is_none(monkeypatch):
    monkeypatch.setenv("LEASEHOLD_DATABASE_URL", "postgresql://elsewhere/x")
    assert read_settings(database_url=URL).required_database_url() == URL
    assert read_settings(database_url=None).required_database_url() == "postgresql://elsewhere/x"


def test_settings_and_pool_settings_have_the_same_defaults():
    assert read_settings().pool() == PoolSettings()


def test_missing_database_url_is_refused_with_advice():
    with pytest.raises(InvalidArgument, match=r"--database-url or set LEASEHOLD_DATABASE_URL"):
        read_settings().required_database_url()
    with pytest.raises(InvalidArgument, match="set LEASEHOLD_EMBEDDED=true"):
        read_settings().required_database_url()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"pool_size_min": 5, "pool_size_max": 2},
            r"size_min \(5\) must not exceed size_max \(2\)",
        ),
        ({"lock_seconds": 5}, r"lock_seconds \(5\) must be less than statement_seconds \(5\)"),
        (
            {"statement_seconds": 28},
            r"the longest database call \(35 seconds\) .* lease_seconds \(30\)",
        ),
        ({"pool_wait_seconds": 25}, r"the longest database call \(32 seconds\)"),
        ({"lease_seconds": 10}, r"must be less than lease_seconds \(10\)"),
        ({"idle_in_transaction_seconds": 30}, r"idle_in_transaction_seconds \(30 seconds\)"),
        ({"pool_size_max": 0}, "^pool_size_max: must be greater than"),
        ({"through_pooler": "perhaps"}, "^through_pooler: "),
        ({"observer": "shop.watch"}, "^observer: must be an import path such as package.module"),
        ({"holder_id": "a b"}, "^holder_id: must be 1 to 124 letters"),
    ],
)
def test_settings_that_cannot_work_together_are_refused_by_name(given, reason):
    with pytest.raises(InvalidArgument, match=reason):
        read_settings(**given)


def test_password_is_never_shown_not_even_in_an_error():
    settings = read_settings(database_url=URL)
    shown = f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert "hunter1" not in shown
    with pytest.raises(InvalidArgument) as raised:
        read_settings(database_url=URL, pool_size_max="hunter1")
    told = "".join(traceback.format_exception(raised.value, chain=True)).splitlines()
    assert [line for line in told if "hunter1" in line and "read_settings(" not in line] == []


def test_settings_are_immutable():
    with pytest.raises(ValidationError):
        read_settings().pool_size_max = 7


def test_tls_settings_are_part_of_the_database_url(monkeypatch):
    monkeypatch.setenv("LEASEHOLD_DATABASE_TLS", "verify-full")
    monkeypatch.setenv("LEASEHOLD_DATABASE_TLS_CA", "system")
    address = read_settings(database_url=URL).required_database_url()
    assert "sslmode=verify-full" in address
    assert "sslrootcert=system" in address
    with pytest.raises(InvalidArgument, match="the weaker sslmode=disable"):
        read_settings(database_url=f"{URL}?sslmode=disable").required_database_url()


def test_unknown_tls_mode_is_refused():
    with pytest.raises(InvalidArgument, match=r"^database_tls: .*verify-full"):
        read_settings(database_tls="verify")


def test_database_role_is_passed_to_the_pool_and_must_be_a_name():
    assert read_settings(database_role="leasehold_executor").pool().role == "leasehold_executor"
    with pytest.raises(InvalidArgument, match="must be the name of a role"):
        read_settings(database_role="x; y")


def test_wrong_value_is_blamed_on_the_variable_only_if_it_came_from_there(monkeypatch):
    monkeypatch.setenv("LEASEHOLD_CONCURRENCY", "0")
    with pytest.raises(InvalidArgument, match=r"^LEASEHOLD_CONCURRENCY: must be"):
        read_settings()
    with pytest.raises(InvalidArgument, match=r"^concurrency: must be"):
        read_settings(concurrency=0)


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("payments", ("payments",)),
        ("sms, payments,", ("sms", "payments")),
        ('["sms", "payments"]', ("sms", "payments")),
        ("", None),
    ],
)
def test_targets_are_separated_by_commas_or_a_json_list(monkeypatch, text, targets):
    monkeypatch.setenv("LEASEHOLD_TARGETS", text)
    assert read_settings().targets == targets
    monkeypatch.delenv("LEASEHOLD_TARGETS")
    assert read_settings(targets=text).targets == targets


def test_targets_that_are_no_json_list_are_refused():
    with pytest.raises(InvalidArgument, match=r"^targets: .*JSON list"):
        read_settings(targets='["sms"')


def test_misspelt_variable_is_found_with_its_nearest_setting(monkeypatch, tmp_path):
    assert ignored_variables() == {}
    monkeypatch.setenv("LEASEHOLD_CONCURENCY", "50")
    monkeypatch.setenv("leasehold_operater", "ada")
    monkeypatch.setenv("LEASEHOLD_ZZZ", "1")
    monkeypatch.setenv("LEASEHOLD_STREAM_GRACE", "90")
    file = tmp_path / "settings"
    file.write_text("LEASEHOLD_POLL_SECOND=1\nLEASEHOLD_POLL_SECONDS=1\nOTHER=1\n")
    assert ignored_variables(file) == {
        "LEASEHOLD_CONCURENCY": "LEASEHOLD_CONCURRENCY",
        "leasehold_operater": "LEASEHOLD_OPERATOR",
        "LEASEHOLD_ZZZ": None,
        "LEASEHOLD_STREAM_GRACE": "LEASEHOLD_STREAM_GRACE_SECONDS",
        "LEASEHOLD_POLL_SECOND": "LEASEHOLD_POLL_SECONDS",
    }


def test_variables_that_kubernetes_sets_for_a_service_are_not_misspelt_settings(monkeypatch):
    for name, value in {
        "LEASEHOLD_SERVICE_HOST": "10.0.0.1",
        "LEASEHOLD_SERVICE_PORT_HTTP": "8080",
        "LEASEHOLD_PORT": "tcp://10.0.0.1:8080",
        "LEASEHOLD_PORT_8080_TCP_ADDR": "10.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    assert ignored_variables() == {}

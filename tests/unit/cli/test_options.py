"""Values of the shared options: operators and times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal, get_origin

import pytest

from leasehold.cli.options import (
    INSTANCE_SETTINGS,
    operator_name,
    parse_duration_or_time,
    parse_time_or_age,
    setting,
)
from leasehold.config import Settings
from leasehold.domain.errors import InvalidArgument


def test_help_of_an_option_names_the_values_that_it_takes():
    shown = {}
    for name in INSTANCE_SETTINGS:
        if get_origin(Settings.model_fields[name].annotation) is Literal:
            [option] = setting(name).__metadata__
            shown[name] = option.help.rpartition(": ")[2]
    assert shown == {
        "elector": "row, advisory (row).",
        "log_format": "json, console (console).",
        "log_level": "debug, info, warning, error (info).",
    }


def test_operator_is_the_option_else_the_variable_else_the_login(monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "login")
    assert operator_name(None) == "login"
    monkeypatch.setenv("LEASEHOLD_OPERATOR", "ada")
    assert operator_name(None) == "ada"
    assert operator_name("eve") == "eve"


def test_login_without_a_name_is_told_to_give_one(monkeypatch):
    def no_name():
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", no_name)
    with pytest.raises(InvalidArgument, match="--operator NAME"):
        operator_name(None)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86400)]
)
def test_duration_has_a_unit_or_is_in_seconds(text, seconds):
    assert parse_duration_or_time("--delay", text) == (seconds, None)


def test_age_counts_back_from_now():
    assert parse_time_or_age("--since", "2030-01-31T12:00:00Z").year == 2030
    before = datetime.now(UTC)
    parsed = parse_time_or_age("--since", "15m")
    assert before <= parsed + timedelta(minutes=15) <= datetime.now(UTC)

"""Retry-After is read in one place, from seconds or from a date, and never trusted blindly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
from multidict import CIMultiDict

from leasehold.service.retry_after import RETRY_AFTER_SECONDS_MAX, retry_after_seconds

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("7", 7),
        (" 7 ", 7),
        ("1.5", 1.5),
        ("86401", RETRY_AFTER_SECONDS_MAX),
        ("999999999", RETRY_AFTER_SECONDS_MAX),
        ("9" * 400, None),
        ("-1", None),
        ("1e3", None),
        ("inf", None),
        ("nan", None),
        ("٣", None),
        ("soon", None),
        ("", None),
        ("Mon, 04 May 2026 12:00:30 GMT", 30),
        ("Monday, 04-May-26 12:00:30 GMT", 30),
        ("Mon May  4 12:00:30 2026", 30),
        ("Mon, 04 May 2026 11:00:00 GMT", 0),
        ("Mon, 04 May 2126 12:00:00 GMT", RETRY_AFTER_SECONDS_MAX),
        ("Mon, 99 May 2026 12:00:00 GMT", None),
        ("Mon, 04 May 99999999999 12:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_is_bounded(text, seconds):
    assert retry_after_seconds(CIMultiDict({"retry-after": text}), NOW) == seconds


def test_date_is_compared_with_the_servers_own_clock():
    headers = CIMultiDict(
        {"Retry-After": "Mon, 04 May 2026 15:00:10 GMT", "Date": "Mon, 04 May 2026 15:00:00 GMT"}
    )
    assert retry_after_seconds(headers, NOW) == 10


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "inf", "Thu, 99 Foo"])
def test_headers_of_the_api_client_are_read_the_same_way(text):
    assert retry_after_seconds(httpx.Headers({"retry-after": text})) is None


def test_date_is_compared_with_our_clock_if_the_server_sent_none():
    moment = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert 60 < retry_after_seconds(httpx.Headers({"retry-after": moment})) <= 90

"""The parser of the Retry-After header, for gateways' answers and for our own API client."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# A server that asks for more than a day has a fault, not a maintenance window.
RETRY_AFTER_SECONDS_MAX = 86_400.0

_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?\Z")


def retry_after_seconds(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the seconds that Retry-After asks for; None if it is missing or makes no sense.

    A date is compared with the server's own clock if it sent one (Date), since ours may differ;
    otherwise with `now`. `headers` must ignore case.
    """
    text = headers.get("Retry-After", "").strip()
    if _SECONDS.match(text):
        return min(float(text), RETRY_AFTER_SECONDS_MAX)
    until = _parse_date(text)
    if until is None:
        return None
    server_now = _parse_date(headers.get("Date", "")) or now or datetime.now(UTC)
    return min(max(0.0, (until - server_now).total_seconds()), RETRY_AFTER_SECONDS_MAX)


def _parse_date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found

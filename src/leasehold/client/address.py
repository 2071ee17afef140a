"""Where the API is, and what opens it: checked before anything is sent, and never shown."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING

import httpx

from leasehold.client.retry import ANSWER_SECONDS, CONNECT_SECONDS
from leasehold.domain.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

_PORT_MAX = 65535
_TOKEN = re.compile(r"[!-~]+")


def base_url(api_url: str) -> httpx.URL:
    """Read the address of the API, such as https://leasehold.example.org."""
    try:
        url = httpx.URL(api_url)
    except (httpx.InvalidURL, TypeError):
        raise InvalidArgument(f"{_ADDRESS}: this is no address") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise InvalidArgument(f"{_ADDRESS}: it must begin with http:// or https://")
    if not 0 < (url.port or 1) <= _PORT_MAX:
        raise InvalidArgument(f"{_ADDRESS}: ports go to {_PORT_MAX}")
    if url.userinfo:
        raise InvalidArgument(f"{_ADDRESS}: leave out the name and password; give a token instead")
    if url.query or url.fragment:
        raise InvalidArgument(f"{_ADDRESS}: leave out what follows the path")
    return url


def headers(token: str | None) -> dict[str, str]:
    """Give the headers of every call."""
    # No compression: answers are small, and a small one can unpack to a large one.
    found = {"User-Agent": "leasehold", "Accept-Encoding": "identity"}
    if token is not None:
        if not token:
            raise InvalidArgument("the token is empty: give one, or None for an API without tokens")
        if not _TOKEN.fullmatch(token):
            raise InvalidArgument(
                "the token has a character that no token has: is it cut or quoted?"
            )
        found["Authorization"] = f"Bearer {token}"
    return found


def verification(ca_file: Path | None) -> ssl.SSLContext | bool:
    """Say whose word is taken for who the API is: the system's authorities, or one's own."""
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"the authorities in {ca_file} cannot be read: {error}") from None


def timeouts(wait_seconds: float) -> httpx.Timeout:
    """Say how long each part of a call may take."""
    return httpx.Timeout(ANSWER_SECONDS + wait_seconds, connect=CONNECT_SECONDS)


_ADDRESS = "the address of the API must be such as https://leasehold.example.org"

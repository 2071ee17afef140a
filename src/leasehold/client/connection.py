"""How to reach the API: URL, headers, TLS and timeouts. Errors never show the URL or the token."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING

import httpx

from leasehold.domain.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

CONNECT_SECONDS = 5.0
# Longer than an instance waits for its database before it answers 503.
RESPONSE_SECONDS = 20.0

_PORT_MAX = 65535
_TOKEN = re.compile(r"[!-~]+")
_BAD_URL = "the API URL must look like https://leasehold.example.org"


def base_url(api_url: str) -> httpx.URL:
    """Parse and check the URL of the API."""
    try:
        url = httpx.URL(api_url)
    except (httpx.InvalidURL, TypeError):
        raise InvalidArgument(f"{_BAD_URL}: this is not a URL") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise InvalidArgument(f"{_BAD_URL}: it must start with http:// or https://")
    if not 0 < (url.port or 1) <= _PORT_MAX:
        raise InvalidArgument(f"{_BAD_URL}: the port must be from 1 to {_PORT_MAX}")
    if url.userinfo:
        raise InvalidArgument(f"{_BAD_URL}: remove the user name and password; pass a token")
    if url.query or url.fragment:
        raise InvalidArgument(f"{_BAD_URL}: remove the query and the fragment")
    return url


def headers(token: str | None) -> dict[str, str]:
    """Return the headers of every request."""
    # No compression: responses are small, and a small compressed one could unpack to a huge one.
    found = {"User-Agent": "leasehold", "Accept-Encoding": "identity"}
    if token is not None:
        if not token:
            raise InvalidArgument("the token is empty: pass a token, or None if the API needs none")
        if not _TOKEN.fullmatch(token):
            raise InvalidArgument(
                "the token contains characters that no token has: is it truncated or quoted?"
            )
        found["Authorization"] = f"Bearer {token}"
    return found


def tls(ca_file: Path | None) -> ssl.SSLContext | bool:
    """Return the certificate authorities to trust: those of `ca_file`, or the default ones."""
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"cannot read the CA file {ca_file}: {error}") from None


def timeouts(wait_seconds: float = 0.0) -> httpx.Timeout:
    """Return the timeouts of a request that the server may keep waiting for `wait_seconds`."""
    return httpx.Timeout(RESPONSE_SECONDS + wait_seconds, connect=CONNECT_SECONDS)

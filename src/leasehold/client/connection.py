"""How to reach the API: URL, headers, TLS and proxy. Errors never show the URL or the token."""

from __future__ import annotations

import re
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from leasehold.domain.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

# As httpx has them by default.
CONNECTIONS_MAX = 100
IDLE_CONNECTIONS_MAX = 20
IDLE_SECONDS = 5.0

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


def tls(ca_file: Path | None) -> ssl.SSLContext:
    """Return the certificate authorities to trust: those of `ca_file`, or the default ones."""
    if ca_file is None:
        return httpx.create_ssl_context()
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"cannot read the CA file {ca_file}: {error}") from None


def proxy(url: httpx.URL) -> httpcore.Proxy | None:
    """Return the proxy that the environment names for the API: HTTPS_PROXY, NO_PROXY and so on."""
    found = getproxies()
    proxy_url = found.get(url.scheme) or found.get("all")
    if not proxy_url or proxy_bypass(url.host):
        return None
    try:
        named = httpx.Proxy(proxy_url if "://" in proxy_url else f"http://{proxy_url}")
    except (httpx.InvalidURL, ValueError):
        variable = f"{url.scheme}_proxy"
        raise InvalidArgument(
            f"the environment variable {variable} or all_proxy has no URL of a proxy"
        ) from None
    return httpcore.Proxy(str(named.url), auth=named.raw_auth)


@contextmanager
def as_httpx_errors() -> Generator[None]:
    """Raise the errors of httpcore as those of httpx, which have the same names."""
    try:
        yield
    except (
        httpcore.TimeoutException,
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.ProxyError,
        httpcore.UnsupportedProtocol,
    ) as error:
        kind = getattr(httpx, type(error).__name__, httpx.TransportError)
        raise kind(str(error)) from error

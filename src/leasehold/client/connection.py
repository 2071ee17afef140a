"""The connection to the API: URL, headers, TLS, proxy, and the limits of each call.

Errors never show the URL or the token.

httpx and httpcore know a timeout for each read and each write, so a server that sends a byte now
and then can keep a request going for ever. They pass a timeout on to the network without looking at
it. So the client gives them a moment (`EndsAt`), and its network (see async_transport) waits until
then.
"""

from __future__ import annotations

import math
import re
import ssl
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from leasehold.domain.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

CONNECT_SECONDS = 5.0
# Longer than an instance waits for its database before it answers 503.
RESPONSE_SECONDS = 20.0
RESPONSE_SECONDS_MIN = 0.1
# A page of 200 intents, each with the longest texts that the ledger keeps, is smaller.
RESPONSE_BYTES_MAX = 32 * 1024 * 1024

# Why a response was not read, among its extensions.
UNREAD = "leasehold_unread"
_TOO_LARGE = "it has more than {} bytes"


class EndsAt(float):
    """A moment on the monotonic clock; no single wait takes longer than `wait_seconds_max`."""

    __slots__ = ("wait_seconds_max",)
    wait_seconds_max: float

    @classmethod
    def after(cls, seconds: float, wait_seconds_max: float) -> EndsAt:
        """Return the moment `seconds` from now."""
        ends_at = cls(time.monotonic() + seconds)
        ends_at.wait_seconds_max = wait_seconds_max
        return ends_at


def remaining_seconds(timeout: float | None, over: Callable[[str], Exception]) -> float | None:
    """Return for how long to wait now; raise `over` if the moment has passed."""
    if not isinstance(timeout, EndsAt):
        return timeout
    seconds = min(timeout - time.monotonic(), timeout.wait_seconds_max)
    if seconds <= 0:
        raise over("the response took too long")
    return seconds


def checked_seconds(name: str, seconds: float, *, seconds_min: float = 0.0) -> float:
    """Return a time limit, or raise if it is none."""
    if not (math.isfinite(seconds) and seconds >= seconds_min):
        raise InvalidArgument(
            f"{name} is {seconds:g}; use a number of seconds from {seconds_min:g}"
        )
    return seconds


def try_timeouts(seconds: float) -> httpx.Timeout:
    """Return the timeouts of a try that may take `seconds` in all."""
    ends_at = EndsAt.after(seconds, wait_seconds_max=seconds)
    connect = EndsAt.after(seconds, wait_seconds_max=min(CONNECT_SECONDS, seconds))
    return httpx.Timeout(connect=connect, read=ends_at, write=ends_at, pool=seconds)


def stream_timeouts(silence_seconds: float) -> httpx.Timeout:
    """Return the timeouts of a stream without end; it may be silent for `silence_seconds`."""
    return httpx.Timeout(silence_seconds, connect=CONNECT_SECONDS)


class ResponseBody:
    """Collects the body of a response, up to a limit."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._bytes = bytearray()
        self._problem: str | None = None
        # The client asks for none. A few kilobytes can unpack to gigabytes.
        if response.headers.get("content-encoding", "identity") != "identity":
            self._problem = "it is compressed"
        elif _declared_bytes(response) > RESPONSE_BYTES_MAX:
            self._problem = _TOO_LARGE.format(RESPONSE_BYTES_MAX)

    def add(self, chunk: bytes) -> bool:
        """Take the next part, and return whether to read on."""
        self._bytes += chunk
        if len(self._bytes) > RESPONSE_BYTES_MAX:
            self._problem = _TOO_LARGE.format(RESPONSE_BYTES_MAX)
        return self._problem is None

    def response(self) -> httpx.Response:
        """Return the response with its body; if that was not read, without it and with why."""
        headers = self._response.headers.copy()
        headers.pop("content-encoding", None)
        kept = {"reason_phrase": self._response.extensions.get("reason_phrase", b"")}
        if self._problem is not None:
            kept[UNREAD] = self._problem.encode()
            self._bytes.clear()
        return httpx.Response(
            self._response.status_code, headers=headers, content=bytes(self._bytes), extensions=kept
        )


def _declared_bytes(response: httpx.Response) -> int:
    length = response.headers.get("content-length", "")
    return int(length[:20]) if length.isascii() and length.isdigit() else 0


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


def tls(url: httpx.URL, ca_file: Path | None) -> ssl.SSLContext:
    """Return the certificate authorities to trust: those of `ca_file`, or the default ones.

    Reading the default ones takes tens of milliseconds, so a client without TLS trusts none.
    """
    if ca_file is None:
        if url.scheme == "http":
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
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

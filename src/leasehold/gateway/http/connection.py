"""The connections of one contract to a server: what was sent for certain, and what perhaps.

The line is the moment when the request gets its connection. What fails earlier had no effect and is
deferred: a name that does not resolve, a refused connection, a certificate that does not verify.
What fails later is Unknown: a timeout, a reset, a response that is incomplete, too long or
malformed. Only a complete response is for the gateway to read.

The socket checks the lease whenever it sends (`checked_socket.py`). If it held back the first byte,
the call was not made.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import aiohttp

from leasehold.domain.outcome import Deferred, Unknown
from leasehold.gateway.errors import ForbiddenAddress, TrustEnded
from leasehold.gateway.http.checked_socket import (
    Call,
    CheckedConnector,
    current_call,
    has_checks,
    open_socket,
    require_checks,
)
from leasehold.gateway.http.classify import Response
from leasehold.gateway.http.guard import Guard, GuardedResolver
from leasehold.gateway.http.headers import Headers
from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from yarl import URL

    from leasehold.domain.contract import Contract
    from leasehold.gateway.http.connection_terms import ConnectionTerms
    from leasehold.gateway.protocol import Submission
    from leasehold.gateway.registry import Surroundings

_LOG = get_logger(__name__)

# How long an idle connection is kept. A gateway may close one just as we write to it, and then the
# outcome is unknown: that costs a resend (keyed, fenced), a quarantine (lookup) or a person's time
# (blind, which therefore gets a new connection for each call).
_KEEP_ALIVE_SECONDS: Mapping[str, float] = {"keyed": 15.0, "fenced": 15.0, "lookup": 2.0}


class ResponseTooLong(Exception):
    """The response exceeds response_bytes_max."""


class Connection:
    """Calls one server. The first call opens the connections."""

    def __init__(
        self, contract: Contract, terms: ConnectionTerms, surroundings: Surroundings
    ) -> None:
        """Raise GatewayMisconfigured for every mistake that shows without a call."""
        require_checks(contract)
        self.asks_before_sending = has_checks()
        self.guard = Guard(
            allow_hosts=terms.allow_hosts,
            allow_private=terms.allow_private,
            never_public=terms.hosts_in_clear if terms.secret_headers else (),
        )
        self.headers = Headers(terms, surroundings.environment)
        self.sanitizer = surroundings.sanitizer
        self._contract = contract
        self._bytes_max = terms.response_bytes_max
        self._has_tls = any(map(_is_tls, terms.urls))
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, url: URL, headers: Mapping[str, str], body: bytes, *submissions: Submission
    ) -> Response | Deferred | Unknown:
        """Submit with one request, if every submission may be sent.

        Return the complete response, or the outcome of a call without one.
        """
        call = Call(lambda: all(one.may_send() for one in submissions))
        try:
            return await self._call("POST", url, headers, body, call)
        except Exception as error:  # noqa: BLE001 (the call decides, whatever the error)
            return self._failed(submissions, error, call)

    async def get(
        self, url: URL, headers: Mapping[str, str], *submissions: Submission
    ) -> Response | Unknown:
        """Look up with one request, if any submission may be sent. A failed one may be repeated."""
        call = Call(lambda: any(one.may_send() for one in submissions))
        try:
            return await self._call("GET", url, headers, None, call)
        except Exception as error:  # noqa: BLE001 (whatever the error, the answer is unknown)
            _raise_if_refused(call)
            reason = _reason(error)
            self._log_failure("lookup_failed", reason, submissions, error)
            return Unknown(reason=reason, detail=self.sanitizer.error(error))

    async def close(self) -> None:
        """Close all connections. Calls in flight fail."""
        if self._session is not None:
            await self._session.close()

    async def _call(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None, call: Call
    ) -> Response:
        """Send one request and read the complete response, within the contract's call timeout."""
        current_call.set(call)
        async with (
            asyncio.timeout(self._contract.call_timeout_seconds),
            self._opened().request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as response,
        ):
            content = await self._read(response)
        return Response(status=response.status, headers=response.headers, body=content)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        content = bytearray()
        async for chunk in response.content.iter_any():
            content += chunk
            if len(content) > self._bytes_max:
                response.close()
                raise ResponseTooLong(f"more than {self._bytes_max} bytes")
        return bytes(content)

    def _opened(self) -> aiohttp.ClientSession:
        """Return the session. The first call opens it, because it belongs to the running loop."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(
                total=None,  # _call has a timeout of its own, exact to the millisecond
                connect=self._contract.connect_timeout_seconds,
                ceil_threshold=float("inf"),
            )
            self._session = aiohttp.ClientSession(
                connector=self._connector(),
                timeout=timeout,
                cookie_jar=aiohttp.DummyCookieJar(),  # a response must not change the next call
                trust_env=False,  # a proxy would resolve names without our guard
            )
        return self._session

    def _connector(self) -> CheckedConnector:
        keep_alive_seconds = _KEEP_ALIVE_SECONDS.get(self._contract.guarantee)
        return CheckedConnector(
            socket_factory=open_socket,
            resolver=GuardedResolver(self.guard),
            ssl=self._tls(),
            # The executor bounds the calls; twice as many leaves room for connections that close.
            limit=2 * self._contract.concurrency,
            keepalive_timeout=keep_alive_seconds,
            force_close=keep_alive_seconds is None,
        )

    def _tls(self) -> ssl.SSLContext | bool:
        """Verify certificates. Our own context reads SSL_CERT_FILE now, not at import.

        Creating one takes a tenth of a second, so only connections with TLS do.
        """
        return ssl.create_default_context() if self._has_tls else True

    def _failed(
        self, submissions: Sequence[Submission], error: Exception, call: Call
    ) -> Deferred | Unknown:
        """Return the outcome of a call without a complete response, by how far it got."""
        _raise_if_refused(call)
        reason, detail = _reason(error), self.sanitizer.error(error)
        if call.may_be_sent:
            self._log_failure("outcome_unknown", reason, submissions, error)
            return Unknown(reason=reason, detail=detail)
        if isinstance(error, ForbiddenAddress):
            # A mistake in the contract or an attack on a name server. Neither is the intent's
            # fault, so the intent is kept, and the target rests until somebody looks.
            detail = str(error)
        else:
            reason = "connect"
        self._log_failure("connect_failed", reason, submissions, error)
        return Deferred(is_target_wide=True, reason=reason, detail=detail)

    def _log_failure(
        self, event: str, reason: str, submissions: Sequence[Submission], error: Exception
    ) -> None:
        first, *others = submissions
        shown = type(error).__name__ if others else self.sanitizer.error_for_log(error, first)
        fields = {"reason": reason, "error": shown, **first.log_fields}
        if others:
            fields["submissions"] = len(submissions)
        if isinstance(error, ForbiddenAddress):
            _LOG.error("address_forbidden", host=error.host, address=error.address, **fields)
        else:
            _LOG.warning(event, **fields)


def _raise_if_refused(call: Call) -> None:
    """Say that the call was not made, if the socket held it back as a whole."""
    if call.is_refused and not call.may_be_sent:
        raise TrustEnded("the lease was not trusted any more when the call was to be sent")


def _reason(error: Exception) -> str:
    match error:
        case ResponseTooLong():
            return "response_too_long"
        case TimeoutError():
            return "timeout"
        case aiohttp.ClientPayloadError() | aiohttp.ClientResponseError() | ValueError():
            return "response_unreadable"
        case ForbiddenAddress():
            return "forbidden_address"
        case aiohttp.ClientConnectionError() | OSError():
            return "connection_lost"
        case _:
            return "error"


def _is_tls(url: str) -> bool:
    return url.lower().startswith("https:")

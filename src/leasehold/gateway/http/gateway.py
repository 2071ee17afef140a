"""The HTTP gateway: one POST per try, and the line between "nothing was sent" and "who knows".

That line is the moment before the first byte of the request is handed to the transport. aiohttp
tells us (`on_request_headers_sent` fires before it writes, not after). Whatever fails earlier, a
name that does not resolve, a refused connection, a certificate that does not verify, had no effect
and may be tried again. Whatever fails later is Unknown, unless a whole answer arrived: a timeout, a
reset, an answer that is cut short, too long or cannot be decoded.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import aiohttp
import structlog
from yarl import URL

from leasehold.domain.outcome import Retryable, Unknown
from leasehold.gateway.errors import ForbiddenAddress
from leasehold.gateway.http.classify import Answer, StatusTable, lookup_answer_of, outcome_of
from leasehold.gateway.http.guard import Guard, GuardedResolver
from leasehold.gateway.http.headers import Headers
from leasehold.gateway.ledger_text import DETAIL_MAX, clean

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import SimpleNamespace

    from leasehold.domain.contract import Contract
    from leasehold.domain.gateway_terms import HttpTerms
    from leasehold.domain.outcome import LookupAnswer, Outcome
    from leasehold.gateway.protocol import Submission

_log = structlog.get_logger(__name__)

# How long an idle connection is kept. A gateway may close one just as we write into it, and then
# nobody can tell: that costs a resend (keyed, fenced), a quarantine (lookup) or a person (blind).
_KEEP_ALIVE_SECONDS: Mapping[str, float] = {"keyed": 15.0, "fenced": 15.0, "lookup": 2.0}


@dataclass(slots=True)
class _Progress:
    """How far one request came."""

    may_have_left: bool = False


class _TooLong(Exception):
    """The answer passed its limit."""


class HttpGateway:
    """Submits to one URL. Its connections are opened by the first call."""

    def __init__(
        self, contract: Contract, terms: HttpTerms, *, environment: Mapping[str, str]
    ) -> None:
        """Raise GatewayMisconfigured for what can be seen to be wrong without a call."""
        guard = Guard(allow_hosts=terms.allow_hosts, allow_private=terms.allow_private)
        self._url = guard.checked_url(terms.url)
        self._lookup_url = guard.checked_template(terms.lookup_url) if terms.lookup_url else None
        self._headers = Headers(terms, environment)
        self._statuses = StatusTable(terms)
        self._guard = guard
        self._contract = contract
        self._bytes_max = terms.response_bytes_max
        self._session: aiohttp.ClientSession | None = None

    async def submit(self, submission: Submission) -> Outcome:
        """POST it, and say what became of it."""
        now = datetime.now(UTC)
        body = submission.payload.raw if submission.payload else submission.body or b""
        headers = self._headers.for_submission(submission, body, now)
        progress = _Progress()
        try:
            answer = await self._call("POST", self._url, headers, body, progress)
        except ForbiddenAddress as error:
            # A mistake in the contract or an attack on a name server: neither is the intent's
            # fault, so it is kept, and the target rests until somebody looks.
            return Retryable(is_saturated=True, reason="forbidden_address", detail=str(error))
        except Exception as error:  # noqa: BLE001 (the progress decides, whatever it was)
            return _failed(submission, error, progress)
        return outcome_of(answer, self._statuses, submission.submission_key, now)

    async def lookup(self, submission: Submission) -> LookupAnswer:
        """GET what became of it. Whatever goes wrong with a question, it may be asked again."""
        if self._lookup_url is None:
            return Unknown(reason="no_lookup", detail="the contract has no lookup_url")
        url = URL(self._lookup_url.replace("{key}", str(submission.submission_key)))
        headers = self._headers.for_lookup(submission)
        try:
            answer = await self._call("GET", url, headers, None, _Progress())
        except Exception as error:  # noqa: BLE001 (a question that failed tells nothing)
            reason = _reason(error)
            _log.warning("gateway.lookup_failed", reason=reason, **_names(submission))
            return Unknown(reason=reason, detail=_detail(error))
        return lookup_answer_of(answer, submission.submission_key, datetime.now(UTC))

    async def close(self) -> None:
        """Close all connections; a call in flight fails."""
        if self._session is not None:
            await self._session.close()

    async def _call(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: bytes | None,
        progress: _Progress,
    ) -> Answer:
        """Make one request and read its whole answer, all of it inside the contract's time."""
        async with (
            asyncio.timeout(self._contract.call_timeout_seconds),
            self._opened().request(
                method,
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                trace_request_ctx=progress,
            ) as response,
        ):
            content = await self._read(response)
        return Answer(status=response.status, headers=response.headers, body=content)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        content = bytearray()
        async for chunk in response.content.iter_any():
            content += chunk
            if len(content) > self._bytes_max:
                response.close()
                raise _TooLong
        return bytes(content)

    def _opened(self) -> aiohttp.ClientSession:
        """Open the session with the first call: it belongs to the loop that is then running."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(
                total=None,  # ours covers all of the call, to the millisecond
                connect=self._contract.connect_timeout_seconds,
                ceil_threshold=float("inf"),
            )
            self._session = aiohttp.ClientSession(
                connector=self._connector(),
                timeout=timeout,
                cookie_jar=aiohttp.DummyCookieJar(),  # no answer changes the next call
                trust_env=False,  # a proxy would resolve names where our guard cannot see
                trace_configs=[_traces()],
            )
        return self._session

    def _connector(self) -> aiohttp.TCPConnector:
        keep_alive_seconds = _KEEP_ALIVE_SECONDS.get(self._contract.guarantee)
        return aiohttp.TCPConnector(
            resolver=GuardedResolver(self._guard),
            ssl=self._tls(),
            # The executor bounds the calls; room beside them for connections that still close.
            limit=2 * self._contract.concurrency,
            keepalive_timeout=keep_alive_seconds,
            force_close=keep_alive_seconds is None,
        )

    def _tls(self) -> ssl.SSLContext | bool:
        """Verify certificates. A context of our own reads SSL_CERT_FILE now, not at import; to make
        one takes a tenth of a second, so only those make it who use it.
        """
        urls = (str(self._url), self._lookup_url or "")
        return ssl.create_default_context() if any(map(_is_tls, urls)) else True


def _traces() -> aiohttp.TraceConfig:
    async def before_first_byte(
        _session: aiohttp.ClientSession,
        context: SimpleNamespace,
        _parameters: aiohttp.TraceRequestHeadersSentParams,
    ) -> None:
        progress: _Progress = context.trace_request_ctx
        progress.may_have_left = True

    traces = aiohttp.TraceConfig()
    traces.on_request_headers_sent.append(before_first_byte)
    return traces


def _failed(submission: Submission, error: Exception, progress: _Progress) -> Outcome:
    """Say what a call without a whole answer means: it depends only on how far it came."""
    if progress.may_have_left:
        reason = _reason(error)
        _log.warning("gateway.outcome_unknown", reason=reason, **_names(submission))
        return Unknown(reason=reason, detail=_detail(error))
    _log.warning("gateway.not_sent", error=_detail(error), **_names(submission))
    return Retryable(is_saturated=True, reason="connect", detail=_detail(error))


def _reason(error: Exception) -> str:
    match error:
        case _TooLong():
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


def _detail(error: Exception) -> str | None:
    """Name the error. Its text comes from the network stack or the parser, never from a header of
    ours, but the parser may quote a long answer.
    """
    return clean(f"{type(error).__name__}: {error}", DETAIL_MAX)


def _is_tls(url: str) -> bool:
    return url.lower().startswith("https:")


def _names(submission: Submission) -> dict[str, str | int]:
    return {
        "intent_id": str(submission.intent_id),
        "attempt_no": submission.attempt_no,
        "target": submission.target,
    }

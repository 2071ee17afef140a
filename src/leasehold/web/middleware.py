"""The outermost application: every request gets an id, a place in the limits, a log line and, if it
fails, a problem document.
"""

from __future__ import annotations

import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from leasehold.domain.errors import LeaseholdError
from leasehold.observe.logs import get_logger
from leasehold.observe.redact import hide_api_tokens
from leasehold.web.intake import Intake, RawResponse
from leasehold.web.problems import DEFECT, MEDIA_TYPE, Problem, problem_of
from leasehold.web.request_context import Headers, RequestContext, drain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from leasehold.web.problems import Header
    from leasehold.web.service import WebService

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

HOT_PATH = "/v1/intents"
# Always answered, however many requests there are.
HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
READ_METHODS = frozenset({"GET", "HEAD"})
_PATH_LENGTH_MAX = 200
# No path of ours has one. Starlette's routes end in `$`, which matches before a line break too.
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
_WARNING_SECONDS = 1.0
# Instead of Granian's own.
_SERVER = (b"server", b"leasehold")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_LOG = get_logger(__name__)


class Middleware:
    """Wraps the routes, and answers the hot route itself."""

    def __init__(self, service: WebService, routes: App) -> None:
        self._service = service
        self._routes = routes
        self._limiter = service.limiter
        self._is_open = service.settings.is_open
        self._intake = Intake(service)
        self._warn_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        context = RequestContext(Headers(scope["headers"]), scope.get("client"))
        try:
            is_health = scope["path"] in HEALTH_PATHS
            self._limiter.enter(is_exempt=is_health)
            if self._is_open and not is_health:
                context.headers.require_loopback_host(scope["http_version"])
            url_bytes = len(scope["raw_path"]) + len(scope["query_string"])
            context.headers.require_sound(scope["http_version"], url_bytes)
            if scope["path"] == HOT_PATH and scope["method"] == "POST":
                context.route = HOT_PATH
                await self._send(context, send, await self._accept(context, scope, receive))
            else:
                await self._route(context, scope, receive, send)
        except Exception as error:  # noqa: BLE001 (every failure becomes a problem document)
            await self._refuse(context, send, error, is_read=scope["method"] in READ_METHODS)
        finally:
            self._limiter.leave()
            self._record(context, scope)
        if context.has_unread_body and context.headers.first(b"expect") is None:
            await drain(receive)

    async def _accept(self, context: RequestContext, scope: Scope, receive: Receive) -> RawResponse:
        token = self._service.tokens.authenticate(context.headers.one(b"authorization"))
        context.token = token.name
        return await self._intake.accept(receive, context, scope["query_string"], token)

    async def _route(
        self, context: RequestContext, scope: Scope, receive: Receive, send: Send
    ) -> None:
        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *self._common(context)]
            await send(message)

        if _CONTROL_CHARACTER.search(scope["path"]):
            raise Problem("not_found", "Not Found.")
        scope["context"] = context
        try:
            await self._routes(scope, receive, send_with_headers)
        finally:
            route = scope.get("route")
            if route is not None:
                context.route = route.path

    async def _send(self, context: RequestContext, send: Send, response: RawResponse) -> None:
        context.status = response.status
        headers = [
            *response.headers,
            (b"content-length", str(len(response.body)).encode()),
            *self._common(context),
        ]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    async def _refuse(
        self, context: RequestContext, send: Send, error: Exception, *, is_read: bool
    ) -> None:
        problem = error if isinstance(error, Problem) else None
        if isinstance(error, LeaseholdError):
            problem = problem_of(error, is_read=is_read)
        if problem is None:
            _LOG.error("request_failed", request_id=context.request_id, exc_info=error)
        elif problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._warn(context, error)
        if not context.status:
            await self._send(context, send, refusal(problem or DEFECT, context.request_id))

    def _warn(self, context: RequestContext, error: Exception) -> None:
        """Log why requests fail, at most once a second: without a database, all of them do."""
        if context.started_at >= self._warn_at:
            self._warn_at = context.started_at + _WARNING_SECONDS
            reason = f"{type(error).__name__}: {error}"
            _LOG.warning("request_refused", request_id=context.request_id, error=reason)

    def _common(self, context: RequestContext) -> list[Header]:
        """Return the headers of every response, and whether it is the last of its connection."""
        headers = [(b"x-request-id", context.request_id.encode()), _SERVER]
        # While draining, clients should go elsewhere.
        if self._service.is_draining or not self._is_kept(context):
            headers.append((b"connection", b"close"))
        return headers

    def _is_kept(self, context: RequestContext) -> bool:
        """Whether the connection may stay open; one that the client will close does not count."""
        is_closing = context.headers.first(b"connection") == b"close"
        return is_closing or self._service.keep_alive.keeps(context.client)

    def _record(self, context: RequestContext, scope: Scope) -> None:
        seconds = time.perf_counter() - context.started_at
        method = scope["method"] if scope["method"] in _METHODS else "other"
        # Still percent-encoded, so it can have no line break.
        path: bytes = scope["raw_path"][:_PATH_LENGTH_MAX]
        self._service.web_metrics.request(method, context.route, context.status, seconds)
        # No query, header or body, hence no secret but a token in the wrong place.
        self._service.access_log.info(
            "request",
            method=method,
            path=hide_api_tokens(path.decode("ascii", "backslashreplace")),
            status=context.status,
            milliseconds=round(seconds * 1000, 2),
            request_id=hide_api_tokens(context.request_id),
            token=context.token,
            client=context.client[0] if context.client else "",
        )


def refusal(problem: Problem, request_id: str) -> RawResponse:
    """Return the response for a problem."""
    headers = [*problem.headers, (b"content-type", MEDIA_TYPE.encode())]
    return RawResponse(problem.status, headers, problem.body(request_id))

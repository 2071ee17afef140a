"""Where every request comes in and every answer goes out: ids, the log, and what nobody caught."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from leasehold.domain.errors import LeaseholdError
from leasehold.observe.logs import get_logger
from leasehold.web.access_log import Answered
from leasehold.web.body import ClientGone
from leasehold.web.headers import Headers, request_id
from leasehold.web.host import require_loopback_host
from leasehold.web.intake import Answer, Intake
from leasehold.web.metrics import UNKNOWN_ROUTE
from leasehold.web.problems import DEFECT, MEDIA_TYPE, Problem, problem_of
from leasehold.web.protocol import REFUSED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from leasehold.web.problems import Header
    from leasehold.web.service import WebService

    ASGIScope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
    App = Callable[[ASGIScope, Receive, Send], Awaitable[None]]
    Client = tuple[str, int] | None

HOT_PATH = "/v1/intents"
# Who asks these must know the truth, however much there is to do.
_HEALTH = frozenset({"/healthz", "/readyz"})
# As nginx calls it: the client hung up before it had an answer.
CLIENT_GONE = 499
_PATH_LENGTH_MAX = 200
_COMPLAINT_SECONDS = 1.0
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_LOG = get_logger(__name__)


class Passing:
    """One request on its way through; the routes find it as `scope["passing"]`."""

    __slots__ = ("began_at", "headers", "request_id", "route", "status", "token")

    def __init__(self, headers: Headers) -> None:
        self.headers = headers
        self.request_id = request_id(headers)
        self.began_at = time.perf_counter()
        self.status = 0
        self.token = ""
        self.route = UNKNOWN_ROUTE


class Entrance:
    """The outermost application."""

    def __init__(self, service: WebService, routes: App) -> None:
        self._service = service
        self._routes = routes
        self._room = service.room
        self._is_open = service.settings.is_open
        self._intake = Intake(service)
        self._complain_at = 0.0

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._routes(scope, receive, send)
            return
        passing = Passing(Headers(scope["headers"]))
        try:
            is_health = scope["path"] in _HEALTH
            self._room.enter(is_urgent=is_health)
            if self._is_open and not is_health:
                require_loopback_host(passing.headers)
            if scope["path"] == HOT_PATH and scope["method"] == "POST":
                passing.route = HOT_PATH
                await self._answer(passing, send, await self._accepted(passing, scope, receive))
            else:
                await self._routed(passing, scope, receive, send)
        except ClientGone:
            passing.status = CLIENT_GONE
        except Exception as error:  # noqa: BLE001 (nothing may pass that is not a problem document)
            await self._refuse(passing, send, error)
        finally:
            self._room.leave()
            self._tell(passing, scope)

    async def _accepted(self, passing: Passing, scope: ASGIScope, receive: Receive) -> Answer:
        token = self._service.tokens.holder(passing.headers.one(b"authorization"))
        passing.token = token.name
        return await self._intake.accept(receive, passing.headers, scope["query_string"], token)

    async def _routed(
        self, passing: Passing, scope: ASGIScope, receive: Receive, send: Send
    ) -> None:
        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                passing.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *self._common(passing)]
            await send(message)

        scope["passing"] = passing
        try:
            await self._routes(scope, receive, sending)
        finally:
            route = scope.get("route")
            if route is not None:
                passing.route = route.path

    async def _answer(self, passing: Passing, send: Send, answer: Answer) -> None:
        passing.status = answer.status
        headers = [
            *answer.headers,
            (b"content-length", str(len(answer.body)).encode()),
            *self._common(passing),
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _refuse(self, passing: Passing, send: Send, error: Exception) -> None:
        problem = error if isinstance(error, Problem) else None
        if isinstance(error, LeaseholdError):
            problem = problem_of(error)
        if problem is None:
            _LOG.error("request_failed", request_id=passing.request_id, exc_info=error)
        elif problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._complain(passing, error)
        if not passing.status:
            await self._answer(passing, send, refused(problem or DEFECT, passing.request_id))

    def _complain(self, passing: Passing, error: Exception) -> None:
        """Say why requests fail, but not of each: when the database is away, they are many."""
        if passing.began_at >= self._complain_at:
            self._complain_at = passing.began_at + _COMPLAINT_SECONDS
            why = f"{type(error).__name__}: {error}"
            _LOG.warning("requests_fail", request_id=passing.request_id, error=why)

    def _common(self, passing: Passing) -> list[Header]:
        """Give the headers of every answer; when we are going, nobody should come back here."""
        headers = [(b"x-request-id", passing.request_id.encode())]
        if self._service.is_draining:
            headers.append((b"connection", b"close"))
        return headers

    def _tell(self, passing: Passing, scope: ASGIScope) -> None:
        seconds = time.perf_counter() - passing.began_at
        status, name = passing.status, passing.request_id
        if REFUSED in scope:
            # Of a body that never came the client was told before we were.
            status, name = scope[REFUSED]
        self._record(
            scope["method"],
            scope.get("raw_path", b""),
            status,
            seconds,
            name,
            scope.get("client"),
            route=passing.route,
            token=passing.token,
        )

    def tell_refused(
        self, method: str, path: bytes, status: int, seconds: float, name: str, client: Client
    ) -> None:
        """Count and log what was refused before it was a request, as far as it is known."""
        self._record(method, path, status, seconds, name, client)

    def _record(
        self,
        method: str,
        path: bytes,
        status: int,
        seconds: float,
        name: str,
        client: Client,
        *,
        route: str = UNKNOWN_ROUTE,
        token: str = "",
    ) -> None:
        method = method if method in _METHODS else "other"
        self._service.web_metrics.request(method, route, status, seconds)
        self._service.access_log.write(
            Answered(
                method,
                # As it was sent, not decoded: no line break and no colour can be in it.
                path[:_PATH_LENGTH_MAX].decode("ascii", "backslashreplace"),
                status,
                seconds * 1000,
                name,
                token,
                client[0] if client else "",
            )
        )


def refused(problem: Problem, request_id: str) -> Answer:
    """Write a problem as an answer."""
    headers = [*problem.headers, (b"content-type", MEDIA_TYPE.encode())]
    return Answer(problem.status, headers, problem.body(request_id))

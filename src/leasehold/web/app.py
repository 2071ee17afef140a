"""The application: the routes behind the middleware."""

from __future__ import annotations

import json
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from leasehold.domain.errors import LeaseholdError
from leasehold.web.dependencies import context_of
from leasehold.web.middleware import HEALTH_PATHS, READ_METHODS, Middleware, refusal
from leasehold.web.parsing import UNKNOWN_PARAMETER, message_of
from leasehold.web.problems import DEFECT, Fault, Problem, invalid, problem_of
from leasehold.web.routes import intents, monitoring, operations, streams
from leasehold.web.schemas import openapi

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from leasehold.web.service import WebService

# Answered to HEAD too. A HEAD of anything else is refused: it would cost as much as a GET.
_HEAD_PATHS = HEALTH_PATHS | {"/", "/openapi.json"}
_CODES = {404: "not_found", 405: "method_not_allowed"}


class Api(FastAPI):
    """FastAPI behind our middleware."""

    def __init__(self, service: WebService) -> None:
        super().__init__(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
        self.state.service = service
        self._middleware = Middleware(service, super().__call__)

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer one request."""
        await self._middleware(scope, receive, send)

    def allowed_methods(self, path: str) -> str:
        """Return all methods of a path; FastAPI only knows those of one route."""
        found = {*self.openapi()["paths"].get(path, ("get",))}
        if path in _HEAD_PATHS:
            found.add("head")
        return ", ".join(sorted(found)).upper()

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        return document()


def create_app(service: WebService) -> FastAPI:
    """Make the application of a running service."""
    app = add_routes(Api(service))
    _add_document(app, "/openapi.json", app.openapi())
    _add_document(app, "/", _about())
    app.add_exception_handler(Problem, _refuse)
    app.add_exception_handler(LeaseholdError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse)
    app.add_exception_handler(HTTPException, _refuse)
    # Starlette raises the error again after this handler, so the middleware logs it.
    app.add_exception_handler(Exception, _report_defect)
    return app


def add_routes(app: FastAPI) -> FastAPI:
    """Add the routes to an application."""
    for routes in (intents, operations, streams, monitoring):
        app.include_router(routes.router)
    return app


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document, made once per process: it takes a tenth of a second."""
    return openapi.describe(add_routes(FastAPI()))


def _add_document(app: FastAPI, path: str, document: object) -> None:
    body = json.dumps(document).encode()

    async def read_document() -> Response:
        return Response(body, media_type="application/json")

    app.add_api_route(path, read_document, methods=["GET", "HEAD"], include_in_schema=False)


def _about() -> dict[str, str]:
    """Say what answers here, and where to go on, for somebody who opens the URL in a browser."""
    package = metadata.metadata("leasehold")
    links = dict(one.split(", ", 1) for one in package.get_all("Project-URL", ()))
    return {
        "name": "Leasehold",
        "version": package["Version"],
        "documentation": links["Documentation"],
        "openapi": "/openapi.json",
        "health": "/healthz",
    }


async def _refuse(request: Request, error: Exception) -> Response:
    problem = _problem(error, is_read=request.method in READ_METHODS)
    if problem is None:
        raise error
    route = request.scope.get("route")
    if problem.code == "method_not_allowed" and route is not None:
        problem.headers = [(b"allow", request.app.allowed_methods(route.path).encode())]
    return _response(request, problem)


async def _report_defect(request: Request, _: Exception) -> Response:
    return _response(request, DEFECT)


def _response(request: Request, problem: Problem) -> Response:
    raw = refusal(problem, context_of(request).request_id)
    response = Response(raw.body, raw.status)
    response.raw_headers += raw.headers
    return response


def _problem(error: Exception, *, is_read: bool) -> Problem | None:
    match error:
        case Problem():
            return error
        case LeaseholdError():
            return problem_of(error, is_read=is_read)
        case RequestValidationError():
            return invalid([_fault(one) for one in error.errors()])
        case HTTPException():
            code = _CODES.get(error.status_code, "bad_request")
            headers = [
                (name.lower().encode(), value.encode())
                for name, value in (error.headers or {}).items()
            ]
            return Problem(code, f"{error.detail}.", headers=headers)
        case _:
            return None


def _fault(error: Any) -> Fault:  # noqa: ANN401 (pydantic's type)
    place = [str(part) for part in error["loc"] if part not in {"query", "path", "header"}]
    message = message_of(error["type"], error["msg"], UNKNOWN_PARAMETER)
    return Fault(".".join(place)[:200], message)

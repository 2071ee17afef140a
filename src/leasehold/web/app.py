"""The application: the routes behind the middleware."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from leasehold.domain.errors import LeaseholdError
from leasehold.web.dependencies import context_of
from leasehold.web.middleware import Middleware, refusal
from leasehold.web.parsing import UNKNOWN_PARAMETER, message_of
from leasehold.web.problems import DEFECT, Fault, Problem, invalid, problem_of
from leasehold.web.routes import intents, monitoring, operations
from leasehold.web.schemas import openapi

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from leasehold.web.service import WebService

_CODES = {404: "not_found", 405: "method_not_allowed"}


class Api(FastAPI):
    """FastAPI behind our middleware."""

    def __init__(self, service: WebService) -> None:
        super().__init__(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
        self.state.service = service
        self._middleware = Middleware(service, super().__call__)
        self._methods: dict[str, str] = {}

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer one request."""
        await self._middleware(scope, receive, send)

    def allowed_methods(self, path: str) -> str | None:
        """Return all methods of a path; FastAPI only knows those of one route."""
        if not self._methods:
            self._methods = {
                path: ", ".join(sorted(operations)).upper()
                for path, operations in self.openapi()["paths"].items()
            }
        return self._methods.get(path)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi.describe(self)
        return self.openapi_schema


def create_app(service: WebService) -> FastAPI:
    """Make the application of a running service."""
    app = add_routes(Api(service))
    document = json.dumps(app.openapi()).encode()

    async def read_openapi() -> Response:
        return Response(document, media_type="application/json")

    app.add_api_route("/openapi.json", read_openapi, include_in_schema=False)
    app.add_exception_handler(Problem, _refuse)
    app.add_exception_handler(LeaseholdError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse)
    app.add_exception_handler(HTTPException, _refuse)
    # Starlette raises the error again after this handler, so the middleware logs it.
    app.add_exception_handler(Exception, _report_defect)
    return app


def add_routes(app: FastAPI) -> FastAPI:
    """Add the routes to an application."""
    for routes in (intents, operations, monitoring):
        app.include_router(routes.router)
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    problem = _problem(error)
    if problem is None:
        raise error
    route = request.scope.get("route")
    if problem.code == "method_not_allowed" and route is not None:
        allowed = request.app.allowed_methods(route.path)
        if allowed is not None:
            problem.headers = [(b"allow", allowed.encode())]
    return _response(request, problem)


async def _report_defect(request: Request, _: Exception) -> Response:
    return _response(request, DEFECT)


def _response(request: Request, problem: Problem) -> Response:
    raw = refusal(problem, context_of(request).request_id)
    response = Response(raw.body, raw.status)
    response.raw_headers += raw.headers
    return response


def _problem(error: Exception) -> Problem | None:
    match error:
        case Problem():
            return error
        case LeaseholdError():
            return problem_of(error)
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

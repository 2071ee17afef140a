"""What the FastAPI routes need from a request: the service, the token, the body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from fastapi import Depends, Request
from pydantic import BaseModel

from leasehold.domain.api_token import ApiToken, TokenScope
from leasehold.web.auth import require_all_targets, require_scope
from leasehold.web.parsing import parse_model
from leasehold.web.problems import Problem
from leasehold.web.request_context import SMALL_BODY_BYTES_MAX

if TYPE_CHECKING:
    from leasehold.domain.intent import IntentId
    from leasehold.store.reader_rows import IntentStatus
    from leasehold.web.request_context import RequestContext
    from leasehold.web.service import WebService

Model = TypeVar("Model", bound=BaseModel)


def service_of(request: Request) -> WebService:
    """Return the service of the application."""
    return cast("WebService", request.app.state.service)


def context_of(request: Request) -> RequestContext:
    """Return the context that the middleware made."""
    return cast("RequestContext", request.scope["context"])


class RequireScope:
    """A dependency that returns the request's token if it has a scope."""

    def __init__(self, scope: TokenScope, *, all_targets: bool = False) -> None:
        self.scope = scope
        self._all_targets = all_targets

    async def __call__(self, request: Request) -> ApiToken:
        """Return the token, or refuse. Async, because FastAPI runs sync ones in a thread."""
        context = context_of(request)
        token = service_of(request).tokens.authenticate(context.headers.one(b"authorization"))
        context.token = token.name
        require_scope(token, self.scope)
        if self._all_targets:
            require_all_targets(token)
        return token


Reader = Annotated[ApiToken, Depends(RequireScope(TokenScope.READ))]
ReaderOfAll = Annotated[ApiToken, Depends(RequireScope(TokenScope.READ, all_targets=True))]
Operator = Annotated[ApiToken, Depends(RequireScope(TokenScope.OPERATE))]
Auditor = Annotated[ApiToken, Depends(RequireScope(TokenScope.AUDIT))]
Ingester = Annotated[ApiToken, Depends(RequireScope(TokenScope.INGEST))]


async def read_body(request: Request, bytes_max: int = SMALL_BODY_BYTES_MAX) -> bytes:
    """Read a JSON body."""
    context = context_of(request)
    context.headers.require_json()
    return await service_of(request).bodies.read(request.receive, context, bytes_max)


async def read_model(request: Request, kind: type[Model]) -> Model:
    """Read and parse a small JSON body."""
    return parse_model(kind, await read_body(request))


async def find_intent(request: Request, token: ApiToken, intent_id: IntentId) -> IntentStatus:
    """Read an intent; one that the token does not cover is not found."""
    found = await service_of(request).stores.reader.read_status([intent_id])
    if not found or not token.covers(found[0].target):
        raise Problem("not_found", "There is no intent with this id.")
    return found[0]


async def require_known_target(request: Request, target: str) -> None:
    """Refuse a target that no contract names: an empty list of it would look like good news."""
    if await service_of(request).stores.reader.read_published_contract(target) is None:
        raise Problem("unknown_target", "Check its name: `GET /v1/targets` lists the targets.")


def body_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Describe the body of a route that reads it itself, for OpenAPI."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

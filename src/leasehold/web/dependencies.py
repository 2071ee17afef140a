"""What the routes of FastAPI ask of a request: the service, its token, its body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from fastapi import Depends, Request
from pydantic import BaseModel

from leasehold.domain.api_token import ApiToken, TokenScope
from leasehold.web.auth import require_all_targets, require_scope
from leasehold.web.body import SMALL_BODY_BYTES_MAX
from leasehold.web.headers import require_json
from leasehold.web.parsing import read_model
from leasehold.web.problems import Problem

if TYPE_CHECKING:
    from leasehold.domain.intent import IntentId
    from leasehold.store.rows import IntentStatus
    from leasehold.web.middleware import Passing
    from leasehold.web.service import WebService

Model = TypeVar("Model", bound=BaseModel)


def service_of(request: Request) -> WebService:
    """Give the service that the application was made for."""
    return cast("WebService", request.app.state.service)


def passing_of(request: Request) -> Passing:
    """Give what the entrance knows of the request."""
    return cast("Passing", request.scope["passing"])


class Allowed:
    """A dependency: the token of the request, which has this scope."""

    def __init__(self, scope: TokenScope, *, all_targets: bool = False) -> None:
        self.scope = scope
        self._all_targets = all_targets

    async def __call__(self, request: Request) -> ApiToken:
        """Find the token, or refuse the request. Async: FastAPI would use a thread otherwise."""
        passing = passing_of(request)
        token = service_of(request).tokens.holder(passing.headers.one(b"authorization"))
        passing.token = token.name
        require_scope(token, self.scope)
        if self._all_targets:
            require_all_targets(token)
        return token


Reader = Annotated[ApiToken, Depends(Allowed(TokenScope.READ))]
ReaderOfAll = Annotated[ApiToken, Depends(Allowed(TokenScope.READ, all_targets=True))]
Operator = Annotated[ApiToken, Depends(Allowed(TokenScope.OPERATE))]
Auditor = Annotated[ApiToken, Depends(Allowed(TokenScope.AUDIT))]
Ingester = Annotated[ApiToken, Depends(Allowed(TokenScope.INGEST))]


async def read_body(request: Request, bytes_max: int = SMALL_BODY_BYTES_MAX) -> bytes:
    """Read the body of a request that carries JSON."""
    headers = passing_of(request).headers
    require_json(headers)
    return await service_of(request).bodies.read(request.receive, headers, bytes_max)


async def read_sent(request: Request, kind: type[Model]) -> Model:
    """Read a small body."""
    return read_model(kind, await read_body(request))


async def find_intent(request: Request, token: ApiToken, intent_id: IntentId) -> IntentStatus:
    """Read an intent; one of a target that the token is not for is not there."""
    found = await service_of(request).stores.reader.read_status([intent_id])
    if not found or not token.covers(found[0].target):
        raise Problem("not_found", "no such intent is known")
    return found[0]


def described(kind: type[BaseModel]) -> dict[str, Any]:
    """Describe the body of a route that reads it by itself, for OpenAPI."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

"""The OpenAPI document: what FastAPI finds, and what it cannot know."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from leasehold.web.problems import KINDS, MEDIA_TYPE
from leasehold.web.schemas import requests
from leasehold.web.schemas.responses import ProblemDocument

if TYPE_CHECKING:
    from fastapi import FastAPI
    from pydantic import BaseModel

REQUESTS: tuple[type[BaseModel], ...] = (
    requests.IntentRequest,
    requests.BatchRequest,
    requests.NoteRequest,
    requests.ResolveRequest,
    requests.RedriveRequest,
)
_REF = "#/components/schemas/{model}"
# These need no token.
_OPEN = frozenset({"/healthz", "/readyz"})
_RETRIED = frozenset({429, 503})


def refusals(
    *statuses: int, replayed: type[BaseModel] | None = None, unchanged: bool = False
) -> dict[int | str, dict[str, Any]]:
    """Describe the refusals of a route. Every route can answer 401 and 503."""
    found: dict[int | str, dict[str, Any]] = {}
    if replayed is not None:
        found[200] = {"model": replayed, "description": "Done before: the same response."}
    if unchanged:
        found[304] = {"description": "Not modified."}
    for status in sorted({401, 503, *statuses}):
        found[status] = _problem(status)
    return found


def _problem(status: int) -> dict[str, Any]:
    titles = [f"`{code}`: {kind.title}." for code, kind in KINDS.items() if kind.status == status]
    described: dict[str, Any] = {
        "description": " ".join(titles),
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
    }
    if status in _RETRIED:
        described["headers"] = {
            "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}
        }
    return described


def describe(app: FastAPI) -> dict[str, Any]:
    """Make the document."""
    document = get_openapi(
        title="Leasehold",
        version=metadata.version("leasehold"),
        description="Enqueue intents, read their state, and operate on them.",
        routes=app.routes,
    )
    schemas: dict[str, Any] = document["components"]["schemas"]
    _, more = models_json_schema(
        [(kind, "validation") for kind in (*REQUESTS, ProblemDocument)], ref_template=_REF
    )
    schemas |= more["$defs"]
    schemas["IntentRequest"]["oneOf"] = [
        {"required": ["payload"]},
        {"required": ["body", "content_type"]},
    ]
    # Any other object does not fail the batch; it gets its own verdict.
    schemas["BatchRequest"]["properties"]["intents"]["items"] = {
        "anyOf": [{"$ref": _REF.format(model="IntentRequest")}, {"type": "object"}]
    }
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    document["components"]["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token made with `leasehold tokens create`.",
        }
    }
    for path, operations in document["paths"].items():
        if path not in _OPEN:
            for operation in operations.values():
                operation["security"] = [{"token": []}]
    return document

"""The description of the API: what FastAPI finds, and what it cannot know."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from leasehold.web.problems import KINDS, MEDIA_TYPE
from leasehold.web.schemas import requests as models_sent
from leasehold.web.schemas import responses as models

if TYPE_CHECKING:
    from fastapi import FastAPI
    from pydantic import BaseModel

SENT: tuple[type[BaseModel], ...] = (
    models_sent.IntentSent,
    models_sent.BatchSent,
    models_sent.NoteSent,
    models_sent.ResolutionSent,
    models_sent.RedriveSent,
)
_REF = "#/components/schemas/{model}"
# Anybody may ask these.
_OPEN = frozenset({"/healthz", "/readyz"})
_RETRIED = frozenset({429, 503})


def responses(
    *statuses: int, replayed: type[BaseModel] | None = None, unchanged: bool = False
) -> dict[int | str, dict[str, Any]]:
    """Describe the refusals of a route; a token is asked for, and anything may be overloaded."""
    found: dict[int | str, dict[str, Any]] = {}
    if replayed is not None:
        found[200] = {"model": replayed, "description": "It was done before: the same answer."}
    if unchanged:
        found[304] = {"description": "Nothing has changed."}
    for status in sorted({401, 503, *statuses}):
        found[status] = _problem(status)
    return found


def _problem(status: int) -> dict[str, Any]:
    told = [f"`{code}`: {kind.title}." for code, kind in KINDS.items() if kind.status == status]
    described: dict[str, Any] = {
        "description": " ".join(told),
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
    }
    if status in _RETRIED:
        described["headers"] = {
            "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}
        }
    return described


def describe(app: FastAPI) -> dict[str, Any]:
    """Make the whole document."""
    document = get_openapi(
        title="Leasehold",
        version=metadata.version("leasehold"),
        description="Hand intents in, look at them, intervene.",
        routes=app.routes,
    )
    schemas: dict[str, Any] = document["components"]["schemas"]
    _, more = models_json_schema(
        [(kind, "validation") for kind in (*SENT, models.ProblemDocument)], ref_template=_REF
    )
    schemas |= more["$defs"]
    schemas["IntentSent"]["oneOf"] = [
        {"required": ["payload"]},
        {"required": ["body", "content_type"]},
    ]
    # Anything else in its place does not refuse the batch: it gets a verdict of its own.
    schemas["BatchSent"]["properties"]["intents"]["items"] = {
        "anyOf": [{"$ref": _REF.format(model="IntentSent")}, {"type": "object"}]
    }
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    document["components"]["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of `leasehold tokens`.",
        }
    }
    for path, operations in document["paths"].items():
        if path not in _OPEN:
            for operation in operations.values():
                operation["security"] = [{"token": []}]
    return document

"""The OpenAPI document: what FastAPI finds, and what it cannot know.

Generators of clients read it, so it avoids what they read differently. A `default` makes a member
required in one of them, and a `oneOf` beside properties makes the whole object untyped in another.
"""

from __future__ import annotations

import re
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
    requests.PauseRequest,
    requests.ResolveRequest,
    requests.RedriveRequest,
    requests.ResumeRequest,
    requests.SkipRequest,
)
_REF = "#/components/schemas/{model}"
_NULL = {"type": "null"}
# These need no token.
_OPEN = frozenset({"/healthz", "/readyz"})
_RETRIED = frozenset({429, 503})
# Their optional members are absent, never null.
_NEVER_NULL = ("ProblemDocument", "Verdict")


def refusals(
    *statuses: int,
    replayed: type[BaseModel] | None = None,
    unchanged: bool = False,
    is_open: bool = False,
) -> dict[int | str, dict[str, Any]]:
    """Describe the refusals of a route. Each can refuse a head; only an open one needs no token."""
    found: dict[int | str, dict[str, Any]] = {}
    if replayed is not None:
        found[200] = {"model": replayed, "description": "Done before: the same response."}
    if unchanged:
        found[304] = {"description": "Not modified."}
    for status in sorted({400, 431, *(() if is_open else (401, 503)), *statuses}):
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
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "/", "description": "The instance that serves this document."}],
        routes=app.routes,
    )
    document["components"]["schemas"] = _schemas(document["components"]["schemas"])
    document["components"]["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token made with `leasehold tokens create`.",
        }
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            # FastAPI appends these to the name of the function, and clients name their methods so.
            operation["operationId"] = operation["operationId"].removesuffix(
                re.sub(r"\W", "_", path) + f"_{method}"
            )
            operation["security"] = [] if path in _OPEN else [{"token": []}]
            for parameter in operation.get("parameters", ()):
                # It can be absent, but what is sent is text and never null.
                parameter["schema"] = _without_null(parameter["schema"])
    return document


def _schemas(found: dict[str, Any]) -> dict[str, Any]:
    _, more = models_json_schema(
        [(kind, "validation") for kind in (*REQUESTS, ProblemDocument)], ref_template=_REF
    )
    schemas = found | more["$defs"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for name, schema in schemas.items():
        for member, described in schema.get("properties", {}).items():
            described.pop("default", None)
            if name in _NEVER_NULL:
                schema["properties"][member] = _without_null(described)
    schemas |= _intent_requests(schemas["IntentRequest"])
    return dict(sorted(schemas.items()))


def _intent_requests(intent: dict[str, Any]) -> dict[str, Any]:
    """Split an intent in two: one with a payload and one with a body."""
    members: dict[str, Any] = intent["properties"]
    body = {name: _without_null(members[name]) for name in ("body", "content_type")}
    payload = {"payload": members["payload"] | {"not": _NULL}}
    forms = {
        "PayloadIntent": ("An intent with a JSON document.", payload, body),
        "BodyIntent": ("An intent with opaque bytes.", body, payload),
    }
    split = {
        name: intent
        | {
            "title": name,
            "description": description,
            "properties": members | given | dict.fromkeys(absent, _NULL),
            "required": ["target", *given],
            "not": {
                "anyOf": [
                    _both(("due_at", "string"), ("delay_seconds", "number")),
                    _both(("deadline_at", "string"), ("deadline_seconds", "number")),
                ]
            },
        }
        for name, (description, given, absent) in forms.items()
    }
    either = {"title": "IntentRequest", "description": "An intent to enqueue."}
    return split | {
        "IntentRequest": either | {"oneOf": [{"$ref": _REF.format(model=name)} for name in split]}
    }


def _both(*members: tuple[str, str]) -> dict[str, Any]:
    """Match an object that has all these members, none of them null."""
    return {
        "required": [name for name, _ in members],
        "properties": {name: {"type": kind} for name, kind in members},
    }


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the same value where it cannot be null."""
    kinds = [one for one in schema.get("anyOf", ()) if one != _NULL]
    if len(kinds) != 1:
        return schema
    return {name: value for name, value in schema.items() if name != "anyOf"} | kinds[0]

"""Enqueue intents and read them."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from leasehold.domain.intent import IntentId, Status
from leasehold.domain.json_text import json_text
from leasehold.web.dependencies import (
    Auditor,
    Ingester,
    Reader,
    body_schema,
    context_of,
    find_intent,
    read_body,
    require_known_target,
    service_of,
)
from leasehold.web.intake import Intake
from leasehold.web.parsing import VERBATIM, WAIT_PARAMETER, parse_wait
from leasehold.web.problems import Fault, Problem, invalid
from leasehold.web.request_context import BATCH_BYTES_MAX
from leasehold.web.schemas import requests, responses
from leasehold.web.schemas.openapi import refusals
from leasehold.web.strict_json import parse_objects

BATCH_MAX = 1000

router = APIRouter(prefix="/v1", tags=["intents"])

Id = Annotated[UUID, Path(description="The intent's id.")]


@router.post(
    "/intents",
    status_code=201,
    response_model=responses.Accepted,
    responses=refusals(
        400, 403, 404, 408, 409, 413, 415, 422, 429, 503, replayed=responses.Accepted
    ),
    openapi_extra=body_schema(requests.IntentRequest)
    | {
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "schema": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 255,
                    "pattern": "^[\\x21-\\x7e]([\\x20-\\x7e]*[\\x21-\\x7e])?$",
                },
                "description": "Instead of `idempotency_key`.",
            },
            WAIT_PARAMETER,
        ]
    },
)
async def accept_intent(request: Request, token: Ingester) -> Response:
    """Enqueue an intent: 201 when it is committed, 200 with the same body if it is repeated."""
    # The middleware answers this request itself; the route is here for OpenAPI.
    raw = await Intake(service_of(request)).accept(
        request.receive, context_of(request), request.scope["query_string"], token
    )
    headers = {name.decode(): value.decode() for name, value in raw.headers}
    return Response(raw.body, raw.status, headers)


@router.post(
    "/intents:batch",
    response_model_exclude_none=True,
    responses=refusals(400, 403, 408, 413, 415, 422, 503),
    openapi_extra=body_schema(requests.BatchRequest),
)
async def accept_intents(request: Request, token: Ingester) -> responses.Verdicts:
    """Enqueue up to 1,000 intents, with a verdict for each; a bad one affects no other."""
    body = await read_body(request, BATCH_BYTES_MAX)
    batch = parse_objects(body, "intents", VERBATIM)
    if not 1 <= len(batch) <= BATCH_MAX:
        raise invalid([Fault("intents", f"must be 1 to {BATCH_MAX}, not {len(batch)}")])
    intake = Intake(service_of(request))
    verdicts = await intake.accept_batch(batch, context_of(request), token, len(body))
    return responses.Verdicts(results=verdicts)


class ListQuery(BaseModel):
    """The filter of a list of intents."""

    model_config = ConfigDict(extra="forbid")

    target: requests.Target | None = None
    status: Status | None = None
    stream: requests.Name | None = None
    since: Annotated[
        requests.Moment | None, Field(description="Accepted at this time or later.")
    ] = None
    until: Annotated[requests.Moment | None, Field(description="Accepted before this time.")] = None
    before: Annotated[UUID | None, Field(description="Accepted before this intent.")] = None
    limit: Annotated[int, Field(ge=1, le=requests.PAGE_MAX)] = 50


@router.get("/intents", responses=refusals(403, 404, 422, 503))
async def list_intents(
    request: Request, token: Reader, query: Annotated[ListQuery, Query()]
) -> responses.Page:
    """List intents, newest first. A page may be empty and still have a `next`."""
    found = await service_of(request).stores.reader.list_intents(
        status=query.status,
        target=query.target,
        targets=token.targets,
        stream=query.stream,
        since=query.since,
        until=query.until,
        before=IntentId(query.before) if query.before else None,
        limit=query.limit,
    )
    if not found.intents and query.target is not None and token.covers(query.target):
        await require_known_target(request, query.target)
    is_full = len(found.intents) == query.limit
    return responses.Page(
        intents=[responses.Intent.model_validate(one) for one in found.intents],
        next=found.intents[-1].intent_id if is_full else found.searched_to,
    )


@router.get(
    "/intents/{intent_id}",
    response_model=responses.Intent,
    responses=refusals(403, 404, 422, 503, unchanged=True),
    openapi_extra={"parameters": [WAIT_PARAMETER]},
)
async def read_intent_status(
    request: Request,
    token: Reader,
    intent_id: Id,
    if_none_match: Annotated[str, Header(description="The `ETag` of an earlier response.")] = "",
) -> Response:
    """Read the state of an intent; 304 if it matches If-None-Match."""
    faults: list[Fault] = []
    wait_seconds = parse_wait(request.scope["query_string"], faults)
    if faults:
        raise invalid(faults)
    status = await find_intent(request, token, IntentId(intent_id))
    if wait_seconds and not status.status.is_final:
        service = service_of(request)
        service.limiter.require_room_to_wait()
        with service.limiter.waiting():
            await service.long_poll.until_final(status.intent_id, wait_seconds)
        status = await find_intent(request, token, IntentId(intent_id))
    body = responses.Intent.model_validate(status).model_dump_json().encode()
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if _matches(if_none_match, tag):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


@router.get("/intents/{intent_id}/attempts", responses=refusals(403, 404, 422, 503))
async def read_attempts(request: Request, token: Reader, intent_id: Id) -> responses.Attempts:
    """Read the ledger of an intent."""
    status = await find_intent(request, token, IntentId(intent_id))
    rows = await service_of(request).stores.reader.read_ledger([status.intent_id])
    return responses.Attempts(attempts=[responses.Attempt.model_validate(row) for row in rows])


@router.get(
    "/intents/{intent_id}/content",
    response_model=responses.Content,
    responses=refusals(403, 404, 422, 503),
)
async def read_content(request: Request, token: Auditor, intent_id: Id) -> Response:
    """Read the content of an intent; each number has every digit that is stored."""
    await find_intent(request, token, IntentId(intent_id))
    content = await service_of(request).stores.auditor.read_content(IntentId(intent_id))
    if content is None:
        raise Problem("not_found", "There is no intent with this id.")
    members = {
        "intent_id": str(intent_id),
        "payload": content.payload,
        "body": None if content.body is None else b64encode(content.body).decode(),
        "content_type": content.content_type,
        "metadata": content.metadata,
    }
    return Response(json_text(members, ascii_only=False), media_type="application/json")


def _matches(given: str, tag: str) -> bool:
    known = {one.strip().removeprefix("W/") for one in given.split(",")}
    return tag in known or "*" in known

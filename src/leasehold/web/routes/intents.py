"""Taking intents and looking at them."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from leasehold.domain.intent import IntentId, Status
from leasehold.web import wait_query
from leasehold.web.batch import Batch
from leasehold.web.body import BATCH_BYTES_MAX
from leasehold.web.dependencies import (
    Auditor,
    Ingester,
    Reader,
    described,
    find_intent,
    passing_of,
    read_body,
    service_of,
)
from leasehold.web.intake import Intake
from leasehold.web.limiter import require_waiting_room
from leasehold.web.parsing import UNREAD
from leasehold.web.problems import Fault, Problem, invalid
from leasehold.web.schemas import requests as models_sent
from leasehold.web.schemas import responses as models
from leasehold.web.schemas import types as kinds
from leasehold.web.schemas.openapi import responses
from leasehold.web.strict_json import parse_objects

if TYPE_CHECKING:
    from leasehold.domain.intent import JsonDocument

BATCH_MAX = 1000

router = APIRouter(prefix="/v1", tags=["intents"])

Id = Annotated[UUID, Path(description="The intent's id.")]


@router.post(
    "/intents",
    status_code=201,
    response_model=models.Accepted,
    responses=responses(400, 403, 404, 408, 409, 413, 415, 422, 429, 503, replayed=models.Accepted),
    openapi_extra=described(models_sent.IntentSent)
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
                    "pattern": "^[\\x20-\\x7e]+$",
                },
                "description": "In the place of `idempotency_key`.",
            },
            wait_query.DESCRIBED,
        ]
    },
)
async def accept_intent(request: Request, token: Ingester) -> Response:
    """Accept an intent: 201 when it is committed, 200 with the same answer for a repetition."""
    # The entrance answers this itself; here it is described, and answered for whoever has mounted
    # the routes elsewhere.
    answer = await Intake(service_of(request)).accept(
        request.receive, passing_of(request).headers, request.scope["query_string"], token
    )
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    return Response(answer.body, answer.status, headers)


@router.post(
    "/intents:batch",
    response_model=models.Verdicts,
    response_model_exclude_none=True,
    responses=responses(400, 403, 408, 413, 415, 422, 503),
    openapi_extra=described(models_sent.BatchSent),
)
async def accept_intents(request: Request, token: Ingester) -> models.Verdicts:
    """Accept up to 1,000 intents, with a verdict for each: one bad one does not hurt the others."""
    body = await read_body(request, BATCH_BYTES_MAX)
    sent = parse_objects(body, "intents", UNREAD)
    if not 1 <= len(sent) <= BATCH_MAX:
        raise invalid([Fault("intents", f"must be 1 to {BATCH_MAX}, but are {len(sent)}")])
    return models.Verdicts(results=await Batch(request, token, len(body)).accept(sent))


class ListQuery(BaseModel):
    """Which intents to list."""

    model_config = ConfigDict(extra="forbid")

    target: kinds.Target | None = None
    status: Status | None = None
    stream: kinds.Name | None = None
    since: Annotated[kinds.Moment | None, Field(description="Accepted at this time or later.")] = (
        None
    )
    until: Annotated[kinds.Moment | None, Field(description="Accepted before this time.")] = None
    before: Annotated[UUID | None, Field(description="Accepted before this intent.")] = None
    limit: Annotated[int, Field(ge=1, le=kinds.PAGE_MAX)] = 50


@router.get("/intents", response_model=models.Page, responses=responses(403, 422, 503))
async def list_intents(
    request: Request, token: Reader, query: Annotated[ListQuery, Query()]
) -> models.Page:
    """List intents, newest first. A page may be empty and yet have a next one."""
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
    is_full = len(found.intents) == query.limit
    return models.Page(
        intents=[models.Intent.model_validate(one) for one in found.intents],
        next=found.intents[-1].intent_id if is_full else found.searched_to,
    )


@router.get(
    "/intents/{intent_id}",
    response_model=models.Intent,
    responses=responses(403, 404, 422, 503, unchanged=True),
    openapi_extra={"parameters": [wait_query.DESCRIBED]},
)
async def read_intent_status(
    request: Request,
    token: Reader,
    intent_id: Id,
    if_none_match: Annotated[str, Header(description="The `ETag` of an answer before.")] = "",
) -> Response:
    """Say where an intent stands; with If-None-Match, whether that has changed."""
    faults: list[Fault] = []
    wait_seconds = wait_query.read_wait(request.scope["query_string"], faults)
    if faults:
        raise invalid(faults)
    status = await find_intent(request, token, IntentId(intent_id))
    if wait_seconds and not status.status.is_final:
        service = service_of(request)
        require_waiting_room(service.room)
        with service.room.waiting():
            await service.waits.until_final(status.intent_id, wait_seconds)
        status = await find_intent(request, token, IntentId(intent_id))
    body = models.Intent.model_validate(status).model_dump_json().encode()
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if _is_known(if_none_match, tag):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


@router.get(
    "/intents/{intent_id}/attempts",
    response_model=models.Attempts,
    responses=responses(403, 404, 422, 503),
)
async def read_attempts(request: Request, token: Reader, intent_id: Id) -> models.Attempts:
    """Read the ledger of an intent."""
    status = await find_intent(request, token, IntentId(intent_id))
    rows = await service_of(request).stores.reader.read_ledger([status.intent_id])
    return models.Attempts(attempts=[models.Attempt.model_validate(row) for row in rows])


@router.get(
    "/intents/{intent_id}/content",
    response_model=models.Content,
    responses=responses(403, 404, 422, 503),
)
async def read_content(request: Request, token: Auditor, intent_id: Id) -> models.Content:
    """Read what an intent carries."""
    await find_intent(request, token, IntentId(intent_id))
    content = await service_of(request).stores.auditor.read_content(IntentId(intent_id))
    if content is None:
        raise Problem("not_found", "no such intent is known")
    return models.Content(
        intent_id=intent_id,
        payload=_value(content.payload),
        body=None if content.body is None else b64encode(content.body).decode(),
        content_type=content.content_type,
        metadata=_value(content.metadata),
    )


def _is_known(asked: str, tag: str) -> bool:
    known = {one.strip().removeprefix("W/") for one in asked.split(",")}
    return tag in known or "*" in known


def _value(document: JsonDocument | None) -> Any:  # noqa: ANN401 (any JSON)
    return None if document is None else document.value()

"""Read streams that do not go on; pause, resume and skip. The record names the token as operator.

A stream is named by a query parameter or a member, never by a part of the path: its name may have
slashes and percent signs, which servers and proxies decode in a path before a route sees them.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from leasehold.domain.advice import STREAM_ADVICE
from leasehold.domain.intent import IntentId
from leasehold.domain.intent_rules import Fault
from leasehold.domain.verdict import PauseVerdict
from leasehold.web.auth import require_target
from leasehold.web.dependencies import (
    Operator,
    Reader,
    body_schema,
    find_intent,
    read_model,
    require_known_target,
    service_of,
)
from leasehold.web.problems import RETRY_SECONDS, Problem, invalid
from leasehold.web.schemas import requests, responses
from leasehold.web.schemas.openapi import refusals

if TYPE_CHECKING:
    from leasehold.domain.api_token import ApiToken
    from leasehold.domain.verdict import ResumeVerdict, SkipVerdict

# A target, NUL and the name of a stream. Neither has control characters.
_CURSOR = re.compile(r"([^\x00-\x1f\x7f-\x9f]{1,64})\0([^\x00-\x1f\x7f-\x9f]{1,255})")
_REFUSALS = (400, 403, 404, 408, 409, 413, 415, 422, 503)

router = APIRouter(prefix="/v1", tags=["streams"])


class BlockedQuery(BaseModel):
    """The blocked streams to list."""

    model_config = ConfigDict(extra="forbid")

    target: requests.Target | None = None
    after: Annotated[
        str | None,
        # Base64 of the longest target and the longest stream, in UTF-8.
        Field(
            min_length=1,
            max_length=1704,
            pattern="^[A-Za-z0-9_-]+$",
            description="The `next` of the previous page.",
        ),
    ] = None
    limit: Annotated[int, Field(ge=1, le=requests.PAGE_MAX)] = 50


class StreamQuery(BaseModel):
    """The stream to read."""

    model_config = ConfigDict(extra="forbid")

    target: requests.Target
    stream: requests.Name


@router.get("/streams", responses=refusals(403, 404, 422, 503))
async def list_blocked_streams(
    request: Request, token: Reader, query: Annotated[BlockedQuery, Query()]
) -> responses.BlockedStreams:
    """List streams that are paused, or whose head was tried and has not ended."""
    targets = None if token.targets is None else sorted(token.targets)
    if query.target is not None:
        require_target(token, query.target)
        targets = [query.target]
    found = await service_of(request).stores.reader.read_blocked_streams(
        targets, None if query.after is None else _parse_cursor(query.after), query.limit
    )
    if not found and query.target is not None:
        await require_known_target(request, query.target)
    is_full = len(found) == query.limit
    return responses.BlockedStreams(
        streams=[responses.BlockedStream.model_validate(one) for one in found],
        next=_cursor(found[-1].target, found[-1].stream) if is_full else None,
    )


@router.get("/stream", responses=refusals(403, 404, 422, 503))
async def read_stream(
    request: Request, token: Reader, query: Annotated[StreamQuery, Query()]
) -> responses.Stream:
    """Read one stream: its head, its state and its holder."""
    require_target(token, query.target)
    found = await service_of(request).stores.reader.read_stream(query.target, query.stream)
    if found is None:
        raise _not_found()
    return responses.Stream.model_validate(found)


@router.post(
    "/stream/pause",
    responses=refusals(*_REFUSALS),
    openapi_extra=body_schema(requests.PauseRequest),
)
async def pause_stream(request: Request, token: Operator) -> responses.StreamIntervened:
    """Begin nothing more of a stream. A call in flight goes on."""
    body = await read_model(request, requests.PauseRequest)
    require_target(token, body.target)
    verdict = await service_of(request).stores.operator.pause_stream(
        body.target, body.stream, token.name, body.note, body.seconds
    )
    return _intervened(body, token, verdict, is_done=verdict is PauseVerdict.PAUSED)


@router.post(
    "/stream/resume",
    responses=refusals(*_REFUSALS),
    openapi_extra=body_schema(requests.ResumeRequest),
)
async def resume_stream(request: Request, token: Operator) -> responses.StreamIntervened:
    """End a pause of a stream: that of this token, of another person, or for a failed intent.

    The verdict is `still_paused` if the stream is paused for another reason, else `resumed`.
    """
    body = await read_model(request, requests.ResumeRequest)
    require_target(token, body.target)
    verdict = await service_of(request).stores.operator.resume_stream(
        body.target,
        body.stream,
        token.name,
        body.note,
        paused_by=body.paused_by,
        paused_for=None if body.paused_for is None else IntentId(body.paused_for),
    )
    return _intervened(body, token, verdict, is_done=verdict.is_done)


@router.post(
    "/stream/skip", responses=refusals(*_REFUSALS), openapi_extra=body_schema(requests.SkipRequest)
)
async def skip_stream_head(request: Request, token: Operator) -> responses.StreamIntervened:
    """Cancel the head of a stream, so that the next intent can go.

    If the stream is paused, it stays so, and the verdict is `skipped_paused`.
    """
    body = await read_model(request, requests.SkipRequest)
    require_target(token, body.target)
    intent_id = IntentId(body.intent_id)
    # The verdict on an intent of another stream would tell a token of what it may not see.
    intent = await find_intent(request, token, intent_id)
    if (intent.target, intent.stream) != (body.target, body.stream):
        raise Problem("not_found", "There is no intent with this id in this stream.")
    verdict = await service_of(request).stores.operator.skip_stream_head(
        body.target, body.stream, intent_id, token.name, body.note
    )
    return _intervened(body, token, verdict, is_done=verdict.is_done)


def _cursor(target: str, stream: str) -> str:
    return urlsafe_b64encode(f"{target}\0{stream}".encode()).decode().rstrip("=")


def _parse_cursor(text: str) -> tuple[str, str]:
    try:
        decoded = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        decoded = ""
    found = _CURSOR.fullmatch(decoded)
    if found is None:
        raise invalid([Fault("after", "must be the `next` of a page")])
    return found[1], found[2]


def _intervened(
    body: requests.StreamRequest,
    token: ApiToken,
    verdict: PauseVerdict | ResumeVerdict | SkipVerdict,
    *,
    is_done: bool,
) -> responses.StreamIntervened:
    if is_done:
        return responses.StreamIntervened(
            target=body.target, stream=body.stream, verdict=verdict, operator=token.name
        )
    if verdict == "not_found":
        raise _not_found()
    raise Problem(
        "not_possible",
        STREAM_ADVICE[verdict],
        retry_seconds=RETRY_SECONDS if verdict == "in_flight" else None,
        verdict=str(verdict),
    )


def _not_found() -> Problem:
    return Problem("not_found", "There is no such stream.")

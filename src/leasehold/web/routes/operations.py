"""Operate on intents: cancel, resolve, retry, redrive. The token is recorded as the operator."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response

from leasehold.domain.advice import INTENT_ADVICE
from leasehold.domain.intent import RESOLVED_STATES, IntentId
from leasehold.domain.verdict import CancelVerdict, RedriveVerdict, ResolveVerdict, RetryNowVerdict
from leasehold.web.auth import require_target
from leasehold.web.dependencies import Operator, body_schema, find_intent, read_model, service_of
from leasehold.web.problems import RETRY_SECONDS, Problem
from leasehold.web.schemas import requests, responses
from leasehold.web.schemas.openapi import refusals

if TYPE_CHECKING:
    from leasehold.domain.api_token import ApiToken

# One query searches a bounded window of intents; a redrive makes at most this many queries.
_QUERIES_MAX = 20

router = APIRouter(prefix="/v1", tags=["operations"])

Id = Annotated[UUID, Path(description="The intent's id.")]
_REFUSALS = (400, 403, 404, 408, 409, 413, 415, 422, 503)


@router.post(
    "/intents/{intent_id}/cancel",
    responses=refusals(*_REFUSALS),
    openapi_extra=body_schema(requests.NoteRequest),
)
async def cancel_intent(request: Request, token: Operator, intent_id: Id) -> responses.Intervened:
    """Cancel an intent for which no call was made."""
    body = await read_model(request, requests.NoteRequest)
    await find_intent(request, token, IntentId(intent_id))
    operator = service_of(request).stores.operator
    verdict = await operator.cancel_intent(IntentId(intent_id), token.name, body.note)
    return _intervened(intent_id, token, verdict, is_done=verdict is CancelVerdict.CANCELLED)


@router.post(
    "/intents/{intent_id}/resolve",
    responses=refusals(*_REFUSALS),
    openapi_extra=body_schema(requests.ResolveRequest),
)
async def resolve_intent(request: Request, token: Operator, intent_id: Id) -> responses.Intervened:
    """Decide the outcome of an intent that is in doubt, held or confirming."""
    body = await read_model(request, requests.ResolveRequest)
    await find_intent(request, token, IntentId(intent_id))
    verdict = await service_of(request).stores.operator.resolve_intent(
        IntentId(intent_id), RESOLVED_STATES[body.resolution], token.name, body.note, body.reference
    )
    return _intervened(intent_id, token, verdict, is_done=verdict is ResolveVerdict.RESOLVED)


@router.post(
    "/intents/{intent_id}/retry-now",
    responses=refusals(*_REFUSALS),
    openapi_extra=body_schema(requests.NoteRequest),
)
async def retry_intent_now(
    request: Request, token: Operator, intent_id: Id
) -> responses.Intervened:
    """Make an intent due now that waits for a backoff, or whose call was deferred."""
    body = await read_model(request, requests.NoteRequest)
    await find_intent(request, token, IntentId(intent_id))
    operator = service_of(request).stores.operator
    verdict = await operator.retry_intent_now(IntentId(intent_id), token.name, body.note)
    return _intervened(intent_id, token, verdict, is_done=verdict is RetryNowVerdict.DUE_NOW)


@router.post(
    "/intents/{intent_id}/retry",
    status_code=201,
    responses=refusals(*_REFUSALS, 429, replayed=responses.Retried),
    openapi_extra=body_schema(requests.NoteRequest),
)
async def retry_intent(
    request: Request, response: Response, token: Operator, intent_id: Id
) -> responses.Retried:
    """Retry a finished intent as a new intent: 201, or 200 if that was done before."""
    body = await read_model(request, requests.NoteRequest)
    await find_intent(request, token, IntentId(intent_id))
    service = service_of(request)
    service.redrive_limiter.take(1)
    [one] = await service.stores.operator.redrive_intents(
        [IntentId(intent_id)], token.name, body.note
    )
    if one.new_intent_id is None:
        raise _not_possible(one.verdict)
    if one.verdict is not RedriveVerdict.REDRIVEN:
        response.status_code = 200
    href = f"/v1/intents/{one.new_intent_id}"
    response.headers["location"] = href
    return responses.Retried(
        intent_id=intent_id,
        verdict=one.verdict,
        new_intent_id=one.new_intent_id,
        operator=token.name,
        href=href,
    )


@router.post(
    "/redrive",
    responses=refusals(400, 403, 408, 409, 413, 415, 422, 429, 503),
    openapi_extra=body_schema(requests.RedriveRequest),
)
async def redrive(request: Request, token: Operator) -> responses.Redrive:
    """Retry finished intents of one target: first a dry run, then with its confirmation."""
    body = await read_model(request, requests.RedriveRequest)
    require_target(token, body.target)
    service = service_of(request)
    found, following = await _find(request, body)
    confirmation = _confirmation(token, body, found)
    if not body.dry_run:
        if body.confirmation != confirmation:
            raise Problem(
                "not_confirmed",
                "This would redrive other intents than the dry run found. Make a dry run with the "
                "same filter, and send its confirmation.",
            )
        service.redrive_limiter.take(len(found))
    results = []
    if found and not body.dry_run:
        results = await service.stores.operator.redrive_intents(found, token.name, body.note)
    return responses.Redrive(
        dry_run=body.dry_run,
        count=len(found),
        confirmation=confirmation,
        next=following,
        intent_ids=list(found),
        results=None
        if body.dry_run
        else [responses.Redriven.model_validate(one) for one in results],
    )


async def _find(
    request: Request, body: requests.RedriveRequest
) -> tuple[list[IntentId], IntentId | None]:
    """Return the intents that match, and where to continue."""
    reader = service_of(request).stores.reader
    found: list[IntentId] = []
    before = IntentId(body.before) if body.before else None
    for _ in range(_QUERIES_MAX):
        wanted = body.limit - len(found)
        listing = await reader.list_intents(
            status=body.status,
            target=body.target,
            stream=body.stream,
            since=body.since,
            until=body.until,
            before=before,
            limit=wanted,
        )
        found += [one.intent_id for one in listing.intents]
        before = found[-1] if len(listing.intents) == wanted else listing.searched_to
        if len(found) == body.limit or before is None:
            break
    return found, before


def _confirmation(token: ApiToken, body: requests.RedriveRequest, found: list[IntentId]) -> str:
    """Hash who asks for what: the same at every instance, and different for any other request."""
    request = "\0".join([token.name, body.target, body.status, *map(str, found)])
    return hashlib.sha256(request.encode()).hexdigest()


def _intervened(
    intent_id: UUID,
    token: ApiToken,
    verdict: CancelVerdict | ResolveVerdict | RetryNowVerdict,
    *,
    is_done: bool,
) -> responses.Intervened:
    if not is_done:
        raise _not_possible(verdict)
    return responses.Intervened(intent_id=intent_id, verdict=verdict, operator=token.name)


def _not_possible(verdict: str) -> Problem:
    if verdict == "not_found":
        return Problem("not_found", INTENT_ADVICE[verdict])
    retry_seconds = RETRY_SECONDS if verdict == "in_flight" else None
    return Problem(
        "not_possible", INTENT_ADVICE[verdict], retry_seconds=retry_seconds, verdict=str(verdict)
    )

"""Intervening: every change is a row of the ledger in the name of the token."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response

from leasehold.domain.intent import AttemptState, IntentId
from leasehold.domain.verdict import CancelVerdict, RedriveVerdict, ResolveVerdict
from leasehold.web.auth import require_target
from leasehold.web.dependencies import Operator, described, find_intent, read_sent, service_of
from leasehold.web.problems import RETRY_SECONDS, Problem
from leasehold.web.schemas import requests as models_sent
from leasehold.web.schemas import responses as models
from leasehold.web.schemas.openapi import responses

if TYPE_CHECKING:
    from leasehold.domain.api_token import ApiToken

# One call looks at a bounded piece of what was ever accepted; a dry run makes so many calls.
_LOOKS_MAX = 20
_STATES = {
    "dispatched": AttemptState.DISPATCHED,
    "failed": AttemptState.FAILED,
    "retry": AttemptState.RETRYABLE,
}
_ADVICE = {
    "in_flight": "somebody is at it right now; try again when its claim has ended",
    "in_doubt": "a call may have had its effect: resolve it instead",
    "confirming": "the gateway has it already: resolve it instead",
    "not_in_doubt": "there is no doubt about it",
    "already_terminal": "it is finished",
    "already_accepted": "the gateway accepted it: there is nothing to try anew",
    "not_terminal": "it is not finished yet",
    "unknown_target": "no contract is published for its target any more",
}

router = APIRouter(prefix="/v1", tags=["operating"])

Id = Annotated[UUID, Path(description="The intent's id.")]
_REFUSALS = (400, 403, 404, 408, 409, 413, 415, 422, 503)


@router.post(
    "/intents/{intent_id}/cancel",
    response_model=models.Intervened,
    responses=responses(*_REFUSALS),
    openapi_extra=described(models_sent.NoteSent),
)
async def cancel_intent(request: Request, token: Operator, intent_id: Id) -> models.Intervened:
    """Cancel an intent that no call was made for."""
    sent = await read_sent(request, models_sent.NoteSent)
    await find_intent(request, token, IntentId(intent_id))
    operator = service_of(request).stores.operator
    verdict = await operator.cancel_intent(IntentId(intent_id), token.name, sent.note)
    return _intervened(intent_id, token, verdict, is_done=verdict is CancelVerdict.CANCELLED)


@router.post(
    "/intents/{intent_id}/resolve",
    response_model=models.Intervened,
    responses=responses(*_REFUSALS),
    openapi_extra=described(models_sent.ResolutionSent),
)
async def resolve_intent(request: Request, token: Operator, intent_id: Id) -> models.Intervened:
    """Say what became of an intent that is in doubt, held or awaiting confirmation."""
    sent = await read_sent(request, models_sent.ResolutionSent)
    await find_intent(request, token, IntentId(intent_id))
    verdict = await service_of(request).stores.operator.resolve_intent(
        IntentId(intent_id), _STATES[sent.resolution], token.name, sent.note, sent.reference
    )
    return _intervened(intent_id, token, verdict, is_done=verdict is ResolveVerdict.RESOLVED)


@router.post(
    "/intents/{intent_id}/retry",
    status_code=201,
    response_model=models.Retried,
    responses=responses(*_REFUSALS, 429, replayed=models.Retried),
    openapi_extra=described(models_sent.NoteSent),
)
async def retry_intent(
    request: Request, response: Response, token: Operator, intent_id: Id
) -> models.Retried:
    """Try a finished intent anew, as a new intent: 201, or 200 where that was done before."""
    sent = await read_sent(request, models_sent.NoteSent)
    await find_intent(request, token, IntentId(intent_id))
    service = service_of(request)
    service.redrive_rate.take(1)
    [one] = await service.stores.operator.redrive_intents(
        [IntentId(intent_id)], token.name, sent.note
    )
    if one.new_intent_id is None:
        raise _not_possible(one.verdict)
    if one.verdict is not RedriveVerdict.REDRIVEN:
        response.status_code = 200
    href = f"/v1/intents/{one.new_intent_id}"
    response.headers["location"] = href
    return models.Retried(
        intent_id=intent_id,
        verdict=one.verdict,
        new_intent_id=one.new_intent_id,
        operator=token.name,
        href=href,
    )


@router.post(
    "/redrive",
    response_model=models.Redrive,
    responses=responses(400, 403, 408, 409, 413, 415, 422, 429, 503),
    openapi_extra=described(models_sent.RedriveSent),
)
async def redrive(request: Request, token: Operator) -> models.Redrive:
    """Try finished intents of one target anew: first as a dry run, then with its confirmation."""
    sent = await read_sent(request, models_sent.RedriveSent)
    require_target(token, sent.target)
    service = service_of(request)
    found, following = await _found(request, sent)
    confirmation = _confirmation(token, sent, found)
    if not sent.dry_run:
        if sent.confirmation != confirmation:
            raise Problem(
                "not_confirmed",
                "what would be tried anew is not what a dry run has shown: make one, with the "
                "same filter, and send its confirmation",
            )
        service.redrive_rate.take(len(found))
    results = []
    if found and not sent.dry_run:
        results = await service.stores.operator.redrive_intents(found, token.name, sent.note)
    return models.Redrive(
        dry_run=sent.dry_run,
        count=len(found),
        confirmation=confirmation,
        next=following,
        intent_ids=list(found),
        results=None if sent.dry_run else [models.Redriven.model_validate(one) for one in results],
    )


async def _found(
    request: Request, sent: models_sent.RedriveSent
) -> tuple[list[IntentId], IntentId | None]:
    """Look for what the filter asks for, some bounded way back; and say where to go on."""
    reader = service_of(request).stores.reader
    found: list[IntentId] = []
    before = IntentId(sent.before) if sent.before else None
    for _ in range(_LOOKS_MAX):
        wanted = sent.limit - len(found)
        listing = await reader.list_intents(
            status=sent.status,
            target=sent.target,
            stream=sent.stream,
            since=sent.since,
            until=sent.until,
            before=before,
            limit=wanted,
        )
        found += [one.intent_id for one in listing.intents]
        before = found[-1] if len(listing.intents) == wanted else listing.searched_to
        if len(found) == sent.limit or before is None:
            break
    return found, before


def _confirmation(token: ApiToken, sent: models_sent.RedriveSent, found: list[IntentId]) -> str:
    """Sum up who asks for what: any instance finds the same, and nothing else has the same sum."""
    asked = "\0".join([token.name, sent.target, sent.status, *map(str, found)])
    return hashlib.sha256(asked.encode()).hexdigest()


def _intervened(
    intent_id: UUID, token: ApiToken, verdict: CancelVerdict | ResolveVerdict, *, is_done: bool
) -> models.Intervened:
    if not is_done:
        raise _not_possible(verdict)
    return models.Intervened(intent_id=intent_id, verdict=verdict, operator=token.name)


def _not_possible(verdict: str) -> Problem:
    if verdict == "not_found":
        return Problem("not_found", "no such intent is known")
    retry_seconds = RETRY_SECONDS if verdict == "in_flight" else None
    return Problem(
        "not_possible", _ADVICE[verdict], retry_seconds=retry_seconds, verdict=str(verdict)
    )

"""Accepting intents: the hot route POST /v1/intents without a framework around it, and batches.

A response is sent only after the commit. A repeated request gets the response of the first.
"""

from __future__ import annotations

from http import HTTPStatus
from json.encoder import encode_basestring_ascii as quote
from typing import TYPE_CHECKING, Any, NamedTuple

from leasehold.domain.api_token import TokenScope
from leasehold.domain.errors import DatabaseUnavailable, IntakeFull, LeaseholdError
from leasehold.domain.intent import NewIntent
from leasehold.domain.verdict import BatchVerdict, EnqueueVerdict
from leasehold.observe.logs import get_logger
from leasehold.store.rows import Enqueued
from leasehold.web.auth import require_scope
from leasehold.web.parsing import VERBATIM, parse_intent, parse_wait, too_large
from leasehold.web.problems import DEFECT, Fault, Problem, invalid, problem_of
from leasehold.web.request_context import BODY_BYTES_MAX
from leasehold.web.schemas import requests, responses
from leasehold.web.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.domain.api_token import ApiToken
    from leasehold.domain.intent import IntentId
    from leasehold.web.admission import Reservation
    from leasehold.web.problems import Header
    from leasehold.web.request_context import Receive, RequestContext
    from leasehold.web.service import WebService

# For each intent of a batch: there may be a thousand of them.
BATCH_FAULTS_MAX = 10
_JSON: Header = (b"content-type", b"application/json")
_REPLAYED: Header = (b"idempotent-replayed", b"true")
_STATUS = {EnqueueVerdict.ACCEPTED: HTTPStatus.CREATED, EnqueueVerdict.DUPLICATE: HTTPStatus.OK}
_BATCH_VERDICTS = {
    "idempotency_conflict": BatchVerdict.CONFLICT,
    "unknown_target": BatchVerdict.UNKNOWN_TARGET,
    "too_large": BatchVerdict.TOO_LARGE,
    "forbidden": BatchVerdict.FORBIDDEN,
    "queue_full": BatchVerdict.QUEUE_FULL,
    "database_unavailable": BatchVerdict.UNAVAILABLE,
    "intake_full": BatchVerdict.UNAVAILABLE,
    "internal": BatchVerdict.UNAVAILABLE,
}

_LOG = get_logger(__name__)


class RawResponse(NamedTuple):
    """A response without the headers that all responses have."""

    status: int
    headers: list[Header]
    body: bytes


class Intake:
    """Accepts the intents of one instance."""

    def __init__(self, service: WebService) -> None:
        self._service = service

    async def accept(
        self, receive: Receive, context: RequestContext, query: bytes, token: ApiToken
    ) -> RawResponse:
        """Answer POST /v1/intents."""
        require_scope(token, TokenScope.INGEST)
        headers = context.headers
        headers.require_json()
        body = await self._service.bodies.read(receive, context, BODY_BYTES_MAX)
        members = parse_object(body, VERBATIM)
        faults: list[Fault] = []
        wait_seconds = parse_wait(query, faults)
        new = parse_intent(
            members,
            key=headers.idempotency_key(faults),
            trace_context=headers.trace_context(),
            faults=faults,
        )
        result = await self._enqueue(token, new, len(body))
        if result.verdict not in _STATUS or result.intent_id is None:
            raise _refusal(new, result)
        more = await self._wait(token, result.intent_id, wait_seconds) if wait_seconds else ""
        return _accepted(new, result.intent_id, result.verdict, more)

    async def accept_batch(
        self,
        batch: Sequence[dict[str, Any]],
        context: RequestContext,
        token: ApiToken,
        body_bytes: int,
    ) -> list[responses.Verdict]:
        """Enqueue the intents of one request; each has its own verdict and affects no other."""
        trace_context = context.headers.trace_context()
        parsed = [_parse_or_problem(members, trace_context) for members in batch]
        admitted = await self._service.admission.admit_many(token, parsed)
        good = [
            (new, reservation)
            for new, reservation in zip(parsed, admitted, strict=True)
            if isinstance(new, NewIntent) and not isinstance(reservation, Problem)
        ]
        results = iter(await self._enqueue_many(good, body_bytes))
        return [
            _verdict(ordinal, new, found if isinstance(found, Problem) else next(results), context)
            for ordinal, (new, found) in enumerate(zip(parsed, admitted, strict=True), start=1)
        ]

    async def _enqueue(self, token: ApiToken, new: NewIntent, size: int) -> Enqueued:
        reservation = await self._service.admission.admit(token, new)
        is_new = True  # until we know otherwise
        try:
            result = await self._service.group_commit.enqueue(new, size=size)
            is_new = result.verdict is EnqueueVerdict.ACCEPTED
        finally:
            reservation.settle(is_new=is_new)
        return result

    async def _enqueue_many(
        self, good: Sequence[tuple[NewIntent, Reservation]], size: int
    ) -> Sequence[Enqueued | Exception]:
        results: Sequence[Enqueued | Exception] = ()
        is_new = True  # until we know otherwise
        try:
            results = await self._service.group_commit.enqueue_many(
                [new for new, _ in good], size=size
            )
        except IntakeFull:
            is_new = False
            raise
        finally:
            for number, (_, reservation) in enumerate(good):
                reservation.settle(is_new=_may_be_new(results[number]) if results else is_new)
        return results

    async def _wait(self, token: ApiToken, intent_id: IntentId, seconds: float) -> str:
        """Return more members of the response when the intent is finished or the time is over.

        Only a token that may read gets the whole intent. The intent is committed whatever happens
        here, so a failure is `null` and not an error.
        """
        service = self._service
        try:
            if not service.limiter.is_full_of_waits:
                with service.limiter.waiting():
                    await service.long_poll.until_final(intent_id, seconds)
            [status] = await service.stores.reader.read_status([intent_id])
        except (DatabaseUnavailable, ValueError):
            return ',"status":null'
        more = f',"status":"{status.status}"'
        if token.may(TokenScope.READ):
            more += f',"intent":{responses.Intent.model_validate(status).model_dump_json()}'
        return more


def _verdict(
    ordinal: int, new: NewIntent | Problem, result: Enqueued | Exception, context: RequestContext
) -> responses.Verdict:
    if not isinstance(result, Enqueued) or not isinstance(new, NewIntent):
        return _refused(ordinal, _problem_of_one(result, context))
    if result.verdict not in _STATUS:
        return _refused(ordinal, _refusal(new, result))
    return responses.Verdict(
        ordinal=ordinal,
        status=_STATUS[result.verdict],
        verdict=BatchVerdict(result.verdict),
        intent_id=result.intent_id,
    )


def _refusal(new: NewIntent, result: Enqueued) -> Problem:
    """Say why the database did not accept an intent."""
    match result.verdict:
        case EnqueueVerdict.UNKNOWN_TARGET:
            return Problem("unknown_target", "Publish a contract with `leasehold targets apply`.")
        case EnqueueVerdict.CONFLICT:
            differs = result.problem or "payload"
            return Problem(
                "idempotency_conflict",
                f"The key was used for an intent with another {differs}. Use a new key for a "
                "new intent.",
                differs=differs,
                intent_id=str(result.intent_id),
            )
        case EnqueueVerdict.TOO_LARGE:
            return too_large(result.problem or "payload or body is over the limit")
        case _:
            return invalid([_fault(new, result.problem or "this intent cannot be accepted")])


def _accepted(
    new: NewIntent, intent_id: IntentId, verdict: EnqueueVerdict, more: str
) -> RawResponse:
    href = f"/v1/intents/{intent_id}"
    text = f'{{"intent_id":"{intent_id}","target":{quote(new.target)},"href":"{href}"{more}}}'
    headers = [_JSON, (b"location", href.encode())]
    if verdict is not EnqueueVerdict.ACCEPTED:
        headers.append(_REPLAYED)
    return RawResponse(_STATUS[verdict], headers, text.encode())


def _parse_or_problem(members: dict[str, Any], trace_context: str | None) -> NewIntent | Problem:
    try:
        return parse_intent(members, trace_context=trace_context, unknown_max=BATCH_FAULTS_MAX)
    except Problem as problem:
        return problem


def _may_be_new(result: Enqueued | Exception) -> bool:
    return not isinstance(result, Enqueued) or result.verdict is EnqueueVerdict.ACCEPTED


def _problem_of_one(result: object, context: RequestContext) -> Problem:
    """Return the problem that a request with this one intent would get."""
    problem = result if isinstance(result, Problem) else None
    if isinstance(result, LeaseholdError):
        problem = problem_of(result)
    if problem is None:
        _LOG.error("request_failed", request_id=context.request_id, exc_info=result)
    return problem or DEFECT


def _refused(ordinal: int, problem: Problem) -> responses.Verdict:
    faults = [
        responses.Fault(place=one.place, message=one.message)
        for one in problem.faults[:BATCH_FAULTS_MAX]
    ]
    left_out = problem.faults_left_out + len(problem.faults) - len(faults)
    return responses.Verdict(
        ordinal=ordinal,
        status=problem.status,
        verdict=_BATCH_VERDICTS.get(problem.code, BatchVerdict.INVALID),
        intent_id=problem.more.get("intent_id"),
        problems=faults or [responses.Fault(place="", message=problem.detail)],
        problems_left_out=left_out or None,
        retry_seconds=problem.retry_seconds,
    )


def _fault(new: NewIntent, problem: str) -> Fault:
    """Find the member that the database's message is about; most messages begin with its name."""
    name, _, rest = problem.partition(" ")
    if name in requests.IntentRequest.model_fields:
        return Fault(name, rest)
    if "deadline" in problem:
        # If none was sent, the contract's deadline is before what was sent.
        names = ("deadline_at", "deadline_seconds", "due_at", "delay_seconds")
        return Fault(next((one for one in names if getattr(new, one) is not None), ""), problem)
    return Fault("", problem)

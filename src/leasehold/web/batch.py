"""The intents of one request: each has a verdict of its own, and a bad one hurts no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.domain.errors import IntakeFull, LeaseholdError
from leasehold.domain.intent import NewIntent
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.observe.logs import get_logger
from leasehold.store.rows import Enqueued
from leasehold.web.dependencies import passing_of, service_of
from leasehold.web.headers import trace_context
from leasehold.web.intake import Intake
from leasehold.web.parsing import read_intent
from leasehold.web.problems import DEFECT, Problem, problem_of
from leasehold.web.schemas import responses as models

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import Request

    from leasehold.domain.api_token import ApiToken
    from leasehold.web.queue_limits import Place

# Of each intent. There may be a thousand of them, so fewer than in an answer about one.
FAULTS_MAX = 10
_VERDICTS = {
    "idempotency_conflict": models.BatchVerdict.CONFLICT,
    "unknown_target": models.BatchVerdict.UNKNOWN_TARGET,
    "forbidden": models.BatchVerdict.FORBIDDEN,
    "queue_full": models.BatchVerdict.QUEUE_FULL,
    "database_unavailable": models.BatchVerdict.UNAVAILABLE,
    "intake_full": models.BatchVerdict.UNAVAILABLE,
    "internal": models.BatchVerdict.UNAVAILABLE,
}
_ACCEPTED = {EnqueueVerdict.ACCEPTED: 201, EnqueueVerdict.DUPLICATE: 200}

_LOG = get_logger(__name__)


class Batch:
    """The intents of one request."""

    def __init__(self, request: Request, token: ApiToken, size: int) -> None:
        self._service = service_of(request)
        self._intake = Intake(self._service)
        self._token = token
        self._passing = passing_of(request)
        self._trace_context = trace_context(self._passing.headers)
        self._size = size

    async def accept(self, sent: Sequence[dict[str, Any]]) -> list[models.Verdict]:
        """Hand them in together, and say what became of each."""
        read = [self._read(members) for members in sent]
        places = await self._service.admission.admit_many(self._token, read)
        good = [
            (new, place)
            for new, place in zip(read, places, strict=True)
            if isinstance(new, NewIntent) and not isinstance(place, Problem)
        ]
        answers = iter(await self._enqueued(good))
        return [
            await self._verdict(
                ordinal, new, place if isinstance(place, Problem) else next(answers)
            )
            for ordinal, (new, place) in enumerate(zip(read, places, strict=True), start=1)
        ]

    def _read(self, members: dict[str, Any]) -> NewIntent | Problem:
        try:
            return read_intent(members, trace_context=self._trace_context, unknown_max=FAULTS_MAX)
        except Problem as problem:
            return problem

    async def _enqueued(
        self, good: Sequence[tuple[NewIntent, Place]]
    ) -> Sequence[Enqueued | Exception]:
        answers: Sequence[Enqueued | Exception] = ()
        is_new = True  # as far as anybody knows
        try:
            answers = await self._service.group_commit.enqueue_many(
                [new for new, _ in good], size=self._size
            )
        except IntakeFull:
            is_new = False
            raise
        finally:
            for number, (_, place) in enumerate(good):
                place.settle(is_new=_is_new(answers[number]) if answers else is_new)
        return answers

    async def _verdict(
        self, ordinal: int, new: NewIntent | Problem, answer: Enqueued | Exception
    ) -> models.Verdict:
        if not isinstance(answer, Enqueued) or not isinstance(new, NewIntent):
            return _refused(ordinal, self._problem(answer))
        if answer.verdict not in _ACCEPTED:
            return _refused(ordinal, await self._intake.refusal(self._token, new, answer))
        return models.Verdict(
            ordinal=ordinal,
            status=_ACCEPTED[answer.verdict],
            verdict=models.BatchVerdict(answer.verdict),
            intent_id=answer.intent_id,
        )

    def _problem(self, answer: object) -> Problem:
        """Say of one intent what would be said of a request of its own."""
        problem = answer if isinstance(answer, Problem) else None
        if isinstance(answer, LeaseholdError):
            problem = problem_of(answer)
        if problem is None:
            _LOG.error("request_failed", request_id=self._passing.request_id, exc_info=answer)
        return problem or DEFECT


def _is_new(answer: Enqueued | Exception) -> bool:
    return not isinstance(answer, Enqueued) or answer.verdict is EnqueueVerdict.ACCEPTED


def _refused(ordinal: int, problem: Problem) -> models.Verdict:
    faults = [
        models.Fault(place=one.place, message=one.message) for one in problem.faults[:FAULTS_MAX]
    ]
    left_out = problem.faults_left_out + len(problem.faults) - len(faults)
    return models.Verdict(
        ordinal=ordinal,
        status=problem.status,
        verdict=_VERDICTS.get(problem.code, models.BatchVerdict.INVALID),
        intent_id=problem.more.get("intent_id"),
        problems=faults or [models.Fault(place="", message=problem.detail)],
        problems_left_out=left_out or None,
        retry_seconds=problem.retry_seconds,
    )

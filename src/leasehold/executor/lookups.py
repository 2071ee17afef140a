"""Lookups ask gateways what became of submissions. Those that begin together share requests.

Each item has a task of its own, as for any call, so it is lost, aborted or given back by itself.
Its question waits for the other questions to the same gateway that come in the same moment: the
items of one claim, of one batch of a leader, or of streams whose results were recorded together. If
the gateway is a `LookupBatcher`, they go out in few requests, oldest first.

A request ends early only when nobody waits for it any more. The last one who leaves waits until it
has ended, because it keeps a slot until then.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from leasehold.domain.outcome import Unknown
from leasehold.domain.retry import after_asking
from leasehold.executor.faults import FaultPoint
from leasehold.gateway.errors import TrustEnded
from leasehold.gateway.protocol import LookupBatcher
from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from leasehold.coordination.item import Item
    from leasehold.domain.outcome import LookupAnswer, Outcome
    from leasehold.domain.retry import AskAgain
    from leasehold.executor.faults import Faults
    from leasehold.executor.targets import Served
    from leasehold.gateway.protocol import Gateway, Submission
    from leasehold.observe.metrics import Metrics

# How long the first question waits for others. The time that a lookup is due is never so exact.
GATHER_SECONDS = 0.005

_LOG = get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Question:
    """One item's question, with the future that its task waits for."""

    submission: Submission
    since: datetime
    answer: asyncio.Future[LookupAnswer | TrustEnded]
    request: _Request | None = None


@dataclass(slots=True, eq=False)
class _Request:
    """One request in progress, and whoever waits for it."""

    task: asyncio.Task[None]
    waiting: set[_Question] = field(default_factory=set["_Question"])

    async def leave(self, question: _Question) -> None:
        """Wait no longer. The last one ends the request."""
        self.waiting.discard(question)
        while not self.waiting and not self.task.done():
            self.task.cancel()
            with suppress(asyncio.CancelledError):  # cancelled once more: so is the request
                await asyncio.wait([self.task])


_since = attrgetter("since")


def after_abort(item: Item, unknown: Unknown) -> Outcome | AskAgain:
    """Decide what follows a call that is given up. A lookup tried nothing: it is repeated."""
    contract = item.asked_under
    return unknown if contract is None else after_asking(unknown, item.claimed, contract)


class Lookups:
    """Asks gateways, with as few requests as they permit."""

    def __init__(self, metrics: Metrics, faults: Faults) -> None:
        self._metrics = metrics
        self._faults = faults
        self._gathered: dict[Served, list[_Question]] = {}

    async def look_up(
        self, item: Item, served: Served, submission: Submission
    ) -> Outcome | AskAgain:
        """Ask about one item, and decide what the answer means for it.

        Raises nothing but cancellation and TrustEnded.
        """
        item.asked_under = served.contract
        answer = await self._ask(item, served, submission)
        return after_asking(answer, item.claimed, served.contract)

    async def look_up_all(
        self, items: Sequence[Item], served: Served, submissions: Sequence[Submission]
    ) -> list[Outcome | AskAgain]:
        """Ask about the items of one stream; return when all answers are there."""
        asked = zip(items, submissions, strict=True)
        answers = await asyncio.gather(
            *(self.look_up(item, served, submission) for item, submission in asked),
            return_exceptions=True,
        )
        decided: list[Outcome | AskAgain] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            decided.append(answer)
        return decided

    async def _ask(self, item: Item, served: Served, submission: Submission) -> LookupAnswer:
        if not isinstance(served.gateway, LookupBatcher):
            [answer] = await self._request(served.gateway, [submission])
            return answer
        loop = asyncio.get_running_loop()
        question = _Question(submission, item.claimed.first_tried_at, loop.create_future())
        gathered = self._gathered.setdefault(served, [])
        if not gathered:
            loop.call_later(GATHER_SECONDS, self._send, served)
        gathered.append(question)
        try:
            answer = await question.answer
        except asyncio.CancelledError:
            if question.request is not None:
                await question.request.leave(question)
            raise
        if isinstance(answer, TrustEnded):
            raise answer
        return answer

    def _send(self, served: Served) -> None:
        """Send the questions that were gathered, as far as somebody still waits for the answer."""
        gateway = served.gateway
        size = gateway.lookups_max if isinstance(gateway, LookupBatcher) else 1
        questions = [one for one in self._gathered.pop(served) if not one.answer.done()]
        questions.sort(key=_since)
        for first in range(0, len(questions), size):
            batch = questions[first : first + size]
            request = _Request(asyncio.create_task(self._answer(gateway, batch)), set(batch))
            for one in batch:
                one.request = request

    async def _answer(self, gateway: Gateway, questions: Sequence[_Question]) -> None:
        answers: Sequence[LookupAnswer | TrustEnded] = ()
        try:
            answers = await self._request(gateway, [one.submission for one in questions])
        except TrustEnded as error:
            answers = [TrustEnded(*error.args) for _ in questions]
        finally:
            for question, answer in zip(questions, answers, strict=False):
                if not question.answer.done():  # else nobody waits for it any more
                    question.answer.set_result(answer)
            for question in questions[len(answers) :]:
                question.answer.cancel()  # the request was cancelled

    async def _request(
        self, gateway: Gateway, submissions: Sequence[Submission]
    ) -> Sequence[LookupAnswer]:
        """Make one request. A gateway that raises has told us nothing."""
        first = submissions[0]
        self._metrics.lookup(first.target, len(submissions))
        try:
            await self._faults.reach(FaultPoint.BEFORE_LOOKUP)
            if not isinstance(gateway, LookupBatcher):
                return [await gateway.lookup(first)]
            answers = await gateway.lookup_many(submissions)
            if len(answers) != len(submissions):
                raise ValueError(f"{len(answers)} answers to {len(submissions)} lookups")  # noqa: TRY301 (as if the gateway had raised)
        except TrustEnded:
            raise
        except Exception as error:  # noqa: BLE001 (a gateway that raises has told us nothing)
            _LOG.error(
                "lookup_raised", exc_info=error, submissions=len(submissions), **first.log_fields
            )
            unknown = Unknown(reason="exception", detail=type(error).__name__)
            return [unknown] * len(submissions)
        return answers

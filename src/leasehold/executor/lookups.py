"""Lookups ask gateways what became of submissions. Those that begin together share requests.

Each item has a task of its own, as for any call, so it is lost, aborted or given back by itself.
Its question waits for the other questions to the same gateway that come in the same moment: the
items of one claim, of one batch of a leader, or of streams whose results were recorded together. If
the gateway is a `LookupBatcher`, they go out in few requests, oldest first.

A request needs one slot, however many questions it has. If no slot is free, questions that can
share a request give theirs back and wait a little longer, so that more of them can come.

A request ends early only when nobody waits for it any more. Until it has ended it keeps a slot:
that of an item that waits for it, or one of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from leasehold.domain.outcome import Unknown
from leasehold.domain.retry import after_lookup
from leasehold.executor.faults import FaultPoint
from leasehold.gateway.errors import TrustEnded
from leasehold.gateway.protocol import LookupBatcher
from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from leasehold.domain.outcome import LookupAnswer, Outcome
    from leasehold.domain.retry import LookUpAgain
    from leasehold.executor.faults import Faults
    from leasehold.executor.item import Item
    from leasehold.executor.slots import Slots
    from leasehold.executor.targets import Served
    from leasehold.gateway.protocol import Gateway, Submission
    from leasehold.observe.metrics import Metrics

# How long the first question waits for others. The time that a lookup is due is never so exact.
GATHER_SECONDS = 0.005
# While no slot was free: how long the last question waits for others, and the first one at most.
# There is time for a claim in between.
CROWDED_GATHER_SECONDS = 0.01
CROWDED_GATHER_SECONDS_MAX = 0.05

_LOG = get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Question:
    """One item's question, with the future that its task waits for."""

    item: Item
    submission: Submission
    since: datetime
    answer: asyncio.Future[LookupAnswer | TrustEnded]
    request: _Request | None = None


@dataclass(slots=True, eq=False)
class _Request:
    """One request in progress, and whoever waits for it."""

    task: asyncio.Task[None]
    waiting: set[_Question] = field(default_factory=set["_Question"])


@dataclass(slots=True, eq=False)
class _Gathering:
    """The questions to one gateway that wait for others."""

    begun_at: float
    sending: asyncio.TimerHandle
    questions: list[_Question] = field(default_factory=list["_Question"])
    slots: int = 0  # that they have
    is_crowded: bool = False  # no other slot was free


_since = attrgetter("since")


def _lookups_max(gateway: Gateway) -> int:
    return gateway.lookups_max if isinstance(gateway, LookupBatcher) else 1


def after_abort(item: Item, unknown: Unknown) -> Outcome | LookUpAgain:
    """Decide what follows a call that is given up. A lookup tried nothing: it is repeated."""
    contract = item.lookup_contract
    return unknown if contract is None else after_lookup(unknown, item.claimed, contract)


class Lookups:
    """Asks gateways, with as few requests as they permit."""

    def __init__(self, slots: Slots, metrics: Metrics, faults: Faults) -> None:
        self._slots = slots
        self._metrics = metrics
        self._faults = faults
        self._gathered: dict[Served, _Gathering] = {}

    async def look_up(
        self, item: Item, served: Served, submission: Submission
    ) -> Outcome | LookUpAgain:
        """Ask about one item, and decide what the answer means for it.

        Raises nothing but cancellation and TrustEnded.
        """
        item.lookup_contract = served.contract
        answer = await self._ask(item, served, submission)
        return after_lookup(answer, item.claimed, served.contract)

    async def look_up_all(
        self, items: Sequence[Item], served: Served, submissions: Sequence[Submission]
    ) -> list[Outcome | LookUpAgain]:
        """Ask about the items of one stream; return when all answers are there."""
        asked = zip(items, submissions, strict=True)
        answers = await asyncio.gather(
            *(self.look_up(item, served, submission) for item, submission in asked),
            return_exceptions=True,
        )
        decided: list[Outcome | LookUpAgain] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            decided.append(answer)
        return decided

    async def _ask(self, item: Item, served: Served, submission: Submission) -> LookupAnswer:
        if not isinstance(served.gateway, LookupBatcher):
            [answer] = await self._request(served.gateway, [submission])
            return answer
        question = self._gather(item, served, submission)
        try:
            answer = await question.answer
        except asyncio.CancelledError:
            if question.request is not None:
                self._leave(question, question.request)
            raise
        if isinstance(answer, TrustEnded):
            raise answer
        return answer

    def _gather(self, item: Item, served: Served, submission: Submission) -> _Question:
        """Let a question wait for others."""
        loop = asyncio.get_running_loop()
        question = _Question(item, submission, item.claimed.first_tried_at, loop.create_future())
        gathering = self._gathered.get(served)
        if gathering is None:
            sending = loop.call_later(GATHER_SECONDS, self._send, served)
            gathering = self._gathered[served] = _Gathering(loop.time(), sending)
        gathering.is_crowded = gathering.is_crowded or not self._slots.free
        if gathering.is_crowded:
            self._await_more(item, served, gathering)
        gathering.slots += item.has_slot
        gathering.questions.append(question)
        return question

    def _await_more(self, item: Item, served: Served, gathering: _Gathering) -> None:
        """Give the slot of a question back if its request has one, and wait for what comes in it.

        As soon as a request is full, there is nothing to wait for.
        """
        full_requests = len(gathering.questions) // _lookups_max(served.gateway)
        if gathering.slots > full_requests:
            self._slots.share_call(item)
        loop = asyncio.get_running_loop()
        gathering.sending.cancel()
        send_at = gathering.begun_at
        if not full_requests:
            longest = gathering.begun_at + CROWDED_GATHER_SECONDS_MAX
            send_at = min(loop.time() + CROWDED_GATHER_SECONDS, longest)
        gathering.sending = loop.call_at(send_at, self._send, served)

    def _send(self, served: Served) -> None:
        """Send the questions that were gathered, as far as somebody still waits for the answer."""
        gateway = served.gateway
        size = _lookups_max(gateway)
        gathered = self._gathered.pop(served).questions
        questions = [one for one in gathered if not one.answer.done()]
        questions.sort(key=_since)
        for first in range(0, len(questions), size):
            batch = questions[first : first + size]
            request = _Request(asyncio.create_task(self._answer(gateway, batch)), set(batch))
            for one in batch:
                one.request = request
            self._cover(request)

    def _leave(self, question: _Question, request: _Request) -> None:
        """Wait no longer. The last one ends the request, which keeps a slot until it has ended."""
        request.waiting.discard(question)
        if request.waiting:
            self._cover(request)
        else:
            self._slots.keep_slot(request.task)

    def _cover(self, request: _Request) -> None:
        """Let a request use a slot of its own, if none of those who wait for it has one."""
        if not any(one.item.has_slot for one in request.waiting):
            self._slots.count_lookup(request.task)

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

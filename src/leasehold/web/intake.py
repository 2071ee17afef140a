"""Taking intents: the hot route, without a framework between the bytes and the batch, and batches.

An answer is given when the intent is committed, never before; and the answer to a repetition is the
answer to the first.
"""

from __future__ import annotations

from http import HTTPStatus
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any, NamedTuple

from leasehold.domain.api_token import TokenScope
from leasehold.domain.errors import DatabaseUnavailable
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.web.auth import require_scope
from leasehold.web.body import BODY_BYTES_MAX
from leasehold.web.headers import idempotency_key, require_json, trace_context
from leasehold.web.parsing import UNREAD, read_intent
from leasehold.web.problems import Fault, Problem, invalid
from leasehold.web.schemas import requests as models_sent
from leasehold.web.schemas import responses as models
from leasehold.web.strict_json import parse_object
from leasehold.web.wait_query import read_wait

if TYPE_CHECKING:
    from leasehold.domain.api_token import ApiToken
    from leasehold.domain.intent import IntentId, NewIntent
    from leasehold.store.rows import Enqueued
    from leasehold.web.body import Receive
    from leasehold.web.headers import Headers
    from leasehold.web.problems import Header
    from leasehold.web.service import WebService

_JSON: Header = (b"content-type", b"application/json")
_REPLAYED: Header = (b"idempotent-replayed", b"true")


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    headers: list[Header]
    body: bytes


class Intake:
    """Accepts intents for one service."""

    def __init__(self, service: WebService) -> None:
        self._service = service

    async def accept(
        self, receive: Receive, headers: Headers, query: bytes, token: ApiToken
    ) -> Answer:
        """Answer POST /v1/intents."""
        require_scope(token, TokenScope.INGEST)
        require_json(headers)
        body = await self._service.bodies.read(receive, headers, BODY_BYTES_MAX)
        members = parse_object(body, UNREAD)
        faults: list[Fault] = []
        wait_seconds = read_wait(query, faults)
        new = read_intent(
            members,
            key=idempotency_key(headers, faults),
            trace_context=trace_context(headers),
            faults=faults,
        )
        answer = await self._enqueued(token, new, len(body))
        if (
            answer.verdict is not EnqueueVerdict.ACCEPTED
            and answer.verdict is not EnqueueVerdict.DUPLICATE
        ) or answer.intent_id is None:
            raise await self.refusal(token, new, answer)
        return await self._accepted(new, answer.intent_id, answer.verdict, wait_seconds)

    async def _enqueued(self, token: ApiToken, new: NewIntent, size: int) -> Enqueued:
        place = await self._service.admission.admit(token, new)
        is_new = True  # as far as anybody knows
        try:
            answer = await self._service.group_commit.enqueue(new, size=size)
            is_new = answer.verdict is EnqueueVerdict.ACCEPTED
        finally:
            place.settle(is_new=is_new)
        return answer

    async def refusal(self, token: ApiToken, new: NewIntent, answer: Enqueued) -> Problem:
        """Say why the database did not take an intent."""
        match answer.verdict:
            case EnqueueVerdict.UNKNOWN_TARGET:
                return Problem("unknown_target", "publish one with `leasehold targets apply`")
            case EnqueueVerdict.CONFLICT:
                return await self._conflict(token, new, answer.intent_id)
            case _:
                return invalid([_fault(new, answer.problem or "this intent cannot be accepted")])

    async def _accepted(
        self, new: NewIntent, intent_id: IntentId, verdict: EnqueueVerdict, wait_seconds: float
    ) -> Answer:
        is_first = verdict is EnqueueVerdict.ACCEPTED
        name = str(intent_id)
        href = f"/v1/intents/{name}"
        told = f'{{"intent_id":"{name}","target":{quoted(new.target)},"href":"{href}"'
        if wait_seconds:
            told += f',"intent":{await self._waited(intent_id, wait_seconds)}'
        body = f"{told}}}".encode()
        headers = [_JSON, (b"location", href.encode())]
        if not is_first:
            headers.append(_REPLAYED)
        return Answer(HTTPStatus.CREATED if is_first else HTTPStatus.OK, headers, body)

    async def _waited(self, intent_id: IntentId, seconds: float) -> str:
        """Give the intent as it stands when it is finished or the time is over.

        It is accepted whatever happens here, so nothing that happens here may sound otherwise.
        """
        try:
            if not self._service.room.is_full_of_waits:
                with self._service.room.waiting():
                    await self._service.waits.until_final(intent_id, seconds)
            [status] = await self._service.stores.reader.read_status([intent_id])
        except (DatabaseUnavailable, ValueError):
            return "null"
        return models.Intent.model_validate(status).model_dump_json()

    async def _conflict(
        self, token: ApiToken, new: NewIntent, first_id: IntentId | None
    ) -> Problem:
        # Whose the key is, is told to those only who may know that target.
        more: dict[str, Any] = {}
        told = "target or payload"
        try:
            differs, may_know = await self._differences(token, new, first_id)
        except DatabaseUnavailable:
            pass  # that it is a conflict is known all the same
        else:
            more["differs"] = told = differs
            if may_know:
                more["intent_id"] = str(first_id)
        return Problem(
            "idempotency_conflict",
            f"the key was used for an intent with another {told}: use a new key for a new one",
            **more,
        )

    async def _differences(
        self, token: ApiToken, new: NewIntent, first_id: IntentId | None
    ) -> tuple[str, bool]:
        """Say what is not as in the first intent of a key, and whether the token may see that."""
        reader = self._service.stores.reader
        found = [] if first_id is None else await reader.read_status([first_id])
        if not found or first_id is None or found[0].target == new.target:
            return "payload", bool(found) and token.covers(found[0].target)
        if not token.covers(found[0].target):
            # Nor is it told whether a guess at its payload is right.
            return "target", False
        is_same = await reader.has_content(first_id, new)
        return "target" if is_same else "target and payload", True


def _fault(new: NewIntent, problem: str) -> Fault:
    """Find the place that the database speaks of: mostly it begins with that."""
    name, _, rest = problem.partition(" ")
    if name in models_sent.IntentSent.model_fields:
        return Fault(name, rest)
    if "deadline" in problem:
        # Where none was given it is the contract's, and what was given lies behind it.
        names = ("deadline_at", "deadline_seconds", "due_at", "delay_seconds")
        return Fault(next((one for one in names if getattr(new, one) is not None), ""), problem)
    return Fault("", problem)

"""Taking intents: the hot route, without a framework between the bytes and the batch, and batches.

An answer is given when the intent is committed, never before; and the answer to a repetition is the
answer to the first.
"""

from __future__ import annotations

from http import HTTPStatus
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl

from leasehold.domain.errors import DatabaseUnavailable
from leasehold.domain.token import Scope
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.web import kinds, models, models_sent
from leasehold.web.auth import require_scope, require_target
from leasehold.web.body import BODY_BYTES_MAX
from leasehold.web.headers import idempotency_key, require_json, trace_context
from leasehold.web.problems import RETRY_SECONDS, Fault, Problem, invalid
from leasehold.web.sent import UNREAD, read_intent
from leasehold.web.strict_json import parse_object

if TYPE_CHECKING:
    from leasehold.domain.intent import IntentId, NewIntent
    from leasehold.domain.token import ApiToken
    from leasehold.store.answers import Enqueued
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
        require_scope(token, Scope.INGEST)
        require_json(headers)
        wait_seconds = read_wait(query) if query else 0
        body = await self._service.bodies.read(receive, headers, BODY_BYTES_MAX)
        new = read_intent(
            parse_object(body, UNREAD),
            key=idempotency_key(headers),
            trace_context=trace_context(headers),
        )
        self.require_room(token, new)
        answer = await self._service.batching.enqueue(new, size=len(body))
        if (
            answer.verdict is not EnqueueVerdict.ACCEPTED
            and answer.verdict is not EnqueueVerdict.DUPLICATE
        ) or answer.intent_id is None:
            raise await self.refusal(token, new, answer)
        return await self._accepted(new, answer.intent_id, answer.verdict, wait_seconds)

    def require_room(self, token: ApiToken, new: NewIntent) -> None:
        """Refuse what is for a target that the token is not for, or that has its fill."""
        require_target(token, new.target)
        if self._service.queue_limits.is_full(new.target):
            raise Problem(
                "queue_full",
                "wait until some of the target's intents are finished",
                retry_seconds=RETRY_SECONDS,
            )

    async def refusal(self, token: ApiToken, new: NewIntent, answer: Enqueued) -> Problem:
        """Say why the database did not take an intent."""
        match answer.verdict:
            case EnqueueVerdict.UNKNOWN_TARGET:
                return Problem("unknown_target", "publish one with `leasehold targets apply`")
            case EnqueueVerdict.CONFLICT:
                return await self._conflict(token, new, answer.intent_id)
            case _:
                return invalid([_fault(answer.problem or "this intent cannot be accepted")])

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
            await self._service.waits.until_final(intent_id, seconds)
            [status] = await self._service.stores.reader.read_status([intent_id])
        except (DatabaseUnavailable, ValueError):
            return "null"
        return models.Intent.model_validate(status).model_dump_json()

    async def _conflict(
        self, token: ApiToken, new: NewIntent, first_id: IntentId | None
    ) -> Problem:
        found = []
        if first_id is not None:
            found = await self._service.stores.reader.read_status([first_id])
        differs = "target" if found and found[0].target != new.target else "payload"
        # Whose the key is, is told to those only who may know that target.
        more: dict[str, Any] = {"differs": differs}
        if found and token.covers(found[0].target):
            more["intent_id"] = str(first_id)
        return Problem(
            "idempotency_conflict",
            f"the key was used for an intent with another {differs}: use a new key for a new one",
            **more,
        )


def read_wait(query: bytes) -> float:
    """Read ?wait_seconds=N, the one thing that can be asked for here."""
    seconds = 0.0
    faults: list[Fault] = []
    for name, text in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name != "wait_seconds":
            faults.append(Fault(name[:80], "is not known"))
            continue
        if not text.isascii() or not text.replace(".", "", 1).isdigit():
            faults.append(Fault(name, "must be a number of seconds"))
            continue
        seconds = float(text)
        if seconds > kinds.WAIT_SECONDS_MAX:
            faults.append(Fault(name, f"must be {kinds.WAIT_SECONDS_MAX} at most"))
    if faults:
        raise invalid(faults)
    return seconds


def _fault(problem: str) -> Fault:
    """Find the place that the database speaks of: it begins with that."""
    name, _, rest = problem.partition(" ")
    return Fault(name, rest) if name in models_sent.IntentSent.model_fields else Fault("", problem)

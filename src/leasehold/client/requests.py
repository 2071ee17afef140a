"""The requests of the API: each function says what to send and how to read the response."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass, field
from datetime import datetime
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar

from leasehold.client import responses
from leasehold.client.errors import ErrorResponse
from leasehold.domain.errors import ApiError, ApiUnavailable, InvalidArgument, UnknownIntent
from leasehold.domain.intent_rules import find_faults
from leasehold.domain.json_text import json_text
from leasehold.domain.verdict import CancelVerdict, RedriveVerdict, ResolveVerdict, RetryNowVerdict
from leasehold.store.rows import Redriven

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from enum import StrEnum
    from typing import Unpack

    import httpx

    from leasehold.client.responses import BulkResult, IntentPage, Receipt
    from leasehold.domain.intent import IntentId, NewIntent, Resolution, Status
    from leasehold.store.reader_rows import Attempt, IntentStatus

Result = TypeVar("Result")
Verdict = TypeVar("Verdict", bound="StrEnum")

PAGE_MAX = 200
WAIT_SECONDS_MAX = 30
BATCH_ADVICE = "Outcome unknown. Enqueue all intents again with the same idempotency keys."
_KEY_BYTES = 18
# HTTP trims header values and carries only these characters safely.
_HEADER_VALUE = re.compile(r"[!-~]([ -~]{0,253}[!-~])?")
# Fields of NewIntent that the API takes under the same name.
_PLAIN_FIELDS = (
    *("target", "content_type", "idempotency_key", "key_scope", "stream", "priority"),
    *("delay_seconds", "deadline_seconds"),
)
_TIME_FIELDS = ("due_at", "deadline_at")
_JSON_FIELDS = ("payload", "metadata")


class IntentFilter(TypedDict, total=False):
    """Which intents to list; all conditions must hold. `since` is inclusive, `until` is not."""

    status: Status | None
    target: str | None
    stream: str | None
    since: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Generic[Result]):
    """One request: what to send, how to read its response, and whether it is safe to repeat."""

    method: Literal["GET", "POST"]
    path: str
    read: Callable[[httpx.Response], Result]
    is_idempotent: bool
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None
    # How long the server may wait before it responds.
    wait_seconds: float = 0.0
    # Of an enqueue.
    idempotency_key: str | None = None
    # What the caller should do if the outcome is unknown. A request that only reads has none.
    advice: str = ""

    def result(self, response: httpx.Response) -> Result:
        """Read the response, or raise the exception that it stands for."""
        try:
            return responses.parse(self.read, response)
        except ApiError as error:
            # An unreadable success was executed, and a server error may have followed it.
            tells = not response.is_success and not ErrorResponse.of(response).outcome_unknown
            if tells or not self.advice:
                raise
            raise self.outcome_unknown(error, kind=type(error)) from error.__cause__

    def outcome_unknown(
        self, why: object, *, kind: type[ApiError] = ApiUnavailable, status: int | None = None
    ) -> ApiError:
        """Return the error for a request that may have been executed."""
        status = why.status if isinstance(why, ApiError) else status
        text = str(why).removesuffix(".")
        return kind(f"{text}. {self.advice}", status=status, outcome_unknown=True)


def key_of(new: NewIntent) -> str:
    """Return the idempotency key of an intent, or generate one, so that it is safe to resend."""
    return new.idempotency_key if new.idempotency_key is not None else token_urlsafe(_KEY_BYTES)


def key_advice(key: str) -> str:
    """Return the advice for an intent that may have been written."""
    return f"Outcome unknown. Retry with the same idempotency key: {key!r}."


def enqueue(new: NewIntent, wait_seconds: float = 0) -> Request[Receipt]:
    """Enqueue one intent."""
    key = key_of(new)
    headers = _json_headers(new.trace_context)
    if _HEADER_VALUE.fullmatch(key):
        # A proxy sees there that it may repeat the request.
        headers["Idempotency-Key"] = key
    return Request(
        method="POST",
        path="/v1/intents",
        query=_wait_query(wait_seconds),
        headers=headers,
        body=intent_json(new, key),
        read=reader(responses.receipt, new.target),
        is_idempotent=True,
        wait_seconds=wait_seconds,
        idempotency_key=key,
        advice=key_advice(key),
    )


def enqueue_batch(
    intents: Sequence[bytes], trace_context: str | None
) -> Request[tuple[BulkResult, ...]]:
    """Enqueue many intents, each as intent_json wrote it, with its key."""
    return Request(
        method="POST",
        path="/v1/intents:batch",
        headers=_json_headers(trace_context),
        body=b'{"intents":[' + b",".join(intents) + b"]}",
        read=reader(responses.bulk_results),
        is_idempotent=True,
        advice=BATCH_ADVICE,
    )


def get(intent_id: IntentId, wait_seconds: float = 0) -> Request[IntentStatus]:
    """Read the status of an intent."""
    return Request(
        method="GET",
        path=f"/v1/intents/{intent_id}",
        query=_wait_query(wait_seconds),
        read=_intent_reader(responses.intent),
        is_idempotent=True,
        wait_seconds=wait_seconds,
    )


def attempts(intent_id: IntentId) -> Request[tuple[Attempt, ...]]:
    """Read the ledger of an intent."""
    return Request(
        method="GET",
        path=f"/v1/intents/{intent_id}/attempts",
        read=_intent_reader(responses.attempts),
        is_idempotent=True,
    )


def page(
    *, before: IntentId | None = None, limit: int = PAGE_MAX, **where: Unpack[IntentFilter]
) -> Request[IntentPage]:
    """Read one page of intents."""
    given: dict[str, object] = {**where, "before": before, "limit": limit}
    query = {
        name: _time(name, value) if isinstance(value, datetime) else str(value)
        for name, value in given.items()
        if value is not None
    }
    return Request(
        method="GET",
        path="/v1/intents",
        query=query,
        read=reader(responses.page, where.get("target") or ""),
        is_idempotent=True,
    )


def cancel(intent_id: IntentId, note: str) -> Request[CancelVerdict]:
    """Cancel an intent that was never submitted."""
    return _intent_operation(intent_id, "cancel", {"note": note}, verdict_reader(CancelVerdict))


def resolve(
    intent_id: IntentId, resolution: Resolution, note: str, reference: str | None
) -> Request[ResolveVerdict]:
    """Decide the outcome of an intent that is in doubt."""
    given = {"resolution": resolution, "note": note, "reference": reference}
    members = {name: value for name, value in given.items() if value is not None}
    return _intent_operation(intent_id, "resolve", members, verdict_reader(ResolveVerdict))


def retry_now(intent_id: IntentId, note: str) -> Request[RetryNowVerdict]:
    """Make an intent due now that waits for its next call."""
    return _intent_operation(
        intent_id, "retry-now", {"note": note}, verdict_reader(RetryNowVerdict)
    )


def retry(intent_id: IntentId, note: str) -> Request[Redriven]:
    """Submit a finished intent again, as a new one."""

    def read(response: httpx.Response) -> Redriven:
        if response.is_success:
            return responses.redriven(response)
        verdict = verdict_reader(RedriveVerdict)(response)
        return Redriven(intent_id=intent_id, verdict=verdict, new_intent_id=None)

    return _intent_operation(intent_id, "retry", {"note": note}, read)


def intent_json(new: NewIntent, key: str) -> bytes:
    """Write an intent as the API reads it, without the fields that are not set.

    Raises InvalidArgument if the API would refuse it, whatever the time and the contracts are.
    """
    if faults := find_faults(new):
        raise InvalidArgument("; ".join(map(str, faults)))
    given: dict[str, Any] = {name: getattr(new, name) for name in _PLAIN_FIELDS}
    given["idempotency_key"] = key
    if new.body is not None:
        given["body"] = b64encode(new.body).decode()
    for name in _TIME_FIELDS:
        value = getattr(new, name)
        given[name] = None if value is None else value.isoformat()
    for name in _JSON_FIELDS:
        given[name] = getattr(new, name)
    members = [
        f'"{name}":{_json(name, value)}' for name, value in given.items() if value is not None
    ]
    return f"{{{','.join(members)}}}".encode()


def _intent_operation(
    intent_id: IntentId,
    name: str,
    members: Mapping[str, str],
    read: Callable[[httpx.Response], Result],
) -> Request[Result]:
    return operation(f"/v1/intents/{intent_id}/{name}", "intent", members, read)


def operation(
    path: str, subject: str, members: Mapping[str, object], read: Callable[[httpx.Response], Result]
) -> Request[Result]:
    """Change something in the name of the token; `subject` says what to look at if in doubt."""
    # Not idempotent: the repeated request would report that somebody else was faster.
    return Request(
        method="POST",
        path=path,
        headers=_json_headers(None),
        body=_json(path, members).encode(),
        read=read,
        is_idempotent=False,
        advice=f"Outcome unknown. Look at the {subject} before you try again.",
    )


def reader(
    read: Callable[[httpx.Response], Result], target: str = ""
) -> Callable[[httpx.Response], Result]:
    """Read a success with `read`; raise for an error response."""

    def checked(response: httpx.Response) -> Result:
        if not response.is_success:
            raise ErrorResponse.of(response).exception(target)
        return read(response)

    return checked


def _intent_reader(read: Callable[[httpx.Response], Result]) -> Callable[[httpx.Response], Result]:
    """Like reader, for a request about one intent: 404 means that there is no such intent."""

    def checked(response: httpx.Response) -> Result:
        rejection = None if response.is_success else ErrorResponse.of(response)
        if rejection is not None and rejection.code == "not_found":
            raise UnknownIntent(rejection.detail)
        return reader(read)(response)

    return checked


def verdict_reader(kind: type[Verdict]) -> Callable[[httpx.Response], Verdict]:
    """Read a verdict. Those that say why nothing was done are results too, not exceptions."""

    def read(response: httpx.Response) -> Verdict:
        if response.is_success:
            return kind(responses.verdict(response))
        rejection = ErrorResponse.of(response)
        if rejection.code == "not_found":
            return kind("not_found")
        if rejection.code == "not_possible" and "verdict" in rejection.members:
            return kind(rejection.members["verdict"])
        raise rejection.exception()

    return read


def _wait_query(seconds: float) -> dict[str, str]:
    if not 0 <= seconds <= WAIT_SECONDS_MAX:
        raise InvalidArgument(f"wait_seconds is {seconds:g}; use 0 to {WAIT_SECONDS_MAX}")
    return {"wait_seconds": f"{seconds:.3f}"} if seconds else {}


def _json_headers(trace_context: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if trace_context is not None:
        headers["traceparent"] = trace_context
    return headers


def _json(name: str, value: object) -> str:
    try:
        return json_text(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name} {error}") from None


def _time(name: str, value: datetime) -> str:
    if value.tzinfo is None:
        raise InvalidArgument(f"{name} has no time zone")
    return value.isoformat()

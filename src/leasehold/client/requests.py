"""What is asked of the API: one function for each call, which says what to send and how to read
the answer.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from leasehold.client import responses as answers
from leasehold.client.errors import Refusal
from leasehold.domain.errors import ApiUnavailable, InvalidArgument, UnknownIntent
from leasehold.domain.intent import JsonDocument
from leasehold.domain.verdict import CancelVerdict, RedriveVerdict, ResolveVerdict
from leasehold.store.rows import Redriven

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from enum import StrEnum

    import httpx

    from leasehold.client.responses import Handed, IntentPage, Receipt
    from leasehold.domain.intent import IntentId, NewIntent, Status
    from leasehold.store.rows import Attempt, IntentStatus

Answer = TypeVar("Answer")
Verdict = TypeVar("Verdict", bound="StrEnum")
Resolution = Literal["dispatched", "failed", "retry"]

PAGE_MAX = 200
WAIT_SECONDS_MAX = 30
_KEY_BYTES = 18
# A header is trimmed, and holds no other characters safely.
_FIT_FOR_A_HEADER = re.compile(r"[!-~]([ -~]{0,253}[!-~])?")
# Under the names of the API; a key's scope is not the caller's choice there.
_MEMBERS = (
    *("target", "content_type", "idempotency_key", "stream", "priority"),
    *("delay_seconds", "deadline_seconds"),
)
_MOMENTS = ("due_at", "deadline_at")
_DOCUMENTS = ("payload", "metadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Answer]):
    """One call: what is sent, how its answer is read, whether making it twice is making it once."""

    method: Literal["GET", "POST"]
    path: str
    read: Callable[[httpx.Response], Answer]
    is_repeatable: bool
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None
    # How much longer than usual its answer may take.
    wait_seconds: float = 0.0
    # What to do where nobody knows what came of it.
    advice: str = ""

    def answer(self, response: httpx.Response) -> Answer:
        """Read the answer, or raise what its refusal means."""
        try:
            return answers.readable(self.read, response)
        except ApiUnavailable as error:
            raise ApiUnavailable(f"{error}{self.advice}", status=error.status) from None


def keyed(new: NewIntent) -> str:
    """Give the key of an intent, or make one: then its call can be repeated."""
    return new.idempotency_key if new.idempotency_key is not None else token_urlsafe(_KEY_BYTES)


def safe_with(key: str) -> str:
    """Say what to do where nobody knows whether an intent was written."""
    return f"it is safe to repeat it with the idempotency key {key!r}"


def enqueue(new: NewIntent, wait_seconds: float = 0) -> Call[Receipt]:
    """Hand one intent in."""
    key = keyed(new)
    headers = _json_headers(new.trace_context)
    if _FIT_FOR_A_HEADER.fullmatch(key):
        # A proxy can see it there, and that the request may be repeated.
        headers["Idempotency-Key"] = key
    return Call(
        method="POST",
        path="/v1/intents",
        query=_wait(wait_seconds),
        headers=headers,
        body=entry(new, key),
        read=_or_refusal(answers.receipt, new.target),
        is_repeatable=True,
        wait_seconds=wait_seconds,
        advice=f"; {safe_with(key)}",
    )


def enqueue_batch(entries: Sequence[bytes], trace_context: str | None) -> Call[tuple[Handed, ...]]:
    """Hand many intents in, each of which has a key."""
    return Call(
        method="POST",
        path="/v1/intents:batch",
        headers=_json_headers(trace_context),
        body=b'{"intents":[' + b",".join(entries) + b"]}",
        read=_or_refusal(answers.handed),
        is_repeatable=True,
        advice="; with idempotency keys of your own it is safe to hand everything in again",
    )


def get(intent_id: IntentId, wait_seconds: float = 0) -> Call[IntentStatus]:
    """Ask where an intent stands."""
    path, query = f"/v1/intents/{intent_id}", _wait(wait_seconds)
    return _question(path, _of_intent(answers.intent), query, wait_seconds)


def attempts(intent_id: IntentId) -> Call[tuple[Attempt, ...]]:
    """Ask for the ledger of an intent."""
    return _question(f"/v1/intents/{intent_id}/attempts", _of_intent(answers.attempts))


def page(
    *,
    status: Status | None = None,
    target: str | None = None,
    stream: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: IntentId | None = None,
    limit: int = PAGE_MAX,
) -> Call[IntentPage]:
    """Ask for one page of intents."""
    given = {
        "status": status,
        "target": target,
        "stream": stream,
        "since": None if since is None else _moment("since", since),
        "until": None if until is None else _moment("until", until),
        "before": before,
        "limit": limit,
    }
    query = {name: str(value) for name, value in given.items() if value is not None}
    return _question("/v1/intents", _or_refusal(answers.page), query)


def cancel(intent_id: IntentId, note: str) -> Call[CancelVerdict]:
    """Cancel what no call was made for."""
    return _intervention(intent_id, "cancel", {"note": note}, _verdict(CancelVerdict))


def resolve(
    intent_id: IntentId, resolution: Resolution, note: str, reference: str | None
) -> Call[ResolveVerdict]:
    """Say what became of a doubt."""
    given = {"resolution": resolution, "note": note, "reference": reference}
    said = {name: value for name, value in given.items() if value is not None}
    return _intervention(intent_id, "resolve", said, _verdict(ResolveVerdict))


def retry(intent_id: IntentId, note: str) -> Call[Redriven]:
    """Try a finished intent anew, as a new one."""

    def read(response: httpx.Response) -> Redriven:
        if response.is_success:
            return answers.redriven(response)
        verdict = _verdict(RedriveVerdict)(response)
        return Redriven(intent_id=intent_id, verdict=verdict, new_intent_id=None)

    return _intervention(intent_id, "retry", {"note": note}, read)


def entry(new: NewIntent, key: str) -> bytes:
    """Write an intent as the API reads it; what is not given is left out."""
    given: dict[str, Any] = {name: getattr(new, name) for name in _MEMBERS}
    given["idempotency_key"] = key
    if new.body is not None:
        given["body"] = b64encode(new.body).decode()
    for name in _MOMENTS:
        value = getattr(new, name)
        given[name] = None if value is None else _moment(name, value)
    parts = [f'"{name}":{_json(name, value)}' for name, value in given.items() if value is not None]
    for name in _DOCUMENTS:
        value = getattr(new, name)
        if isinstance(value, JsonDocument):
            parts.append(f'"{name}":{value.raw.decode()}')
        elif value is not None:
            parts.append(f'"{name}":{_json(name, value)}')
    return f"{{{','.join(parts)}}}".encode()


def _question(
    path: str,
    read: Callable[[httpx.Response], Answer],
    query: Mapping[str, str] | None = None,
    wait_seconds: float = 0.0,
) -> Call[Answer]:
    return Call(
        method="GET",
        path=path,
        query=query or {},
        read=read,
        is_repeatable=True,
        wait_seconds=wait_seconds,
    )


def _wait(seconds: float) -> dict[str, str]:
    if not 0 <= seconds <= WAIT_SECONDS_MAX:
        raise InvalidArgument(
            f"wait_seconds is {seconds:g}, but must be from 0 to {WAIT_SECONDS_MAX}"
        )
    return {"wait_seconds": f"{seconds:.3f}"} if seconds else {}


def _intervention(
    intent_id: IntentId,
    what: str,
    said: Mapping[str, str],
    read: Callable[[httpx.Response], Answer],
) -> Call[Answer]:
    # Not repeatable: the second one would be told that somebody was faster.
    return Call(
        method="POST",
        path=f"/v1/intents/{intent_id}/{what}",
        headers=_json_headers(None),
        body=_json("this", said).encode(),
        read=read,
        is_repeatable=False,
        advice="; look at the intent before you try again",
    )


def _or_refusal(
    read: Callable[[httpx.Response], Answer], target: str = ""
) -> Callable[[httpx.Response], Answer]:
    def checked(response: httpx.Response) -> Answer:
        if not response.is_success:
            raise Refusal.of(response).error(target)
        return read(response)

    return checked


def _of_intent(
    read: Callable[[httpx.Response], Answer],
) -> Callable[[httpx.Response], Answer]:
    """Read what is said of one intent, of which it may be said that it is not known."""

    def checked(response: httpx.Response) -> Answer:
        refusal = None if response.is_success else Refusal.of(response)
        if refusal is not None and refusal.code == "not_found":
            raise UnknownIntent(refusal.detail)
        return _or_refusal(read)(response)

    return checked


def _verdict(kind: type[Verdict]) -> Callable[[httpx.Response], Verdict]:
    """Read a verdict, also where it says why nothing was done: that is an answer, no error."""

    def read(response: httpx.Response) -> Verdict:
        if response.is_success:
            return kind(answers.verdict_of(response))
        refusal = Refusal.of(response)
        if refusal.code == "not_found":
            return kind("not_found")
        if refusal.code == "not_possible" and "verdict" in refusal.more:
            return kind(refusal.more["verdict"])
        raise refusal.error()

    return read


def _json_headers(trace_context: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if trace_context is not None:
        headers["traceparent"] = trace_context
    return headers


def _json(name: str, value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{name} is no JSON: {error}") from None


def _moment(name: str, value: datetime) -> str:
    if value.tzinfo is None:
        raise InvalidArgument(f"{name} has no time zone: nobody can say when that is")
    return value.isoformat()

"""Reads the responses of the API into values; where possible the same ones that the store returns.

Unknown members are ignored, so that a newer API may send more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from leasehold.client.connection import UNREAD
from leasehold.domain.errors import ApiError
from leasehold.domain.intent import AttemptState, IntentId, Status
from leasehold.domain.verdict import BatchVerdict, RedriveVerdict
from leasehold.store.reader_rows import (
    Attempt,
    BlockedStream,
    EventCursor,
    IntentStatus,
    LedgerEvent,
    StreamPause,
    StreamSeen,
)
from leasehold.store.rows import Redriven

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import httpx

Value = TypeVar("Value")
Stream = TypeVar("Stream", BlockedStream, StreamSeen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A committed intent.

    `is_new` is False if the key was used before for the same content, also by an earlier try of
    the same call. If the call waited, `status` is the intent's status, and `intent` has everything
    else if the token has the scope `read`; else they are None.
    """

    intent_id: IntentId
    is_new: bool
    status: Status | None = None
    intent: IntentStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """The result for one intent of enqueue_many; `ordinal` is its position, from 1.

    After CONFLICT and DUPLICATE, `intent_id` is the intent that has the key. `idempotency_key` is
    the key that was sent, also one that the client generated.
    """

    ordinal: int
    verdict: BatchVerdict
    intent_id: IntentId | None
    problem: str | None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class IntentPage:
    """Intents, newest first; pass `next` as `before` for the next page, None ends the list."""

    intents: tuple[IntentStatus, ...]
    next: IntentId | None


@dataclass(frozen=True, slots=True)
class BlockedPage:
    """Blocked streams by target and name; `next` continues the list, None ends it."""

    streams: tuple[BlockedStream, ...]
    next: str | None


def receipt(response: httpx.Response) -> Receipt:
    """Read the result of enqueuing one intent."""
    given = _object(response)
    status, whole = given.get("status"), given.get("intent")
    return Receipt(
        intent_id=_intent_id(given["intent_id"]),
        is_new=response.status_code == 201,
        status=None if status is None else Status(status),
        intent=None if whole is None else _value(IntentStatus, whole),
    )


def bulk_results(response: httpx.Response) -> tuple[BulkResult, ...]:
    """Read the results of a batch, in its order."""
    return tuple(_bulk_result(one) for one in _object(response)["results"])


def intent(response: httpx.Response) -> IntentStatus:
    """Read the status of an intent."""
    return _value(IntentStatus, _object(response))


def page(response: httpx.Response) -> IntentPage:
    """Read one page of a list."""
    given = _object(response)
    return IntentPage(
        tuple(_value(IntentStatus, one) for one in given["intents"]), _optional_id(given["next"])
    )


def attempts(response: httpx.Response) -> tuple[Attempt, ...]:
    """Read the ledger of an intent."""
    return tuple(_value(Attempt, one) for one in _object(response)["attempts"])


def blocked_page(response: httpx.Response) -> BlockedPage:
    """Read one page of blocked streams."""
    given = _object(response)
    return BlockedPage(
        tuple(_stream(BlockedStream, one) for one in given["streams"]),
        None if given["next"] is None else str(given["next"]),
    )


def stream(response: httpx.Response) -> StreamSeen:
    """Read one stream."""
    return _stream(StreamSeen, _object(response))


def _stream(kind: type[Stream], given: Mapping[str, Any]) -> Stream:
    pauses = [_value(StreamPause, one, _STREAM_READERS) for one in given["pauses"]]
    return replace(_value(kind, given, _STREAM_READERS), pauses=pauses)


def redriven(response: httpx.Response) -> Redriven:
    """Read the result of submitting a finished intent again."""
    given = _object(response)
    return Redriven(
        intent_id=_intent_id(given["intent_id"]),
        verdict=RedriveVerdict(given["verdict"]),
        new_intent_id=_optional_id(given.get("new_intent_id")),
    )


def verdict(response: httpx.Response) -> str:
    """Read the verdict of an operation."""
    return str(_object(response)["verdict"])


def event(cursor: str, data: str) -> LedgerEvent:
    """Read one event of the event stream."""
    given = json.loads(data)
    if not cursor:
        raise ValueError("an event without a cursor")
    return LedgerEvent(
        cursor=EventCursor(cursor), target=given.get("target"), attempt=_value(Attempt, given)
    )


def parse(read: Callable[[httpx.Response], Value], response: httpx.Response) -> Value:
    """Read a response with `read`, or raise ApiError if it makes no sense."""
    status = response.status_code
    try:
        if response.is_success and UNREAD in response.extensions:
            why = response.extensions[UNREAD].decode()
            raise ApiError(f"the API's answer (status {status}) was not read: {why}", status=status)
        return read(response)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ApiError(
            f"this release cannot read the API's answer (status {status}): "
            "is the URL that of Leasehold, and is its release not newer than the client's?",
            status=status,
        ) from error


def _bulk_result(given: Mapping[str, Any]) -> BulkResult:
    problems: Sequence[Mapping[str, str]] = given.get("problems") or ()
    text = "; ".join(f"{one['place']}: {one['message']}".removeprefix(": ") for one in problems)
    return BulkResult(
        ordinal=int(given["ordinal"]),
        verdict=BatchVerdict(given["verdict"]),
        intent_id=_optional_id(given.get("intent_id")),
        problem=text or None,
    )


def _object(response: httpx.Response) -> dict[str, Any]:
    found = json.loads(response.content)
    if not isinstance(found, dict):
        raise TypeError("expected a JSON object")
    return cast("dict[str, Any]", found)


def _value(
    kind: type[Value],
    given: Mapping[str, Any],
    readers: Mapping[str, Callable[[str], object]] | None = None,
) -> Value:
    """Make a dataclass of a JSON object with the same names."""
    readers = _READERS if readers is None else readers
    read = {
        one.name: _member(given.get(one.name), readers.get(one.name))
        for one in fields(kind)  # pyright: ignore[reportArgumentType]  (all are dataclasses)
    }
    return kind(**read)


def _member(value: object, read: Callable[[str], object] | None) -> object:
    return value if value is None or read is None else read(str(value))


def _intent_id(value: object) -> IntentId:
    return IntentId(UUID(str(value)))


def _optional_id(value: object) -> IntentId | None:
    return None if value is None else _intent_id(value)


_READERS: dict[str, Callable[[str], object]] = {
    "intent_id": _intent_id,
    "redrive_of": _intent_id,
    "status": Status,
    "state": AttemptState,
    **dict.fromkeys(
        ("created_at", "due_at", "deadline_at", "started_at", "finished_at", "deferred_since"),
        datetime.fromisoformat,
    ),
}
_STREAM_READERS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(("head", "paused_for"), _intent_id),
    **dict.fromkeys(
        (
            "blocked_since",
            "paused_since",
            "paused_until",
            "due_at",
            "in_flight_since",
            "lease_expires_at",
            "grace_expires_at",
        ),
        datetime.fromisoformat,
    ),
}

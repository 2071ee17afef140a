"""What the API answers, read into values; the same ones, where it can be, that the store gives.

A member that this release does not know is left out, so that the API may learn to say more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from leasehold.domain.errors import ApiError
from leasehold.domain.intent import AttemptState, IntentId, Status
from leasehold.domain.verdict import RedriveVerdict
from leasehold.store.rows import Attempt, EventCursor, IntentStatus, LedgerEvent, Redriven

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import httpx

Value = TypeVar("Value")


class HandedVerdict(StrEnum):
    """Of one intent of a batch. ACCEPTED wrote it; after UNAVAILABLE nobody knows; every other one
    wrote nothing.
    """

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    UNKNOWN_TARGET = "unknown_target"
    INVALID = "invalid"
    FORBIDDEN = "forbidden"
    QUEUE_FULL = "queue_full"
    UNAVAILABLE = "unavailable"

    @property
    def is_good(self) -> bool:
        """Whether the intent is committed."""
        return self in {self.ACCEPTED, self.DUPLICATE}

    @property
    def is_passing(self) -> bool:
        """Whether it may be otherwise in a moment."""
        return self in {self.QUEUE_FULL, self.UNAVAILABLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """An intent that is committed.

    `is_new` is False where the key was used before for the same; a call that was repeated because
    its answer was lost finds its own intent so. `intent` is there where the call waited for it.
    """

    intent_id: IntentId
    is_new: bool
    intent: IntentStatus | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """One intent of many, by its place (from 1): its id, or the first one's of the same key."""

    ordinal: int
    verdict: HandedVerdict
    intent_id: IntentId | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class IntentPage:
    """Intents, newest first; `next` is the `before` to go on with, None where that is all."""

    intents: tuple[IntentStatus, ...]
    next: IntentId | None


def receipt(response: httpx.Response) -> Receipt:
    """Read what enqueuing one intent gave."""
    given = _object(response)
    waited = given.get("intent")
    return Receipt(
        intent_id=_intent_id(given["intent_id"]),
        is_new=response.status_code == 201,
        intent=None if waited is None else _value(IntentStatus, waited),
    )


def handed(response: httpx.Response) -> tuple[Handed, ...]:
    """Read the verdicts on a batch, in its order."""
    return tuple(_handed(one) for one in _object(response)["results"])


def intent(response: httpx.Response) -> IntentStatus:
    """Read where an intent stands."""
    return _value(IntentStatus, _object(response))


def page(response: httpx.Response) -> IntentPage:
    """Read one page of a list."""
    given = _object(response)
    following = given["next"]
    return IntentPage(
        tuple(_value(IntentStatus, one) for one in given["intents"]),
        None if following is None else _intent_id(following),
    )


def attempts(response: httpx.Response) -> tuple[Attempt, ...]:
    """Read the ledger of an intent."""
    return tuple(_value(Attempt, one) for one in _object(response)["attempts"])


def redriven(response: httpx.Response) -> Redriven:
    """Read what became of a finished intent that was to be tried anew."""
    given = _object(response)
    new = given.get("new_intent_id")
    return Redriven(
        intent_id=_intent_id(given["intent_id"]),
        verdict=RedriveVerdict(given["verdict"]),
        new_intent_id=None if new is None else _intent_id(new),
    )


def verdict_of(response: httpx.Response) -> str:
    """Read the verdict on an intervention."""
    return str(_object(response)["verdict"])


def event(cursor: str, data: str) -> LedgerEvent:
    """Read one event of the stream."""
    given = json.loads(data)
    return LedgerEvent(
        cursor=EventCursor.parse(cursor),
        target=given.get("target"),
        attempt=_value(Attempt, given),
    )


def readable(read: Callable[[httpx.Response], Value], response: httpx.Response) -> Value:
    """Read an answer, or say that this release cannot."""
    try:
        return read(response)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ApiError(
            f"the API answered {response.status_code} with what this release cannot read: "
            "is the address that of Leasehold, and its release not newer than this one?",
            status=response.status_code,
        ) from error


def _handed(given: Mapping[str, Any]) -> Handed:
    problems: Sequence[Mapping[str, str]] = given.get("problems") or ()
    told = "; ".join(f"{one['place']}: {one['message']}".removeprefix(": ") for one in problems)
    found = given.get("intent_id")
    return Handed(
        ordinal=int(given["ordinal"]),
        verdict=HandedVerdict(given["verdict"]),
        intent_id=None if found is None else _intent_id(found),
        problem=told or None,
    )


def _object(response: httpx.Response) -> dict[str, Any]:
    found = json.loads(response.content)
    if not isinstance(found, dict):
        raise TypeError("an object is expected")
    return cast("dict[str, Any]", found)


def _value(kind: type[Value], given: Mapping[str, Any]) -> Value:
    """Make a value of a JSON object: members and fields share their names."""
    read = {
        one.name: _member(one.name, given.get(one.name))
        for one in fields(kind)  # pyright: ignore[reportArgumentType]  (all are dataclasses)
    }
    return kind(**read)


def _member(name: str, value: object) -> object:
    return value if value is None or name not in _READERS else _READERS[name](str(value))


def _intent_id(value: object) -> IntentId:
    return IntentId(UUID(str(value)))


_READERS: dict[str, Callable[[str], object]] = {
    "intent_id": _intent_id,
    "redrive_of": _intent_id,
    "status": Status,
    "state": AttemptState,
    **dict.fromkeys(
        ("created_at", "due_at", "deadline_at", "started_at", "finished_at"),
        datetime.fromisoformat,
    ),
}

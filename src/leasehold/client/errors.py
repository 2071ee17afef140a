"""From a refusal of the API (a problem document, RFC 9457) to an error of ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from leasehold.domain.errors import (
    AccessDenied,
    ApiError,
    ApiUnavailable,
    IdempotencyConflict,
    IntakeFull,
    InvalidArgument,
    LeaseholdError,
    UnknownTarget,
)
from leasehold.domain.intent import IntentId

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

# Whoever answers so has written nothing. Only the API can say that: what stands before it may have
# asked one instance, which died, and then found no other.
NOTHING_WRITTEN = frozenset({"queue_full", "too_many", "intake_full", "overloaded"})
# Whoever answers so does not say whether something was written.
_NOBODY_KNOWS = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)
_REFUSED = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    }
)
_TOLD_MAX = 500


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a problem document says; of any other answer, what can be said of it."""

    status: int
    code: str
    detail: str
    request_id: str | None
    more: Mapping[str, Any]

    @classmethod
    def of(cls, response: httpx.Response) -> Refusal:
        """Read an answer that is no success, whoever gave it."""
        document = _document(response)
        told = document.get("detail") or document.get("title")
        return cls(
            status=response.status_code,
            code=str(document.get("code", "")),
            detail=str(told)[:_TOLD_MAX] if told else _anonymous(response),
            request_id=document.get("request_id") or response.headers.get("x-request-id"),
            more=document,
        )

    @property
    def wrote_nothing(self) -> bool:
        """Whether it is certain that nothing came of the request, so that it may be repeated."""
        return self.status == HTTPStatus.TOO_MANY_REQUESTS or self.code in NOTHING_WRITTEN

    @property
    def is_passing(self) -> bool:
        """Whether the same request may be answered otherwise in a moment."""
        return self.wrote_nothing or self.status in _NOBODY_KNOWS

    def error(self, target: str = "") -> LeaseholdError:
        """Give the error that this is for a caller; `target` is what it asked for."""
        if self.wrote_nothing:
            return IntakeFull(self.detail)
        by_code = self._by_code(target)
        if by_code is not None:
            return by_code
        if self.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            return AccessDenied(self.detail)
        if self.status in _NOBODY_KNOWS:
            return ApiUnavailable(self._told(), status=self.status)
        if self.status in _REFUSED:
            return InvalidArgument(self.detail)
        return ApiError(self._told(), status=self.status)

    def _by_code(self, target: str) -> LeaseholdError | None:
        match self.code:
            case "idempotency_conflict":
                return IdempotencyConflict(self.detail, intent_id=self._intent_id())
            case "unknown_target":
                return UnknownTarget(self.detail, target=target)
            case _:
                return None

    def _intent_id(self) -> IntentId | None:
        try:
            return IntentId(UUID(str(self.more["intent_id"])))
        except (KeyError, ValueError):
            return None

    def _told(self) -> str:
        told = f"the API answered {self.status}: {self.detail}"
        return f"{told} (request {self.request_id})" if self.request_id else told


def _document(response: httpx.Response) -> dict[str, Any]:
    if not response.headers.get("content-type", "").startswith("application/problem+json"):
        return {}
    try:
        document = json.loads(response.content)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


def _anonymous(response: httpx.Response) -> str:
    return f"{response.reason_phrase or 'no reason'}, without a word from an instance of ours"

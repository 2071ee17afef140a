"""Turns an error response of the API (a problem document, RFC 9457) into an exception."""

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
    ContentTooLarge,
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

# Problem codes of responses that guarantee that nothing was written. Only an instance can know: a
# proxy may have sent the request to one that died, and answered for lack of another.
NOTHING_WRITTEN = frozenset({"queue_full", "too_many", "intake_full", "overloaded"})
# The same request may be answered by another instance, or a moment later.
_TEMPORARY = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)
_INVALID = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    }
)
_DETAIL_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """The content of a problem document, or what is known of any other error response."""

    status: int
    code: str
    detail: str
    request_id: str | None
    members: Mapping[str, Any]

    @classmethod
    def of(cls, response: httpx.Response) -> ErrorResponse:
        """Read an error response of an instance, a proxy or any other server."""
        document = _document(response)
        detail = document.get("detail") or document.get("title")
        return cls(
            status=response.status_code,
            code=str(document.get("code", "")),
            detail=str(detail)[:_DETAIL_CHARACTERS_MAX] if detail else _reason(response, document),
            request_id=document.get("request_id") or response.headers.get("x-request-id"),
            members=document,
        )

    @property
    def wrote_nothing(self) -> bool:
        """Whether the request certainly had no effect."""
        return self.status == HTTPStatus.TOO_MANY_REQUESTS or self.code in NOTHING_WRITTEN

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.wrote_nothing or self.status in _TEMPORARY

    @property
    def outcome_unknown(self) -> bool:
        """Whether a request that writes may have been executed: the server failed on its way."""
        return not self.wrote_nothing and self.status >= HTTPStatus.INTERNAL_SERVER_ERROR

    def exception(self, target: str = "") -> LeaseholdError:
        """Return the exception for the caller; `target` is that of the request."""
        if self.wrote_nothing:
            return IntakeFull(self.detail)
        match self.code:
            case "idempotency_conflict":
                return IdempotencyConflict(self.detail, intent_id=self._intent_id())
            case "unknown_target":
                # The API never repeats what was sent to it, so its text does not have the name.
                message = f"The target {target!r} has no published contract. {self.detail}"
                return UnknownTarget(message, target=target)
            case "too_large":
                return ContentTooLarge.of(self.detail, self.detail)
            case _:
                return self._exception_by_status()

    def _exception_by_status(self) -> LeaseholdError:
        if self.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            return AccessDenied(self.detail)
        if self.status in _INVALID:
            return InvalidArgument(self.detail)
        message = f"the API answered {self.status}: {self.detail}"
        if self.request_id:
            message += f" (request {self.request_id})"
        kind = ApiUnavailable if self.status in _TEMPORARY else ApiError
        return kind(message, status=self.status)

    def _intent_id(self) -> IntentId | None:
        try:
            return IntentId(UUID(str(self.members["intent_id"])))
        except (KeyError, ValueError):
            return None


def _document(response: httpx.Response) -> dict[str, Any]:
    if not response.headers.get("content-type", "").startswith("application/problem+json"):
        return {}
    try:
        document = json.loads(response.content)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


def _reason(response: httpx.Response, document: Mapping[str, Any]) -> str:
    reason = response.reason_phrase or "no reason given"
    return reason if document else f"{reason} (not an answer of Leasehold)"

"""The requests of the API about streams. A stream is named in the query or the body."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.client import responses
from leasehold.client.errors import ErrorResponse
from leasehold.client.requests import PAGE_MAX, Request, operation, reader, verdict_reader
from leasehold.domain.verdict import PauseVerdict, ResumeVerdict, SkipVerdict

if TYPE_CHECKING:
    import httpx

    from leasehold.client.responses import BlockedPage
    from leasehold.domain.intent import IntentId
    from leasehold.store.reader_rows import StreamSeen


def blocked_page(target: str | None, after: str | None) -> Request[BlockedPage]:
    """Read one page of blocked streams."""
    given = {"target": target, "after": after, "limit": str(PAGE_MAX)}
    return Request(
        method="GET",
        path="/v1/streams",
        query={name: value for name, value in given.items() if value is not None},
        read=reader(responses.blocked_page, target or ""),
        is_idempotent=True,
    )


def stream(target: str, stream: str) -> Request[StreamSeen | None]:
    """Read one stream."""

    def read(response: httpx.Response) -> StreamSeen | None:
        if not response.is_success and ErrorResponse.of(response).code == "not_found":
            return None
        return reader(responses.stream)(response)

    return Request(
        method="GET",
        path="/v1/stream",
        query={"target": target, "stream": stream},
        read=read,
        is_idempotent=True,
    )


def pause(target: str, stream: str, note: str, seconds: float | None) -> Request[PauseVerdict]:
    """Begin nothing more of a stream."""
    members: dict[str, object] = {"target": target, "stream": stream, "note": note}
    if seconds is not None:
        members["seconds"] = seconds
    return operation("/v1/stream/pause", "stream", members, verdict_reader(PauseVerdict))


def resume(
    target: str, stream: str, note: str, paused_by: str | None, paused_for: IntentId | None
) -> Request[ResumeVerdict]:
    """End a pause of a stream."""
    members: dict[str, object] = {"target": target, "stream": stream, "note": note}
    if paused_by is not None:
        members["paused_by"] = paused_by
    if paused_for is not None:
        members["paused_for"] = str(paused_for)
    return operation("/v1/stream/resume", "stream", members, verdict_reader(ResumeVerdict))


def skip(target: str, stream: str, intent_id: IntentId, note: str) -> Request[SkipVerdict]:
    """Cancel the head of a stream."""
    members = {"target": target, "stream": stream, "intent_id": str(intent_id), "note": note}
    return operation("/v1/stream/skip", "stream", members, verdict_reader(SkipVerdict))

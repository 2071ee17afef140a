"""Read targets, instances, leases, totals and events; health, readiness and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from leasehold.domain.json_text import json_text
from leasehold.web.auth import require_target
from leasehold.web.dependencies import Reader, ReaderOfAll, context_of, service_of
from leasehold.web.schemas import requests, responses
from leasehold.web.schemas.openapi import refusals

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Collection

    from starlette.types import Receive, Scope, Send

    from leasehold.web.service import WebService

router = APIRouter()

Limit = Annotated[int, Field(ge=1, le=requests.PAGE_MAX)]


class AfterQuery(BaseModel):
    """The page to list."""

    model_config = ConfigDict(extra="forbid")

    after: Annotated[
        requests.Name | None, Field(description="The `next` of the previous page.")
    ] = None
    limit: Limit = 50


class LeasesQuery(AfterQuery):
    """The leases to list."""

    prefix: Annotated[requests.Name | None, Field(description="Only names with this prefix.")] = (
        None
    )


class EventsQuery(BaseModel):
    """The events to send."""

    model_config = ConfigDict(extra="forbid")

    target: requests.Target | None = None
    last_event_id: Annotated[
        requests.Cursor | None,
        Field(description="Like the header Last-Event-ID, which takes precedence."),
    ] = None


@router.get(
    "/v1/targets",
    tags=["monitoring"],
    response_model=responses.Targets,
    responses=refusals(403, 503),
)
async def read_targets(request: Request, token: Reader) -> Response:
    """List the targets that the token covers, with their current contracts."""
    service = service_of(request)
    published = await service.stores.reader.read_published_contracts()
    targets = [
        responses.Target(
            target=one.target,
            version=one.version,
            published_at=one.published_at,
            published_by=one.published_by,
            is_full=service.queue_limits.is_full(one.target),
            terms=one.terms.value(),
        ).model_dump(mode="json")
        | {"terms": one.terms}  # as it is stored, with every digit
        for one in published
        if token.covers(one.target)
    ]
    return Response(json_text({"targets": targets}), media_type="application/json")


@router.get("/v1/instances", tags=["monitoring"], responses=refusals(403, 422, 503))
async def read_instances(
    request: Request, _: ReaderOfAll, query: Annotated[AfterQuery, Query()]
) -> responses.Instances:
    """List the instances, by id."""
    found = await service_of(request).stores.reader.read_instances(query.after, query.limit)
    return responses.Instances(
        instances=[
            responses.Instance(
                instance_id=one.instance_id,
                role=one.role,
                started_at=one.started_at,
                seen_at=one.seen_at,
                expires_at=one.expires_at,
                is_alive=one.is_alive,
                detail=one.detail.value(),
            )
            for one in found
        ],
        next=found[-1].instance_id if len(found) == query.limit else None,
    )


@router.get("/v1/leases", tags=["monitoring"], responses=refusals(403, 422, 503))
async def read_leases(
    request: Request, _: ReaderOfAll, query: Annotated[LeasesQuery, Query()]
) -> responses.Leases:
    """List the leases, by name."""
    found = await service_of(request).stores.reader.read_leases(
        query.prefix, query.after, query.limit
    )
    return responses.Leases(
        leases=[responses.Lease.model_validate(one) for one in found],
        next=found[-1].lease_name if len(found) == query.limit else None,
    )


@router.get("/v1/stats", tags=["monitoring"], responses=refusals(403, 503))
async def read_stats(request: Request, _: ReaderOfAll) -> responses.Stats:
    """Read the totals of the queue as they were last counted; `seen_at` says when."""
    return responses.Stats.model_validate(await service_of(request).stores.reader.read_supervisor())


@router.get(
    "/v1/events",
    tags=["monitoring"],
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Ledger rows as server-sent events; the stream does not end. The `data` "
            "of an event `attempt` is an `Attempt` with its `target`.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    }
    | refusals(403, 422, 503),
)
async def read_events(
    request: Request,
    token: Reader,
    query: Annotated[EventsQuery, Query()],
    last_event_id: Annotated[
        requests.Cursor | None, Header(description="The `id` of the last event that was received.")
    ] = None,
) -> Response:
    """Stream the ledger from now on, or from the last event that was received."""
    service = service_of(request)
    authorization = context_of(request).headers.one(b"authorization")
    targets: Collection[str] | None = token.targets
    if query.target is not None:
        require_target(token, query.target)
        targets = (query.target,)
    service.events.admit()
    try:
        after = await service.events.cursor(last_event_id or query.last_event_id or None)
    except BaseException:
        service.events.release()
        raise
    return _EventStream(
        service,
        service.events.stream(after, targets, lambda: service.tokens.is_active(authorization)),
    )


class _EventStream(StreamingResponse):
    """A response without an end, counted as a listener and not as a request."""

    def __init__(self, service: WebService, chunks: AsyncIterable[bytes]) -> None:
        super().__init__(
            chunks,
            media_type="text/event-stream",
            # Proxies must not buffer events.
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._service.limiter.streaming():
                await super().__call__(scope, receive, send)
        finally:
            self._service.events.release()


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", tags=["health"], responses=refusals(is_open=True))
async def read_health() -> responses.Health:
    """Return 200 if the process answers."""
    return responses.Health(status="ok")


@router.head("/readyz", include_in_schema=False)
@router.get(
    "/readyz",
    tags=["health"],
    responses={
        503: {"model": responses.Readiness, "description": "This instance should get no requests."}
    }
    | refusals(is_open=True),
)
async def read_readiness(request: Request, response: Response) -> responses.Readiness:
    """Return 200 if this instance should get requests, as leader or follower."""
    service = service_of(request)
    state = await service.state()
    if state != "ready":
        response.status_code = 503
    return responses.Readiness(
        status=state,
        instance_id=service.settings.instance_id,
        scopes={
            name: responses.ScopeState.model_validate(one) for name, one in service.scopes().items()
        },
    )


@router.get(
    "/metrics",
    tags=["health"],
    response_class=Response,
    responses={
        200: {
            "description": "Prometheus exposition format.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    }
    | refusals(403),
)
async def read_metrics(request: Request, _: ReaderOfAll) -> Response:
    """Read the metrics of this instance."""
    exposition = service_of(request).metrics.exposition()
    return Response(exposition, media_type="text/plain; version=0.0.4; charset=utf-8")

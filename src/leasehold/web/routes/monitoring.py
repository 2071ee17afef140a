"""Looking at the whole: targets, instances, leases, numbers, events; and whether we are well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from leasehold.web.auth import require_target
from leasehold.web.dependencies import Reader, ReaderOfAll, passing_of, service_of
from leasehold.web.schemas import responses as models
from leasehold.web.schemas import types as kinds
from leasehold.web.schemas.openapi import responses

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Collection

    from starlette.types import Receive, Scope, Send

    from leasehold.web.service import WebService

router = APIRouter()

Limit = Annotated[int, Field(ge=1, le=kinds.PAGE_MAX)]


class AfterQuery(BaseModel):
    """Where to go on."""

    model_config = ConfigDict(extra="forbid")

    after: Annotated[kinds.Name | None, Field(description="The `next` of the page before.")] = None
    limit: Limit = 50


class LeasesQuery(AfterQuery):
    """Which leases to list."""

    prefix: Annotated[kinds.Name | None, Field(description="Only names that begin so.")] = None


class EventsQuery(BaseModel):
    """Which events to send."""

    model_config = ConfigDict(extra="forbid")

    target: kinds.Target | None = None
    last_event_id: Annotated[
        str | None,
        Field(max_length=80, description="As the header Last-Event-ID, which goes before it."),
    ] = None


@router.get(
    "/v1/targets", tags=["watching"], response_model=models.Targets, responses=responses(403, 503)
)
async def read_targets(request: Request, token: Reader) -> models.Targets:
    """List the targets that the token covers, each under its current contract."""
    service = service_of(request)
    published = await service.stores.reader.read_published_contracts()
    return models.Targets(
        targets=[
            models.TargetSeen(
                target=one.target,
                version=one.version,
                published_at=one.published_at,
                published_by=one.published_by,
                is_full=service.queue_limits.is_full(one.target),
                terms=one.terms.value(),
            )
            for one in published
            if token.covers(one.target)
        ]
    )


@router.get(
    "/v1/instances",
    tags=["watching"],
    response_model=models.Instances,
    responses=responses(403, 422, 503),
)
async def read_instances(
    request: Request, _: ReaderOfAll, query: Annotated[AfterQuery, Query()]
) -> models.Instances:
    """List the instances, by id."""
    found = await service_of(request).stores.reader.read_instances(query.after, query.limit)
    return models.Instances(
        instances=[
            models.InstanceSeen(
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


@router.get(
    "/v1/leases",
    tags=["watching"],
    response_model=models.Leases,
    responses=responses(403, 422, 503),
)
async def read_leases(
    request: Request, _: ReaderOfAll, query: Annotated[LeasesQuery, Query()]
) -> models.Leases:
    """List the leases, by name."""
    found = await service_of(request).stores.reader.read_leases(
        query.prefix, query.after, query.limit
    )
    return models.Leases(
        leases=[models.LeaseSeen.model_validate(one) for one in found],
        next=found[-1].lease_name if len(found) == query.limit else None,
    )


@router.get(
    "/v1/stats", tags=["watching"], response_model=models.Stats, responses=responses(403, 503)
)
async def read_stats(request: Request, _: ReaderOfAll) -> models.Stats:
    """Count the whole queue. What that costs grows with what is unfinished."""
    return models.Stats.model_validate(await service_of(request).stores.reader.read_supervisor())


@router.get(
    "/v1/events",
    tags=["watching"],
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Rows of the ledger as server-sent events, for as long as you listen.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    }
    | responses(403, 422, 503),
)
async def read_events(
    request: Request,
    token: Reader,
    query: Annotated[EventsQuery, Query()],
    last_event_id: Annotated[str | None, Header(max_length=80)] = None,
) -> Response:
    """Send what is written on the ledger from now on, or since the event that you saw last."""
    service = service_of(request)
    authorization = passing_of(request).headers.one(b"authorization")
    targets: Collection[str] | None = token.targets
    if query.target is not None:
        require_target(token, query.target)
        targets = (query.target,)
    service.events.take_seat()
    try:
        place = await service.events.place(last_event_id or query.last_event_id)
    except BaseException:
        service.events.leave_seat()
        raise
    return _EventStream(
        service,
        service.events.stream(place, targets, lambda: service.tokens.is_in_force(authorization)),
    )


class _EventStream(StreamingResponse):
    """An answer without an end. While it goes on it takes no room from others, only its seat."""

    def __init__(self, service: WebService, pieces: AsyncIterable[bytes]) -> None:
        super().__init__(
            pieces,
            media_type="text/event-stream",
            # No proxy is to keep events back until it has enough of them.
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._service.room.listening():
                await super().__call__(scope, receive, send)
        finally:
            self._service.events.leave_seat()


@router.get("/healthz", tags=["health"], response_model=models.Health)
async def read_health() -> models.Health:
    """Say that the process answers."""
    return models.Health(status="ok")


@router.get(
    "/readyz",
    tags=["health"],
    response_model=models.Readiness,
    responses={503: {"model": models.Readiness, "description": "Send nothing here."}},
)
async def read_readiness(request: Request, response: Response) -> models.Readiness:
    """Say whether requests should come here: 200 for leader and follower alike."""
    service = service_of(request)
    state = await service.state()
    if state != "ready":
        response.status_code = 503
    return models.Readiness(
        status=state,
        instance_id=service.settings.instance_id,
        scopes={
            name: models.ScopeState.model_validate(one) for name, one in service.scopes().items()
        },
    )


@router.get(
    "/metrics",
    tags=["health"],
    response_class=Response,
    responses={
        200: {
            "description": "In the exposition format of Prometheus.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    }
    | responses(403),
)
async def read_metrics(request: Request, _: ReaderOfAll) -> Response:
    """Show the metrics of this instance."""
    exposition = service_of(request).metrics.exposition()
    return Response(exposition, media_type="text/plain; version=0.0.4; charset=utf-8")

"""Request bodies as pydantic models, for validation and for OpenAPI.

They are strict: text is not converted to a number, and an unknown member is an error.
"""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID  # noqa: TC003 (pydantic reads the annotations)

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from leasehold.domain.intent import Status
from leasehold.web.schemas.types import (
    REDRIVE_MAX,
    AnyJson,
    JsonObject,
    Moment,
    Name,
    Note,
    Seconds,
    Target,
)


class RequestBody(BaseModel):
    """The base of all request bodies."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class IntentRequest(RequestBody):
    """An intent to enqueue, with exactly one of `payload` and `body`."""

    target: Target
    payload: AnyJson = None
    body: Annotated[
        str | None,
        Field(description="Opaque bytes in base64, instead of a payload."),
    ] = None
    content_type: Annotated[Name | None, Field(description="Required with `body`.")] = None
    idempotency_key: Annotated[
        Name | None,
        Field(description="The same key with the same target and content is the same intent."),
    ] = None
    key_scope: Annotated[
        Literal["target", "all"] | None,
        Field(
            description="`target`, the default: the key identifies one intent of its target. `all`:"
            " one among all intents that have this scope; needs a token for all targets."
        ),
    ] = None
    stream: Name | None = None
    priority: Annotated[int | None, Field(ge=0, le=3, description="0 first to 3 last.")] = None
    due_at: Moment | None = None
    delay_seconds: Seconds | None = None
    deadline_at: Moment | None = None
    deadline_seconds: Seconds | None = None
    metadata: JsonObject = None


class BatchRequest(RequestBody):
    """Up to 1,000 intents."""

    intents: Annotated[list[IntentRequest], Field(min_length=1, max_length=1000)]


class NoteRequest(RequestBody):
    """The reason for an operation."""

    note: Note


class ResolveRequest(RequestBody):
    """The outcome of an intent that is in doubt, held or confirming.

    dispatched: it had its effect. failed: it had none, and is not tried again. retry: it had none,
    and is tried again.
    """

    resolution: Literal["dispatched", "failed", "retry"]
    note: Note
    reference: Annotated[Name | None, Field(description="The gateway's id for it.")] = None


def _require_redrivable(status: Status) -> Status:
    if status not in {Status.REJECTED, Status.EXHAUSTED, Status.CANCELLED}:
        raise ValueError("must be rejected, exhausted or cancelled")
    return status


class RedriveRequest(RequestBody):
    """Finished intents of one target to try again.

    Send it first as a dry run, which finds the intents and returns a `confirmation`; then send it
    unchanged with that confirmation.
    """

    target: Target
    status: Annotated[
        Status,
        Field(strict=False),
        AfterValidator(_require_redrivable),
        WithJsonSchema({"type": "string", "enum": ["rejected", "exhausted", "cancelled"]}),
    ]
    note: Note
    stream: Name | None = None
    since: Moment | None = None
    until: Moment | None = None
    before: Annotated[UUID | None, Field(strict=False)] = None
    limit: Annotated[int, Field(ge=1, le=REDRIVE_MAX)] = 100
    dry_run: bool = True
    confirmation: Annotated[str | None, Field(max_length=64)] = None

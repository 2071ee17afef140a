"""Request bodies as pydantic models, for validation and for OpenAPI.

They are strict: text is not converted to a number, and an unknown member is an error.
"""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID  # noqa: TC003 (pydantic reads the annotations)

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from leasehold.domain.intent import Status
from leasehold.web.schemas.types import (  # noqa: TC001 (as above)
    AnyJson,
    Base64,
    Moment,
    Name,
    Note,
    ObjectOrNull,
    Priority,
    RedriveLimit,
    Seconds,
    SecondsAhead,
    Target,
)


class RequestBody(BaseModel):
    """The base of all request bodies."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class IntentRequest(RequestBody):
    """An intent to enqueue, with exactly one of `payload` and `body`.

    OpenAPI shows it as two, PayloadIntent and BodyIntent.
    """

    target: Target
    payload: Annotated[AnyJson, Field(description="Any JSON except null, up to 1 MiB.")] = None
    body: Annotated[
        Base64 | None, Field(description="Opaque bytes in base64, up to 1 MiB of bytes.")
    ] = None
    content_type: Annotated[Name | None, Field(description="The media type of `body`.")] = None
    idempotency_key: Annotated[
        Name | None,
        Field(
            description="The same key with the same target and content is the same intent. The "
            "header Idempotency-Key, if sent too, must be equal."
        ),
    ] = None
    key_scope: Annotated[
        Literal["target", "all"] | None,
        Field(
            description="`target`, the default: the key identifies one intent of its target. `all`:"
            " one among all intents that have this scope; needs a token for all targets."
        ),
    ] = None
    stream: Name | None = None
    priority: Annotated[Priority | None, Field(description="0 first to 3 last.")] = None
    due_at: Annotated[Moment | None, Field(description="Within ten years from now.")] = None
    delay_seconds: Annotated[Seconds | None, Field(description="Instead of `due_at`.")] = None
    deadline_at: Annotated[
        Moment | None, Field(description="After now and after the intent is due.")
    ] = None
    deadline_seconds: Annotated[
        SecondsAhead | None,
        Field(description="Instead of `deadline_at`; more than `delay_seconds`."),
    ] = None
    metadata: Annotated[ObjectOrNull, Field(description="Up to 16 KiB.")] = None


class BatchRequest(RequestBody):
    """Up to 1,000 intents. An invalid one gets a verdict of its own and fails no other."""

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
    limit: Annotated[RedriveLimit, Field(description="100 if it is absent.")] = 100
    dry_run: Annotated[bool, Field(description="True if it is absent.")] = True
    confirmation: Annotated[
        str | None, Field(max_length=64, description="The one that the dry run returned.")
    ] = None

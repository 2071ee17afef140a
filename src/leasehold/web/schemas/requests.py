"""What clients send, as pydantic models: they check it and describe it.

Strict: a number is not taken from text, and an unknown member is a mistake of the sender's.
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


class Sent(BaseModel):
    """What a client sends."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class IntentSent(Sent):
    """An intent to accept. Exactly one of `payload` and `body`."""

    target: Target
    payload: AnyJson = None
    body: Annotated[
        str | None,
        Field(description="Opaque bytes in base64, in the place of a payload."),
    ] = None
    content_type: Annotated[Name | None, Field(description="Goes with `body`.")] = None
    idempotency_key: Annotated[
        Name | None,
        Field(description="The same key with the same target and content is the same intent."),
    ] = None
    stream: Name | None = None
    priority: Annotated[int | None, Field(ge=0, le=3, description="0 first to 3 last.")] = None
    due_at: Moment | None = None
    delay_seconds: Seconds | None = None
    deadline_at: Moment | None = None
    deadline_seconds: Seconds | None = None
    metadata: JsonObject = None


class BatchSent(Sent):
    """Up to 1,000 intents."""

    intents: Annotated[list[IntentSent], Field(min_length=1, max_length=1000)]


class NoteSent(Sent):
    """An intervention, and why."""

    note: Note


class ResolutionSent(Sent):
    """What became of an intent that is in doubt, held or awaiting confirmation.

    dispatched: it had its effect. failed: it had none, and shall have none. retry: it had none, and
    is to be tried again.
    """

    resolution: Literal["dispatched", "failed", "retry"]
    note: Note
    reference: Annotated[Name | None, Field(description="What the gateway calls it.")] = None


def _final(status: Status) -> Status:
    if status not in {Status.REJECTED, Status.EXHAUSTED, Status.CANCELLED}:
        raise ValueError("must be rejected, exhausted or cancelled")
    return status


class RedriveSent(Sent):
    """Finished intents of one target, to be tried anew.

    First as a dry run, which finds them and gives a `confirmation`; then with it, unchanged.
    """

    target: Target
    status: Annotated[
        Status,
        Field(strict=False),
        AfterValidator(_final),
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

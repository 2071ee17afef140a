"""Request bodies as pydantic models, for validation and for OpenAPI.

They are strict: text is not converted to a number, and an unknown member is an error.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID  # noqa: TC003 (pydantic reads the annotations)

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from leasehold.domain.intent import PRIORITIES, Resolution, Status
from leasehold.domain.intent_rules import FIRST_MOMENT, LAST_MOMENT, NO_MOMENT, TEN_YEARS_SECONDS

THIRTY_DAYS_SECONDS = 2_592_000
NOTE_LENGTH_MAX = 2000
PAGE_MAX = 200
REDRIVE_MAX = 1000
WAIT_SECONDS_MAX = 30

_MOMENT = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,6})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)
# What the schema can say of that: the years, and no more digits than microseconds have.
_MOMENT_SCHEMA = {
    "type": "string",
    "format": "date-time",
    "pattern": (
        r"^(19[7-9]\d|[2-9]\d{3})-\d{2}-\d{2}[Tt]\d{2}:\d{2}:[0-5]\d(\.\d{1,6})?"
        r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)$"
    ),
}
_NO_CONTROLS = r"^[^\u0000-\u001f\u007f-\u009f]+$"


def parse_moment(value: object) -> datetime:
    """Read a time with its time zone, or raise ValueError."""
    if isinstance(value, datetime):
        return value
    if isinstance(value, str) and _MOMENT.fullmatch(value):
        try:
            found = datetime.fromisoformat(value.upper())
        except ValueError:
            pass
        else:
            if found < FIRST_MOMENT:
                raise ValueError("must not be before 1970")
            if found > LAST_MOMENT:
                raise ValueError("must be before 9999-12-31")
            # PostgreSQL refuses some offsets that RFC 3339 permits.
            return found.astimezone(UTC)
    raise ValueError(NO_MOMENT)


Moment = Annotated[datetime, BeforeValidator(parse_moment), WithJsonSchema(_MOMENT_SCHEMA)]


def _whole(value: object) -> object:
    """Read 1.0 as 1: to JSON Schema both are integers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Priority = Annotated[int, Field(ge=0, le=PRIORITIES - 1), BeforeValidator(_whole)]
RedriveLimit = Annotated[int, Field(ge=1, le=REDRIVE_MAX), BeforeValidator(_whole)]
Name = Annotated[str, Field(min_length=1, max_length=255, pattern=_NO_CONTROLS)]
Target = Annotated[str, Field(min_length=1, max_length=64, pattern=_NO_CONTROLS)]
Seconds = Annotated[float, Field(ge=0, le=TEN_YEARS_SECONDS, allow_inf_nan=False)]
PauseSeconds = Annotated[float, Field(ge=0.001, le=THIRTY_DAYS_SECONDS, allow_inf_nan=False)]
SecondsAhead = Annotated[float, Field(gt=0, le=TEN_YEARS_SECONDS, allow_inf_nan=False)]
# The id of an event, or empty for none; the events parse it.
Cursor = Annotated[
    str,
    Field(max_length=80),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": "^([0-9]{1,18}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-[0-9]{1,9})?$",
        }
    ),
]
Base64 = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "contentEncoding": "base64",
            "maxLength": 1_398_104,
            "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
        }
    ),
]
Note = Annotated[
    str,
    Field(
        min_length=1,
        max_length=NOTE_LENGTH_MAX,
        pattern=r"^[^\u0000]+$",
        description="The reason; the ledger keeps it forever.",
    ),
]
AnyJson = Annotated[Any, WithJsonSchema({})]
ObjectOrNull = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "object", "additionalProperties": True}, {"type": "null"}]}),
]


class RequestBody(BaseModel):
    """The base of all request bodies."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class IntentRequest(RequestBody):
    """An intent to enqueue, with exactly one of `payload` and `body`.

    OpenAPI shows it as two, PayloadIntent and BodyIntent.
    """

    target: Target
    payload: Annotated[AnyJson, Field(description="Any JSON except null, up to 1 MiB of text.")] = (
        None
    )
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
    due_at: Annotated[
        Moment | None,
        Field(description="Within ten years from now; a time that has passed means now."),
    ] = None
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


class StreamRequest(NoteRequest):
    """A stream, and the reason for an operation on it."""

    target: Target
    stream: Name


class PauseRequest(StreamRequest):
    """A stream to pause, for a time or until it is resumed."""

    seconds: Annotated[
        PauseSeconds | None, Field(description="How long; until it is resumed if it is absent.")
    ] = None


class ResumeRequest(StreamRequest):
    """A stream, and which of its pauses to end; without one, that of the token."""

    model_config = ConfigDict(
        json_schema_extra={
            "not": {
                "required": ["paused_by", "paused_for"],
                "properties": {"paused_by": {"type": "string"}, "paused_for": {"type": "string"}},
            }
        }
    )
    paused_by: Annotated[
        Name | None, Field(description="The person or token whose pause ends.")
    ] = None
    paused_for: Annotated[
        UUID | None,
        Field(
            strict=False,
            description="The failed intent; pauses for intents that failed before it end too.",
        ),
    ] = None

    @model_validator(mode="after")
    def _require_one_pause(self) -> Self:
        if self.paused_by is not None and self.paused_for is not None:
            raise ValueError("give `paused_by` or `paused_for`, not both")
        return self


class SkipRequest(StreamRequest):
    """The intent at the head of a stream, as it was seen there."""

    intent_id: Annotated[UUID, Field(strict=False)]


class ResolveRequest(RequestBody):
    """The outcome of an intent that is in doubt, held or confirming.

    dispatched: it had its effect. failed: it had none, and is not tried again. retry: it had none,
    and is tried again.
    """

    resolution: Resolution
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

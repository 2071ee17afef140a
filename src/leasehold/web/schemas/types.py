"""The types of values in requests and responses, with their bounds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

TEN_YEARS_SECONDS = 315_360_000
NOTE_LENGTH_MAX = 2000
PAGE_MAX = 200
REDRIVE_MAX = 1000
WAIT_SECONDS_MAX = 30

_MOMENT = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,6})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)
# Intent ids count from here.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Python cannot read back the year 10000, and in some time zones it begins on this day.
_LAST = datetime(9999, 12, 31, tzinfo=UTC)
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
            if found < _EPOCH:
                raise ValueError("must not be before 1970")
            if found > _LAST:
                raise ValueError("must be before 9999-12-31")
            return found
    raise ValueError("must be a time with its time zone, such as 2030-01-31T12:00:00Z")


Moment = Annotated[
    datetime,
    BeforeValidator(parse_moment),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
Name = Annotated[str, Field(min_length=1, max_length=255, pattern=_NO_CONTROLS)]
Target = Annotated[str, Field(min_length=1, max_length=64, pattern=_NO_CONTROLS)]
Seconds = Annotated[float, Field(ge=0, le=TEN_YEARS_SECONDS, allow_inf_nan=False)]
Note = Annotated[
    str,
    Field(
        min_length=1,
        max_length=NOTE_LENGTH_MAX,
        description="The reason; the ledger keeps it forever.",
    ),
]
AnyJson = Annotated[Any, WithJsonSchema({"description": "Any JSON except null."})]
JsonObject = Annotated[Any, WithJsonSchema({"type": "object"})]

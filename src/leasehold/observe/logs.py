"""Logs: events with fields, as JSON or for a console, on one stream together with everyone else's.

Our loggers are structlog's, and each ends in the standard library's logger of its name: a program
that uses Leasehold as a library decides by its own logging where our lines go, and configure_logs
is for our own commands. Both ways secrets are blanked out before anyone sees the line.

A line about work has the fields intent_id, attempt_no, worker_id and trace_id. Bind what stays the
same once (`log.bind(worker_id=...)`). A lost lease is a signal, not an error: log it as a warning.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

import structlog
from structlog.dev import ConsoleRenderer, plain_traceback
from structlog.processors import JSONRenderer, TimeStamper, format_exc_info
from structlog.stdlib import BoundLogger, ProcessorFormatter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from structlog.typing import EventDict, Processor, WrappedLogger

Format = Literal["json", "console"]

HIDDEN = "***"
# Compared in lower case with "-" for "_". A lease token is a secret too: who knows it could
# complete another's work.
SECRET_NAMES = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "cookie",
        "set-cookie",
        "x-api-key",
        "api-key",
        "apikey",
        "x-auth-token",
        "access-token",
        "refresh-token",
        "fencing-token",
        "lease-token",
        "password",
        "passwd",
        "secret",
        "client-secret",
        "private-key",
    }
)
# Up to the last "@": rather hide a piece of some path than show a password that has an "@".
_URL_PASSWORD = re.compile(r"(://[^\s:/@]*):[^\s\"'<>]+@")
_NAMED_PASSWORD = re.compile(r"(password\s?=\s?)('(?:[^'\\]|\\.)*'|[^\s'\"&]+)", re.IGNORECASE)
# How deep we look into what was logged; nobody logs deeper on purpose.
_DEPTH_MAX = 4
# The attribute of a log record under which our fields travel; as separate attributes they could
# collide with the record's own.
_FIELDS = "leasehold_fields"


def get_logger(name: str) -> BoundLogger:
    """Give the logger of a module: `get_logger(__name__)`."""
    logger = structlog.wrap_logger(
        logging.getLogger(name), processors=_PROCESSORS, wrapper_class=BoundLogger
    )
    return cast("BoundLogger", logger.bind())


def configure_logs(
    format: Format = "console",  # noqa: A002 (the word that users know from the option)
    level: str | int = "INFO",
    stream: TextIO | None = None,
) -> None:
    """Send every line of this process, also those of libraries, to one stream in one form."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        ProcessorFormatter(
            processors=[
                _take_fields,
                ProcessorFormatter.remove_processors_meta,
                format_exc_info,
                redact,
                _renderer(format, colors=handler.stream.isatty()),
            ],
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                TimeStamper(fmt="iso", utc=True),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper() if isinstance(level, str) else level)


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Blank out passwords in database URLs, and the values under names that are known as secret."""
    return cast("EventDict", _without_secrets(event, _DEPTH_MAX))


def _without_secrets(value: object, depth: int) -> object:
    if isinstance(value, str):
        return _without_passwords(value)
    if depth == 0:
        return value
    if isinstance(value, dict):
        fields = cast("Mapping[object, object]", value)
        return {
            name: HIDDEN if _is_secret(name) else _without_secrets(one, depth - 1)
            for name, one in fields.items()
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(one, depth - 1) for one in cast("Sequence[object]", value)]
    return value


def _without_passwords(text: str) -> str:
    return _NAMED_PASSWORD.sub(rf"\1{HIDDEN}", _URL_PASSWORD.sub(rf"\1:{HIDDEN}@", text))


def _is_secret(name: object) -> bool:
    return isinstance(name, str) and name.lower().replace("_", "-") in SECRET_NAMES


def _hand_over(
    _logger: WrappedLogger, _method: str, event: EventDict
) -> tuple[tuple[str], dict[str, Any]]:
    """Give the standard library a line that reads well by itself, with the fields beside it."""
    exc_info = event.pop("exc_info", None)
    fields = dict(event)
    told = str(event.pop("event", ""))
    line = " ".join([told, *(f"{name}={value}" for name, value in event.items())])
    # Arguments would be formatted into the line, and a "%" in it is not ours to interpret.
    return (line,), {"exc_info": exc_info, "extra": {_FIELDS: fields}}


def _take_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Put the fields of one of our lines in the place of its text."""
    record = event["_record"]
    fields = getattr(record, _FIELDS, None)
    return event if fields is None else {**event, **fields}


def _renderer(format: Format, *, colors: bool) -> Processor:  # noqa: A002 (as above)
    if format == "json":
        return JSONRenderer(default=str)
    # Its default would print local variables, and one of them may be a password.
    return ConsoleRenderer(colors=colors, exception_formatter=plain_traceback)


_PROCESSORS: list[Processor] = [
    structlog.stdlib.filter_by_level,
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.PositionalArgumentsFormatter(),
    redact,
    _hand_over,
]

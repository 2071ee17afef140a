"""Logs: events with fields, as JSON or for a console. Every line of ours goes through this module.

A logger of `get_logger` is structlog's and ends in the standard library's logger of the same name.
So a program that uses Leasehold as a library decides by its own logging configuration where our
lines go. `configure_logs` is for our own commands. In both cases secrets are redacted first.

An event is `noun_verb` in the past tense: `lease_lost`. A line about an intent has the fields
intent_id, attempt_no, worker_id and trace_id. A lost lease is a warning, not an error.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

import structlog
from structlog.dev import ConsoleRenderer, plain_traceback
from structlog.processors import JSONRenderer, TimeStamper, format_exc_info
from structlog.stdlib import BoundLogger, ProcessorFormatter

from leasehold.domain.printable import printable
from leasehold.domain.secret_names import is_secret_name
from leasehold.observe.redact import HIDDEN, Redactor, hide_passwords, spellings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from structlog.typing import EventDict, Processor, WrappedLogger

Format = Literal["json", "console"]

# Fields that hold names of targets, leases, streams and instances, which every reader may see. A
# name stays readable even if it equals a secret.
NAME_FIELDS = frozenset(
    {
        "dead_worker",
        "holder_id",
        "instance_id",
        "lease_name",
        "not_executed",
        "returned_worker",
        "stream",
        "target",
        "targets",
        "worker_id",
    }
)
# How many levels of nested values are searched for secrets.
_DEPTH_MAX = 4
_KNOWN = Redactor()
_KEPT_FIELDS = ("level", "logger", "timestamp", "exc_info")
_EVENT_NAME = re.compile(r"[a-z_]+")
# The attribute of a log record that carries our fields. Separate attributes could collide with
# the record's own.
_FIELDS = "leasehold_fields"
# How long a BufferedLog collects lines.
_FLUSH_SECONDS = 0.05


def get_logger(name: str) -> BoundLogger:
    """Return the logger of a module: `get_logger(__name__)`."""
    logger = structlog.wrap_logger(
        logging.getLogger(name), processors=_PROCESSORS, wrapper_class=BoundLogger
    )
    return cast("BoundLogger", logger.bind())


def configure_logs(
    format: Format = "console",  # noqa: A002 (the name of the command-line option)
    level: str | int = "INFO",
    stream: TextIO | None = None,
) -> None:
    """Send every line of this process, also those of libraries, to one stream in one format.

    That includes what Python itself would print: warnings, and errors that nobody caught.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        ProcessorFormatter(
            processors=[
                format_exc_info,
                _complete_line,
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
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_uncaught
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_uncaught_in_thread


class BufferedLog:
    """A fast log for one line per request, in the same format as all other lines.

    It bypasses the standard library and writes the lines of 50 ms together: about 11 microseconds
    per line instead of 140. It redacts nothing, so its fields must not contain secrets.
    """

    def __init__(
        self,
        format: Format = "json",  # noqa: A002 (as above)
        level: str = "info",
        stream: TextIO | None = None,
    ) -> None:
        self._is_enabled = logging.getLevelNamesMapping()[level.upper()] <= logging.INFO
        self._render = _renderer(format, colors=False)
        self._stream = stream or sys.stderr
        self._lines: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        """Log one line."""
        if not self._is_enabled:
            return
        if not self._lines:
            asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.flush)
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")  # as TimeStamper writes it
        line = {"timestamp": now, "level": "info", "event": event, **fields}
        self._lines.append(str(self._render(None, "info", line)))

    def flush(self) -> None:
        """Write the collected lines now."""
        lines, self._lines = self._lines, []
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Hide known secrets, passwords in URLs, and values under names that are known to be secret.

    A known secret is not hidden in a field that holds a name (`NAME_FIELDS`).
    """
    # A password may be a word that occurs in our own names.
    kept = {name: event[name] for name in _KEPT_FIELDS if name in event}
    if _EVENT_NAME.fullmatch(str(event.get("event"))):
        kept["event"] = event["event"]
    return {**cast("EventDict", _without_secrets(event, _DEPTH_MAX, _hide)), **kept}


def hide_in_logs(secrets: Iterable[str]) -> None:
    """Hide these secrets in every line of this process."""
    _KNOWN.add(spellings(secrets))


def _without_secrets(value: object, depth: int, hide: Callable[[str], str]) -> object:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str) or depth == 0:
        return hide(str(value))
    if isinstance(value, dict):
        fields = cast("Mapping[object, object]", value)
        return {
            name: HIDDEN
            if _is_secret(name)
            else _without_secrets(one, depth - 1, hide_passwords if name in NAME_FIELDS else hide)
            for name, one in fields.items()
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(one, depth - 1, hide) for one in cast("Sequence[object]", value)]
    return hide(str(value))


def _hide(text: str) -> str:
    return hide_passwords(_KNOWN.hide(text))


def _is_secret(name: object) -> bool:
    return isinstance(name, str) and is_secret_name(name)


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if isinstance(error, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        _LOG.critical("error_uncaught", exc_info=error)


def _log_uncaught_in_thread(thrown: threading.ExceptHookArgs) -> None:
    if not isinstance(thrown.exc_value, SystemExit):
        thread = thrown.thread.name if thrown.thread else None
        _LOG.error("error_uncaught", thread=thread, exc_info=thrown.exc_value)


def _log_unraisable(thrown: sys.UnraisableHookArgs) -> None:
    where = thrown.err_msg or "Exception ignored in"
    _LOG.error("error_ignored", where=f"{where}: {thrown.object!r}", exc_info=thrown.exc_value)


def _to_standard_library(
    _logger: WrappedLogger, _method: str, event: EventDict
) -> tuple[tuple[str], dict[str, Any]]:
    """Pass a line on as readable text, with its fields in an attribute of the record."""
    exc_info = event.pop("exc_info", None)
    fields = dict(event)
    name = str(event.pop("event", ""))
    # A traceback goes below its line.
    exception = event.pop("exception", None)
    line = printable(" ".join([name, *(f"{field}={value}" for field, value in event.items())]))
    line = f"{line}\n{exception}" if exception else line
    # Without arguments the standard library leaves a "%" in the line alone.
    return (line,), {"exc_info": exc_info, "extra": {_FIELDS: fields}}


def _complete_line(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Replace the text of one of our lines by its fields; redact what is not redacted yet."""
    fields = getattr(event["_record"], _FIELDS, None)
    event = ProcessorFormatter.remove_processors_meta(logger, method, event)
    if fields is None:
        return redact(logger, method, event)
    if "exception" in event:
        event["exception"] = _hide(event["exception"])
    return {**event, **fields}


def _renderer(format: Format, *, colors: bool) -> Processor:  # noqa: A002 (as above)
    if format == "json":
        return JSONRenderer(default=str)
    # The default formatter prints local variables, which may contain a password.
    console = ConsoleRenderer(colors=colors, exception_formatter=plain_traceback)

    def render(logger: WrappedLogger, method: str, event: EventDict) -> str:
        shown = {name: _shown(value) for name, value in event.items()}
        return console(logger, method, shown)

    return render


def _shown(value: object) -> object:
    """Return text as a terminal may show it; a traceback keeps its lines."""
    return printable(value, keep="\n\t") if isinstance(value, str) else value


_PROCESSORS: list[Processor] = [
    structlog.stdlib.filter_by_level,
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.PositionalArgumentsFormatter(),
    redact,
    _to_standard_library,
]

_LOG = get_logger(__name__)

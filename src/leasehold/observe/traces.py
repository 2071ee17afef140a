"""Traces: the W3C trace context of an intent, from its enqueuer to the gateway's request.

An intent carries the `traceparent` of its enqueuer. Each attempt is a span of that trace; its ids
are in the logs and go out with the call. If OpenTelemetry is installed (the extra `otel`) and the
program has configured it, spans are recorded there. Otherwise only the ids are generated.
"""

from __future__ import annotations

import random
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    Span: TypeAlias = "TraceContext | UnrecordedSpan"

_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace_id>[0-9a-f]{32})-(?P<span_id>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_SAMPLED = 0x01
# An id of zeros means "no id", so the last bit of each is set.
_NOT_ZERO = 1 << 64 | 1
_RECHECK_SECONDS = 1.0


class TraceContext(NamedTuple):
    """One span of one trace, as sent between processes."""

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @property
    def traceparent(self) -> str:
        """Format as the header `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"

    def child(self) -> TraceContext:
        """Start a span of the same trace."""
        return TraceContext(self.trace_id, f"{random.getrandbits(64) | 1:016x}", self.is_sampled)


class UnrecordedSpan:
    """A span that is recorded nowhere.

    Its ids are generated on first use, because many successful calls never need them.
    """

    __slots__ = ("_generated", "_parent")

    def __init__(self, parent: TraceContext | None) -> None:
        self._parent = parent
        self._generated: TraceContext | None = None

    @property
    def trace_id(self) -> str:
        """The id of the trace."""
        return self._context().trace_id

    @property
    def traceparent(self) -> str:
        """Format as the header `traceparent`."""
        return self._context().traceparent

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _context(self) -> TraceContext:
        if self._generated is None:
            self._generated = self._parent.child() if self._parent else new_trace()
        return self._generated


def new_trace() -> TraceContext:
    """Start a trace. Its ids are not secret; they only have to be unique."""
    ids = f"{random.getrandbits(192) | _NOT_ZERO:048x}"
    return TraceContext(ids[:32], ids[32:])


def parse_traceparent(text: str | None) -> TraceContext | None:
    """Parse the header; None if it is missing or malformed."""
    found = _TRACEPARENT.fullmatch(text.strip()) if text else None
    if found is None:
        return None
    version, trace_id, span_id = found["version"], found["trace_id"], found["span_id"]
    # Version 00 has exactly four fields, later versions may have more, and ff is invalid.
    if version == "ff" or (version == "00" and found["more"]):
        return None
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, bool(int(found["flags"], 16) & _SAMPLED))


def trace_of(text: str | None) -> TraceContext:
    """Continue the trace of a header, or start a new one."""
    return parse_traceparent(text) or new_trace()


def span(
    name: str,
    parent: TraceContext | None,
    attributes: Mapping[str, str | int | float | bool] | None = None,
) -> AbstractContextManager[Span]:
    """Open a span in the parent's trace, or in a new trace. Yields the context to send along."""
    if _is_configured():
        return _recorded_span(_OPENTELEMETRY, name, parent or new_trace(), attributes)
    return UnrecordedSpan(parent)


@contextmanager
def _recorded_span(
    trace: Any,  # noqa: ANN401 (an optional module)
    name: str,
    parent: TraceContext,
    attributes: Mapping[str, str | int | float | bool] | None,
) -> Generator[TraceContext]:
    remote = trace.SpanContext(
        trace_id=int(parent.trace_id, 16),
        span_id=int(parent.span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(_SAMPLED if parent.is_sampled else 0),
    )
    context = trace.set_span_in_context(trace.NonRecordingSpan(remote))
    tracer = trace.get_tracer("leasehold")
    with tracer.start_as_current_span(name, context=context, attributes=attributes) as current:
        made = current.get_span_context()
        # Without a configured SDK the span is the parent itself, without a new id.
        is_new = made.is_valid and made.span_id != remote.span_id
        yield (
            TraceContext(f"{made.trace_id:032x}", f"{made.span_id:016x}", made.trace_flags.sampled)
            if is_new
            else parent.child()
        )


def _find_opentelemetry() -> Any:  # noqa: ANN401 (an optional module)
    try:
        return import_module("opentelemetry.trace")
    except ImportError:
        return None


def _is_configured() -> bool:
    """Whether the program has configured OpenTelemetry.

    It may do so late, so a "no" is checked again, but not for every span: the check reads the
    environment.
    """
    if _OPENTELEMETRY is None or time.monotonic() < _UNCONFIGURED.until:
        return False
    provider = _OPENTELEMETRY.get_tracer_provider()
    if isinstance(provider, _OPENTELEMETRY.ProxyTracerProvider):
        _UNCONFIGURED.until = time.monotonic() + _RECHECK_SECONDS
        return False
    return True


@dataclass(slots=True)
class _Unconfigured:
    until: float = 0.0


_UNCONFIGURED = _Unconfigured()


_OPENTELEMETRY = _find_opentelemetry()

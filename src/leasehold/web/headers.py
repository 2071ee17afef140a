"""The few headers that we act by, found in one walk over all of them."""

from __future__ import annotations

import re
from secrets import token_hex
from typing import TYPE_CHECKING

from leasehold.observe.traces import parse_traceparent
from leasehold.web.problems import Fault, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

ENCODINGS = ("", "identity")
_KEY_LENGTH_MAX = 255
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_JSON = re.compile(r"application/json[ \t]*(;[ \t]*charset=\"?utf-8\"?[ \t]*)?", re.IGNORECASE)
_PRINTABLE = re.compile(r"[\x20-\x7e]+")
_BAD_KEY = Fault(
    "Idempotency-Key",
    "must be 1 to 255 printable ASCII characters; any other goes into the body",
)


class Headers:
    """The headers of one request, by lower-case names; a name that comes twice is told apart."""

    __slots__ = ("_found", "_twice")

    def __init__(self, given: Iterable[tuple[bytes, bytes]]) -> None:
        self._found: dict[bytes, bytes] = {}
        self._twice: set[bytes] = set()
        for name, value in given:
            if name in self._found:
                self._twice.add(name)
            else:
                self._found[name] = value

    def one(self, name: bytes) -> bytes | None:
        """Give the value of a header that must not come twice."""
        if self._twice and name in self._twice:
            raise Problem("bad_request", f"the header {name.decode()} came more than once")
        return self._found.get(name)

    def first(self, name: bytes) -> bytes | None:
        """Give the first value of a header."""
        return self._found.get(name)


def request_id(headers: Headers) -> str:
    """Take over the id that the client or the proxy gave, if it is a sane one, or make one."""
    given = headers.first(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode()
    return token_hex(8)


def idempotency_key(headers: Headers, faults: list[Fault]) -> str | None:
    """Read the key of the header, as it stands; what is wrong with it is added to the faults."""
    given = headers.one(b"idempotency-key")
    if given is None:
        return None
    text = given.decode("latin-1")
    if len(text) > _KEY_LENGTH_MAX or not _PRINTABLE.fullmatch(text):
        faults.append(_BAD_KEY)
        return None
    return text


def trace_context(headers: Headers) -> str | None:
    """Give the trace that the client's request is part of."""
    given = headers.first(b"traceparent")
    if given is None:
        return None
    context = parse_traceparent(given.decode("latin-1"))
    return context.traceparent if context else None


def require_json(headers: Headers) -> None:
    """Refuse a body that is not plain JSON in UTF-8."""
    kind = headers.one(b"content-type")
    if kind is None or (
        kind != b"application/json" and not _JSON.fullmatch(kind.decode("latin-1"))
    ):
        raise Problem("unsupported_media_type", "send application/json, in UTF-8")
    encoding = headers.first(b"content-encoding")
    if encoding is not None and encoding.decode("latin-1").strip().lower() not in ENCODINGS:
        raise Problem("unsupported_media_type", "send the body as it is: no content-encoding")

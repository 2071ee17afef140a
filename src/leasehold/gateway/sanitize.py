"""Cleans and bounds text from a gateway before it is stored on the ledger.

Nothing that a gateway answers may make our write fail.
"""

from __future__ import annotations

import re

REFERENCE_MAX = 255
CODE_MAX = 64
DETAIL_MAX = 500

# PostgreSQL stores neither NUL nor lone surrogates. Control characters could drive a terminal.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


def sanitize(text: str, length_max: int) -> str | None:
    """Return the text as one printable line of at most `length_max`; None if nothing is left."""
    return _UNPRINTABLE.sub(" ", text[: length_max * 4]).strip()[:length_max] or None


def sanitize_reference(value: object) -> str | None:
    """Return a gateway's reference, if the value is one: a text or a whole number.

    One that is too long is dropped: cut short it would name something else.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value)
    return sanitize(text, REFERENCE_MAX) if len(text) <= REFERENCE_MAX else None


def sanitize_body(body: bytes) -> str | None:
    """Return the beginning of a response body, as the detail of an outcome."""
    return sanitize(body[: DETAIL_MAX * 4].decode("utf-8", "replace"), DETAIL_MAX)


def describe_error(error: Exception) -> str | None:
    """Return an exception's type and message, as the detail of an outcome."""
    return sanitize(f"{type(error).__name__}: {error}".removesuffix(": "), DETAIL_MAX)

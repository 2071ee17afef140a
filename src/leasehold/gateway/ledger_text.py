"""What a gateway said, cut to what the ledger takes: no answer of theirs may fail our write."""

from __future__ import annotations

import re

REFERENCE_MAX = 255
CODE_MAX = 64
DETAIL_MAX = 500

# PostgreSQL stores no NUL and no lone surrogates; a terminal should not be driven by a gateway.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


def clean(text: str, length_max: int) -> str | None:
    """Make one printable line of at most this length; None where nothing is left."""
    return _UNPRINTABLE.sub(" ", text[: length_max * 4]).strip()[:length_max] or None


def reference_of(value: object) -> str | None:
    """Read a reference that a gateway gave: a text or a whole number.

    One that is too long for the ledger is no reference at all: cut short it would name another.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value)
    return clean(text, REFERENCE_MAX) if len(text) <= REFERENCE_MAX else None


def detail_of(body: bytes) -> str | None:
    """Quote the beginning of a body for people."""
    return clean(body[: DETAIL_MAX * 4].decode("utf-8", "replace"), DETAIL_MAX)

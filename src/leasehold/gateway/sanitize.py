"""Cleans, bounds and redacts text from a gateway before it is stored on the ledger or logged.

Nothing that a gateway answers may make our write fail, and no secret that we know may be stored:
the ledger is permanent.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from leasehold.domain.outcome import Deferred, Submitted
from leasehold.observe.redact import Redactor, hide_passwords, spellings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from leasehold.domain.outcome import LookupAnswer, Outcome
    from leasehold.gateway.protocol import Submission

    Answer = TypeVar("Answer", bound="Outcome | LookupAnswer")

REFERENCE_MAX = 255
CODE_MAX = 64
DETAIL_MAX = 500
TRACEBACK_MAX = 8000

# PostgreSQL stores neither NUL nor lone surrogates. Control characters could drive a terminal.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_FRAMES_SHOWN = -20
_SEARCHED_MAX = 100_000
# An error about a larger intent is logged without its message.
_CONTENT_BYTES_MAX = 16_384
# Shorter values of an intent are words that occur in any message.
_VALUE_LENGTH_MIN = 6
_LENGTHS = {"reason": CODE_MAX, "code": CODE_MAX, "detail": DETAIL_MAX}


class Sanitizer:
    """Sanitizes what comes from one gateway, whose secrets it knows."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._redactor = Redactor(spellings(secrets))

    def line(self, text: str, length_max: int) -> str | None:
        """Return the text as one printable line of at most `length_max`; None if nothing is left.

        Secrets are hidden before the text is cut, because a cut would leave a part of one.
        """
        needed = length_max + self._redactor.margin
        size = 4 * needed
        while True:
            hidden = self._hide(_UNPRINTABLE.sub(" ", text[:size])).strip()
            if size >= len(text) or len(hidden) >= needed:
                return hidden[:length_max].rstrip() or None
            size *= 4

    def reference(self, value: object) -> str | None:
        """Return a gateway's reference, if the value is one: a text or a whole number.

        One that is too long or contains a secret is dropped: changed it would name something else.
        """
        if isinstance(value, bool) or not isinstance(value, str | int):
            return None
        text = str(value)
        if len(text) > REFERENCE_MAX or self._redactor.hide(text) != text:
            return None
        return _UNPRINTABLE.sub(" ", text).strip() or None

    def body(self, body: bytes) -> str | None:
        """Return the beginning of a response body, as the detail of an outcome."""
        return self.line(body.decode("utf-8", "replace"), DETAIL_MAX)

    def error(self, error: BaseException) -> str | None:
        """Return an exception's type and message, as the detail of an outcome."""
        return self.line(
            f"{type(error).__name__}: {_message(error)}".removesuffix(": "), DETAIL_MAX
        )

    def answer(self, answer: Answer, submission: Submission) -> Answer:
        """Return the answer of a user's function with its texts sanitized."""
        given = {name: getattr(answer, name, None) for name in (*_LENGTHS, "reference")}
        changes: dict[str, Any] = {
            name: self.line(str(given[name]), length_max)
            for name, length_max in _LENGTHS.items()
            if given[name] is not None
        }
        if given["reference"] is not None:
            reference = self.reference(given["reference"])
            if reference is None and isinstance(answer, Submitted):
                reference = str(submission.submission_key)
            changes["reference"] = reference
        if isinstance(answer, Deferred) and not changes.get("reason"):
            changes["reason"] = "deferred"
        return replace(answer, **changes) if changes else answer

    def error_for_log(self, error: BaseException, submission: Submission) -> str:
        """Return an exception's type and message, without secrets and the intent's content."""
        content = _content(submission)
        if content is None:
            return type(error).__name__
        return Redactor(content).hide(self.error(error) or "")

    def traceback_for_log(self, error: BaseException, submission: Submission) -> str:
        """Return a traceback without local variables, secrets and the intent's content.

        One that would take long to search has no messages.
        """
        content = _content(submission)
        shown = "".join(traceback.format_exception(error, limit=_FRAMES_SHOWN))
        if content is None or len(shown) > _SEARCHED_MAX:
            return "".join(traceback.format_tb(error.__traceback__, limit=_FRAMES_SHOWN))
        # The end has the message of the error itself.
        return Redactor(content).hide(self._hide(shown))[-TRACEBACK_MAX:]

    def _hide(self, text: str) -> str:
        return hide_passwords(self._redactor.hide(text))


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (an error of a user's function, which may fail even here)
        return ""


def _content(submission: Submission) -> list[str] | None:
    """Return the values that an intent consists of; None if it is too large for that."""
    documents = [one for one in (submission.payload, submission.metadata) if one is not None]
    body = submission.body or b""
    if sum(len(one.raw) for one in documents) + len(body) > _CONTENT_BYTES_MAX:
        return None
    try:
        values = [value for one in documents for value in _values(one.value())]
    except RecursionError:
        return None
    lines = body.decode("utf-8", "replace").splitlines()
    return [one for one in (*values, *lines) if len(one) >= _VALUE_LENGTH_MIN]


def _values(document: object) -> Iterator[str]:
    if isinstance(document, dict):
        for value in cast("dict[str, object]", document).values():
            yield from _values(value)
    elif isinstance(document, list):
        for value in cast("list[object]", document):
            yield from _values(value)
    elif isinstance(document, str):
        yield document
    elif document is not None and not isinstance(document, bool):
        yield str(document)

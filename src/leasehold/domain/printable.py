"""Text that a terminal shows as it is: nothing in it moves the cursor or reorders the line."""

from __future__ import annotations

from unicodedata import category

# Control and format characters (also those that change the direction of text), separators of
# lines and paragraphs, lone surrogates.
_ESCAPED = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})


def printable(text: str, keep: str = "") -> str:
    r"""Write characters that a terminal could act on as escapes, such as \u202e, except `keep`."""
    if text.isprintable():
        return text
    return "".join(
        _escape(one) if one not in keep and category(one) in _ESCAPED else one for one in text
    )


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"

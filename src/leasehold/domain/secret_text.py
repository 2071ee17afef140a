"""Recognises a secret that was written where a name belongs.

Names are shown in errors and published in contracts, so a secret among them must be noticed first.
"""

from __future__ import annotations

import re

# Random text has digits between its letters; a name has them at the end of a word (TOKEN_2).
_RANDOM_WORD = re.compile(r"(?=[A-Za-z0-9]{16})[A-Za-z]*[0-9]+[A-Za-z]")
_LONG_WORD = re.compile(r"[A-Za-z0-9]{24}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")


def is_variable_name(text: str) -> bool:
    """Return whether this names an environment variable, in capitals as is usual.

    Tokens and signing secrets have lower case letters, or letters and digits mixed.
    """
    return _VARIABLE.fullmatch(text) is not None and not _has_random_word(text)


def may_be_secret(text: str) -> bool:
    """Return whether a name is better not shown: it has a long or a random word."""
    return _LONG_WORD.search(text) is not None or _has_random_word(text)


def _has_random_word(text: str) -> bool:
    return any(_RANDOM_WORD.match(word) for word in re.split(r"[^A-Za-z0-9]+", text))

"""Which names have secret values, and which texts may be a secret in the place of a name."""

from __future__ import annotations

import re

# In lower case, with "-" for "_". A lease token is a secret too: whoever knows it could complete
# another worker's item.
SECRET_NAMES = frozenset(
    {
        "access-key",
        "api-key",
        "apikey",
        "auth-key",
        "authorization",
        "cookie",
        "credentials",
        "passwd",
        "password",
        "private-key",
        "secret",
        "secret-key",
        "set-cookie",
        "signing-key",
        "subscription-key",
        "token",
    }
)
# Random text has digits between its letters; a name has them at the end of a word (TOKEN_2).
_RANDOM_WORD = re.compile(r"(?=[A-Za-z0-9]{16})[A-Za-z]*[0-9]+[A-Za-z]")
_LONG_WORD = re.compile(r"[A-Za-z0-9]{24}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")
_ENDINGS = tuple(f"-{name}" for name in SECRET_NAMES)


def is_secret_name(name: str) -> bool:
    """Return whether a name is one of these or ends in one: X-Auth-Token, client_secret."""
    spelled = name.lower().replace("_", "-")
    return spelled in SECRET_NAMES or spelled.endswith(_ENDINGS)


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

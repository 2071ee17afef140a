"""Hides secrets that we know in text that a gateway made, however the gateway spells them.

A gateway may echo our request: as it is, escaped for JSON, HTML or a URL, or in base64 or
hexadecimal. What it makes of a secret otherwise (a hash, a few characters of it) is not recognised.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from leasehold.observe.logs import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# Hiding less would hide letters everywhere.
SECRET_LENGTH_MIN = 4
_PART_LENGTH_MIN = 6
# How much longer a character can be when it is escaped: \\\\u0022 in JSON in JSON.
_ESCAPED_LENGTH = 10
_ESCAPE_LEVELS = 4
_ESCAPE = re.compile(
    r"\\+(?:u00(?P<unicode>[0-9a-f]{2})|x(?P<byte>[0-9a-f]{2})|(?P<sign>[^\w\s]))"
    r"|%(?P<percent>[0-9a-f]{2})"
    r"|&(?:#(?P<decimal>\d{1,3})|#x(?P<hexadecimal>[0-9a-f]{1,2})|(?P<name>amp|lt|gt|quot|apos));",
    re.IGNORECASE,
)
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_SCHEME = re.compile(r"[A-Za-z]{2,20}")
_PARAMETER = re.compile(r"=\"?([^\s\",;]+)")
_URL_PASSWORD = re.compile(r"://[^\s:/@]*:([^\s\"'<>]+)@")
_SECRET_VARIABLE = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTHORIZATION|(?:^|_)(?:API)?(?:KEY|AUTH)$"
)


class Redactor:
    """Replaces known texts by ***, in any case, also where the text around them is escaped."""

    def __init__(self, texts: Iterable[str]) -> None:
        known = {one.lower() for one in texts if len(one) >= SECRET_LENGTH_MIN}
        known |= {_unescaped(one).lower() for one in known}
        # The longest first: it may contain others.
        self._known = sorted(known, key=len, reverse=True)
        # If text is cut off, a part of a secret can be in this many characters before the cut.
        self.margin = _ESCAPED_LENGTH * max(map(len, known), default=0)

    def hide(self, text: str) -> str:
        """Return the text without secrets; unescaped if an escaped secret was in it."""
        if not self._known:
            return text
        text = self._replaced(text)
        plain = _unescaped(text)
        hidden = plain if plain == text else self._replaced(plain)
        return text if hidden == plain else hidden

    def _replaced(self, text: str) -> str:
        lower = text.lower()
        found = [one for one in self._known if one in lower]
        if not found:
            return text
        return re.sub("|".join(map(re.escape, found)), HIDDEN, text, flags=re.IGNORECASE)


def spellings(secrets: Iterable[str]) -> Iterator[str]:
    """Return each secret, its parts, and how they look in other encodings."""
    for secret in secrets:
        for part in _parts(secret.strip()):
            encoded = part.encode("utf-8", "replace")
            yield part
            yield encoded.decode("latin-1")
            yield encoded.hex()
            yield from _base64_spellings(encoded)


def environment_secrets(environment: Mapping[str, str]) -> Iterator[str]:
    """Return what is secret in an environment, by the names of its variables and in its URLs."""
    for name, value in environment.items():
        is_path = value.startswith("/")
        if _SECRET_VARIABLE.search(name.upper()) and not is_path and len(value) >= _PART_LENGTH_MIN:
            yield value
        for password in _URL_PASSWORD.findall(value):
            yield password
            yield unquote(password)


def _parts(secret: str) -> Iterator[str]:
    """Return the secret, and what it consists of: a scheme and credentials, or several secrets."""
    yield secret
    words = secret.split()
    if len(words) > 1 and _SCHEME.fullmatch(words[0]):
        yield " ".join(words[1:])
        words = words[1:]
    for word in words:
        for part in (word, word.removeprefix("whsec_"), *_PARAMETER.findall(word)):
            if len(part) >= _PART_LENGTH_MIN:
                yield part
        yield from _login(word)


def _login(word: str) -> Iterator[str]:
    """Return user:password and the password of the credentials of scheme Basic."""
    try:
        login = base64.b64decode(word, validate=True).decode()
    except (binascii.Error, ValueError):
        return
    if login.isprintable() and ":" in login:
        yield login
        yield login.partition(":")[2]


def _base64_spellings(secret: bytes) -> Iterator[str]:
    """Return the characters that the secret has in base64, wherever it begins in a longer text."""
    for before, first in ((0, 0), (1, 2), (2, 3)):
        encoded = base64.b64encode(bytes(before) + secret).decode()
        spelling = encoded[first : (before + len(secret)) * 8 // 6]
        yield spelling
        yield spelling.replace("+", "-").replace("/", "_")


def _unescaped(text: str) -> str:
    for _ in range(_ESCAPE_LEVELS):
        plain = _ESCAPE.sub(_character, text)
        if plain == text:
            break
        text = plain
    return text


def _character(escape: re.Match[str]) -> str:
    group, value = str(escape.lastgroup), escape[str(escape.lastgroup)]
    match group:
        case "sign":
            return value
        case "name":
            return _ENTITIES[value.lower()]
        case "decimal":
            return chr(int(value))
        case _:
            return chr(int(value, 16))

"""Hides secrets in text before it is logged or stored on the ledger.

Secrets that we know are hidden however the text spells them: a gateway may echo our request as it
is, escaped for JSON, HTML or a URL, or in base64 or hexadecimal. A hash or a few characters of a
secret are not recognised. Other secrets are recognised by the text around them.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from leasehold.domain.api_token import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

HIDDEN = "***"

# Up to the last "@", because a password may contain one. This may hide a part of some path. What
# looks like a port is not a password.
_URL_PASSWORD = re.compile(r"(://[^\s:/@]*):(?!\d{1,5}[/?#])([^\s\"'<>]+)@")
_NAMED_PASSWORD = re.compile(r"(password\s?=\s?)('(?:[^'\\]|\\.)*'|[^\s'\"&]+)", re.IGNORECASE)
# With a digit: "Basic authentication" is none.
_CREDENTIALS = re.compile(r"\b(Bearer|Basic) (?=\S*\d)[\w.~+/=-]{8,}", re.IGNORECASE)

_API_TOKEN = re.compile(rf"{PREFIX}[\w-]{{20,}}")

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
_SCHEMES = {"apikey", "basic", "bearer", "digest", "key", "oauth", "signature", "token"}
_SIGNING_PREFIX = "whsec_"
_PARAMETER = re.compile(r"=\"?([^\s\",;]+)")
_SECRET_VARIABLE = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTHORIZATION|(?:^|_)(?:API)?(?:KEY|AUTH)$"
)


class Redactor:
    """Replaces known texts by ***, in any case, also where the text around them is escaped."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._known: list[str] = []
        self.add(texts)

    def add(self, texts: Iterable[str]) -> None:
        """Hide these texts too."""
        added = {one.lower() for one in texts if len(one) >= SECRET_LENGTH_MIN}
        added |= {_unescaped(one).lower() for one in added}
        # The longest first: it may contain others.
        self._known = sorted(added.union(self._known), key=len, reverse=True)

    @property
    def margin(self) -> int:
        """If text is cut off, how many characters before the cut can be a part of a secret."""
        return _ESCAPED_LENGTH * len(self._known[0]) if self._known else 0

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


def hide_passwords(text: str) -> str:
    """Hide what is a password or a credential by the text around it."""
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\1:{HIDDEN}@", text)
    if "=" in text:
        text = _NAMED_PASSWORD.sub(rf"\1{HIDDEN}", text)
    if " " in text:
        text = _CREDENTIALS.sub(rf"\1 {HIDDEN}", text)
    return hide_api_tokens(text)


def hide_api_tokens(text: str) -> str:
    """Hide tokens of our own HTTP API, which have a prefix."""
    return _API_TOKEN.sub(HIDDEN, text) if PREFIX in text else text


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
        if _SECRET_VARIABLE.search(name.upper()) and not is_path and _is_long(value):
            yield value
        for _, password in _URL_PASSWORD.findall(value):
            yield password
            yield unquote(password)


def _parts(secret: str) -> Iterator[str]:
    """Return the secret, and what it consists of: credentials after a scheme, or several secrets.

    The words of a passphrase are not secrets: they would be hidden wherever they occur.
    """
    yield secret
    scheme, *words = secret.split() or [""]
    if words and scheme.lower() in _SCHEMES:
        yield " ".join(words)
        for word in words:
            yield from (one for one in (word, *_PARAMETER.findall(word)) if _is_long(one))
            yield from _login(word)
    for word in (scheme, *words):
        if word.startswith(_SIGNING_PREFIX):
            yield from (word, word.removeprefix(_SIGNING_PREFIX))


def _is_long(part: str) -> bool:
    return len(part) >= _PART_LENGTH_MIN


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

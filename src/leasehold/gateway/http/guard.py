"""The address guard: keeps calls from private, local and metadata addresses (SSRF).

A URL is parsed once, by the parser that also connects, and refused if two parsers could read it
differently. A name is resolved once, and only the checked addresses are connected to, so a name
server that changes its answer in between gains nothing. Redirects are never followed, so there is
no second URL.
"""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, NoReturn

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from leasehold.domain.address import AddressKind, classify_address
from leasehold.gateway.errors import ForbiddenAddress, GatewayMisconfigured

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_KEY = "{key}"
_SAMPLE_KEY = "00000000-0000-0000-0000-000000000000"
_ODD_CHARACTER = re.compile(r"[^\x21-\x7e]|[\\<>\"^`{|}]")
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
    r"(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*\Z"
)
# No host name ends in a numeric label, so some parser reads such a host as an address.
_NUMBER_LABEL = re.compile(r"(?:\d+|0x[0-9a-f]*)\Z")
_KINDS_ALLOWED_AS_PRIVATE = frozenset({AddressKind.PRIVATE, AddressKind.LOOPBACK})


class Guard:
    """Decides where the calls of one contract may go.

    `allow_private` permits private and loopback addresses for all hosts; `allow_hosts` permits them
    for the hosts that it names (`gateway.internal`) or below a suffix (`*.svc.internal`). Metadata
    services, link-local addresses and the others stay refused. Only a literal address in
    `allow_hosts` (`169.254.7.1`) is not checked at all. The hosts in `never_public` would get
    secrets in clear text, so they must not have a public address.
    """

    def __init__(
        self,
        *,
        allow_hosts: Sequence[str] = (),
        allow_private: bool = False,
        never_public: Collection[str] = (),
    ) -> None:
        self._never_public = frozenset(one.lower() for one in never_public)
        self._hosts = frozenset(one.lower() for one in allow_hosts if not one.startswith("*."))
        self._suffixes = tuple(one[1:].lower() for one in allow_hosts if one.startswith("*."))
        self._allow_private = allow_private

    def checked_url(self, text: str) -> URL:
        """Parse a URL as it will be called. Raises GatewayMisconfigured for an unclear one."""
        authority = _authority(text)
        if _ODD_CHARACTER.search(text):
            _refuse(
                text, "contains a space, a control character or one that must be percent-encoded"
            )
        if "@" in authority:
            _refuse(text, "contains a user or a password: use secret_headers")
        if "%" in authority:
            _refuse(text, "has a percent sign in its host: encoded hosts and zone ids are refused")
        url = _parsed(text)
        if url.scheme not in {"http", "https"}:
            _refuse(text, "must start with http:// or https://")
        if "#" in text:
            _refuse(text, "has a fragment, which is never sent: remove it")
        if url.port == 0:
            _refuse(text, "names port 0")
        host = url.raw_host or ""
        self._check_host(text, host, is_bracketed=authority.startswith("["))
        return url

    def checked_template(self, text: str) -> str:
        """Check a URL with {key} in its path or query; return it unchanged."""
        before, found, _ = text.partition(_KEY)
        if not found or _KEY in _authority(text) or "://" not in before:
            _refuse(text, "must have {key} in its path or query")
        self.checked_url(text.replace(_KEY, _SAMPLE_KEY))
        return text

    def check_address(self, host: str, address: str) -> None:
        """Raise ForbiddenAddress unless calls to `host` may go to `address`."""
        kind = classify_address(ip_address(address))
        if kind is None and host.lower() in self._never_public:
            raise ForbiddenAddress(
                f"a call to {host} would send secret_headers in clear text to {address}, which is"
                " public: use https",
                host=host,
                address=address,
            )
        if host == address and host.lower() in self._hosts:
            return
        if kind is None or (kind in _KINDS_ALLOWED_AS_PRIVATE and self._allows_private(host)):
            return
        raise ForbiddenAddress(
            f"a call to {host} would go to {address}, which is {kind}: {_advice(kind)}",
            host=host,
            address=address,
        )

    def _check_host(self, text: str, host: str, *, is_bracketed: bool) -> None:
        if is_bracketed:
            self.check_address(host, str(IPv6Address(host)))
            return
        if host.endswith("."):
            _refuse(text, "has a host that ends in a dot: remove it")
        if not _NAME.match(host):
            _refuse(text, "has no valid host name or address (write international names as xn--)")
        if _NUMBER_LABEL.match(host.rsplit(".", 1)[-1]):
            self._check_numeric_host(text, host)

    def _check_numeric_host(self, text: str, host: str) -> None:
        try:
            address = IPv4Address(host)
        except ValueError:
            _refuse(text, "has an address in an unusual notation: write four decimal numbers")
        self.check_address(host, str(address))

    def _allows_private(self, host: str) -> bool:
        name = host.lower()
        return self._allow_private or name in self._hosts or name.endswith(self._suffixes)


class GuardedResolver(AbstractResolver):
    """Resolves a name once and returns only addresses that the guard has checked."""

    def __init__(self, guard: Guard, inner: AbstractResolver | None = None) -> None:
        self._guard = guard
        self._inner = inner or ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve a name. Raises ForbiddenAddress if any of its addresses is forbidden.

        One is enough: a name with addresses of both kinds is an attack or a mistake, and which of
        them would be tried is random.
        """
        results = await self._inner.resolve(host, port, family)
        for result in results:
            self._guard.check_address(host, result["host"])
        return results

    async def close(self) -> None:
        """Close the inner resolver."""
        await self._inner.close()


def _authority(text: str) -> str:
    found = _AUTHORITY.match(text)
    return found[1] if found else ""


def _parsed(text: str) -> URL:
    try:
        url = URL(text)
        if _authority(text).startswith("["):
            IPv6Address(url.raw_host or "")
    except ValueError:
        _refuse(text, "cannot be parsed")
    return url


def _refuse(text: str, why: str) -> NoReturn:
    # The part before the @ may be a password.
    shown = re.sub(r"//.*@", "//...@", text, count=1)
    raise GatewayMisconfigured(f"the URL {shown[:200]!r} {why}")


def _advice(kind: AddressKind) -> str:
    if kind in _KINDS_ALLOWED_AS_PRIVATE:
        return "to permit it, add the host to allow_hosts or set allow_private"
    return "to permit it, add the address itself to allow_hosts"

"""The guard against calls to where calls must not go (server-side request forgery).

An URL is read once, by the parser that also connects, and refused when it is spelled so that two
parsers could read it differently. A name is resolved once, and the addresses that were judged are
the ones that are connected to: a name server that changes its mind in between gains nothing.
Redirects are never followed, so there is no second URL.
"""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, NoReturn

import structlog
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from leasehold.gateway.errors import ForbiddenAddress, GatewayMisconfigured
from leasehold.gateway.http.addresses import AddressKind, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = structlog.get_logger(__name__)

_KEY = "{key}"
_SAMPLE_KEY = "00000000-0000-0000-0000-000000000000"
_ODD_CHARACTER = re.compile(r"[^\x21-\x7e]|[\\<>\"^`{|}]")
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
    r"(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*\Z"
)
# The last label decides: a name never ends in a number, so what does is an address to somebody.
_NUMBER_LABEL = re.compile(r"(?:\d+|0x[0-9a-f]*)\Z")
_ADMITTED_AS_PRIVATE = frozenset({AddressKind.PRIVATE, AddressKind.LOOPBACK})


class Guard:
    """Decides for one contract where its calls may go.

    `allow_private` admits private and loopback addresses. `allow_hosts` does so for the hosts that
    it names (`gateway.internal`), or for all below a suffix (`*.svc.internal`). Metadata services,
    link-local addresses and the rest stay refused, whatever a name server says: only an address
    that `allow_hosts` names as such (`169.254.7.1`) is never judged.
    """

    def __init__(self, *, allow_hosts: Sequence[str] = (), allow_private: bool = False) -> None:
        self._hosts = frozenset(one.lower() for one in allow_hosts if not one.startswith("*."))
        self._suffixes = tuple(one[1:].lower() for one in allow_hosts if one.startswith("*."))
        self._allow_private = allow_private

    def checked_url(self, text: str) -> URL:
        """Read an URL as it will be called, or raise GatewayMisconfigured with what is odd."""
        authority = _authority(text)
        if _ODD_CHARACTER.search(text):
            _refuse(text, "has a space, a control character or one that must be percent-encoded")
        if "@" in authority:
            _refuse(text, "has a user or password in it: use secret_headers")
        if "%" in authority:
            _refuse(text, "has a percent sign in its host: no encoded hosts, no zone ids")
        url = _parsed(text)
        if url.scheme not in {"http", "https"}:
            _refuse(text, "must start with http:// or https://")
        if "#" in text:
            _refuse(text, "has a fragment, which is never sent: leave it out")
        if url.port == 0:
            _refuse(text, "names port 0")
        host = url.raw_host or ""
        self._check_host(text, host, is_bracketed=authority.startswith("["))
        return url

    def checked_template(self, text: str) -> str:
        """Check an URL with {key} in its path or query; return it as it is."""
        before, found, _ = text.partition(_KEY)
        if not found or _KEY in _authority(text) or "://" not in before:
            _refuse(text, "must have {key} in its path or query")
        self.checked_url(text.replace(_KEY, _SAMPLE_KEY))
        return text

    def check_address(self, host: str, address: str) -> None:
        """Raise ForbiddenAddress unless a call to `host` may be made to `address`."""
        if host == address and host.lower() in self._hosts:
            return
        kind = judge(ip_address(address))
        if kind is None or (kind in _ADMITTED_AS_PRIVATE and self._admits_private(host)):
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
            _refuse(text, "has a host that ends in a dot: leave it out")
        if not _NAME.match(host):
            _refuse(text, "has no host that is a name or an address (write other scripts as xn--)")
        if _NUMBER_LABEL.match(host.rsplit(".", 1)[-1]):
            self._check_number(text, host)

    def _check_number(self, text: str, host: str) -> None:
        try:
            address = IPv4Address(host)
        except ValueError:
            _refuse(text, "has an address in an odd spelling: write four plain decimal numbers")
        self.check_address(host, str(address))

    def _admits_private(self, host: str) -> bool:
        name = host.lower()
        return self._allow_private or name in self._hosts or name.endswith(self._suffixes)


class GuardedResolver(AbstractResolver):
    """Resolves a name once and hands out only addresses that the guard has judged."""

    def __init__(self, guard: Guard, inner: AbstractResolver | None = None) -> None:
        self._guard = guard
        self._inner = inner or ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve, or raise ForbiddenAddress when any of the addresses is forbidden.

        Any and not each: a name that answers with both kinds is an attack or a mistake, and which
        of its addresses would be tried is a matter of luck.
        """
        results = await self._inner.resolve(host, port, family)
        try:
            for result in results:
                self._guard.check_address(host, result["host"])
        except ForbiddenAddress as error:
            _log.error("gateway.forbidden_address", host=host, address=error.address)
            raise
        return results

    async def close(self) -> None:
        """Close the resolver inside."""
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
        _refuse(text, "cannot be read")
    return url


def _refuse(text: str, why: str) -> NoReturn:
    # What stands before the @ may be a password.
    shown = re.sub(r"//.*@", "//...@", text, count=1)
    raise GatewayMisconfigured(f"the URL {shown[:200]!r} {why}")


def _advice(kind: AddressKind) -> str:
    if kind in _ADMITTED_AS_PRIVATE:
        return "if that is meant, name the host in allow_hosts or set allow_private"
    return "if that is meant, name the address itself in allow_hosts"

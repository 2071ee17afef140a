"""Kind http: submits with a POST, looks up with a GET."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from leasehold.gateway.errors import GatewayMisconfigured
from leasehold.gateway.http.connection_terms import KEY_PLACE, require_address
from leasehold.gateway.http.terms import HttpTerms
from leasehold.gateway.registry import GatewayKind, register

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leasehold.domain.contract import Contract
    from leasehold.gateway.protocol import Gateway
    from leasehold.gateway.registry import Surroundings


def _open(contract: Contract, surroundings: Surroundings) -> Gateway:
    # Imported here: aiohttp is a sixth of an instance's start time, and not every instance
    # calls HTTP.
    from leasehold.gateway.http.gateway import HttpGateway

    return HttpGateway(contract, cast("HttpTerms", contract.gateway), surroundings)


def address_problems(written: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return what every instance would refuse about the URLs of a server, by setting.

    Only what is known without a name server: addresses, and names that always mean this machine.
    """
    from leasehold.gateway.http.guard import Guard

    hosts = written.get("allow_hosts", [])
    listed = cast("list[object]", hosts) if isinstance(hosts, list) else []
    guard = Guard(
        allow_hosts=[one for one in listed if isinstance(one, str)],
        allow_private=written.get("allow_private") is True,
    )
    for setting in ("url", "lookup_url"):
        text = written.get(setting)
        try:
            require_address(text if isinstance(text, str) else "")
        except ValueError:
            continue
        try:
            host = guard.checked_url(str(text).replace(KEY_PLACE, "key")).raw_host or ""
            if host == "localhost" or host.endswith(".localhost"):
                guard.check_address(host, "127.0.0.1")
        except GatewayMisconfigured as error:
            yield setting, str(error)


register(GatewayKind(terms=HttpTerms, open=_open, address_problems=address_problems))

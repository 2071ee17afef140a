"""Opens the gateway that a contract names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never, cast

from leasehold.domain.connection_terms import KEY_PLACE, require_address
from leasehold.domain.contract import HttpTerms, LedgerTerms, PythonTerms
from leasehold.gateway.errors import GatewayMisconfigured
from leasehold.gateway.python import PythonGateway, Threads

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from leasehold.domain.contract import Contract
    from leasehold.gateway.protocol import Gateway


def open_gateway(
    contract: Contract,
    *,
    environment: Mapping[str, str],
    secrets: Collection[str] = (),
    threads: Threads | None = None,
) -> Gateway:
    """Create the gateway of a contract. Connects to nothing yet.

    `environment` holds the secrets that the contract names; `secrets` are others that must not get
    to the ledger; `threads` run plain functions. Raises GatewayMisconfigured, which says what to
    change.
    """
    terms = contract.gateway
    match terms:
        case HttpTerms():
            # Imported here: aiohttp is a sixth of an instance's start time, and not every instance
            # calls HTTP.
            from leasehold.gateway.http.gateway import HttpGateway

            return HttpGateway(contract, terms, environment=environment, secrets=secrets)
        case LedgerTerms():
            from leasehold.gateway.ledger.gateway import LedgerGateway

            return LedgerGateway(contract, terms, environment=environment, secrets=secrets)
        case PythonTerms():
            return PythonGateway(
                contract, terms, environment=environment, secrets=secrets, threads=threads
            )
        case None:
            raise GatewayMisconfigured(
                f"the contract of {contract.target} names no gateway: publish one that does"
            )
        case _:
            assert_never(terms)


def address_problems(given: object) -> Iterator[tuple[str, str]]:
    """Return what every instance would refuse about the URLs of a gateway as it was written.

    Each is the name of the setting and the reason. Only what is known without a name server:
    addresses, and names that always mean this machine. Malformed settings are skipped: the contract
    refuses them.
    """
    from leasehold.gateway.http.guard import Guard

    written = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
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

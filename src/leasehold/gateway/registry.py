"""Opens the gateway that a contract names."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from leasehold.domain.contract import HttpTerms, LedgerTerms, PythonTerms
from leasehold.gateway.errors import GatewayMisconfigured
from leasehold.gateway.python import PythonGateway, Threads

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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

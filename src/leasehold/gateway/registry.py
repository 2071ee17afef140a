"""From a contract to the gateway that performs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from leasehold.domain.contract import HttpTerms, PythonTerms
from leasehold.gateway.errors import GatewayMisconfigured
from leasehold.gateway.python import PythonGateway

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.domain.contract import Contract
    from leasehold.gateway.protocol import Gateway


def open_gateway(contract: Contract, *, environment: Mapping[str, str]) -> Gateway:
    """Make the gateway of a contract, or raise GatewayMisconfigured with what to change.

    `environment` is where the secrets are that the contract names. Nothing is connected yet.
    """
    terms = contract.gateway
    match terms:
        case HttpTerms():
            # A sixth of what an instance waits for when it starts, and not every one calls HTTP.
            from leasehold.gateway.http.gateway import HttpGateway

            return HttpGateway(contract, terms, environment=environment)
        case PythonTerms():
            return PythonGateway(contract, terms)
        case None:
            raise GatewayMisconfigured(
                f"the contract of {contract.target} names no gateway: publish one that does"
            )
        case _:
            assert_never(terms)

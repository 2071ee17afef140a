"""Kind python: a function of the user makes the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from leasehold.gateway.python.gateway import PythonGateway, Threads, function_of, gateway_function
from leasehold.gateway.python.terms import PythonTerms
from leasehold.gateway.registry import GatewayKind, register
from leasehold.observe.redact import environment_secrets

if TYPE_CHECKING:
    from leasehold.domain.contract import Contract
    from leasehold.gateway.protocol import Gateway
    from leasehold.gateway.registry import Surroundings

__all__ = ["PythonGateway", "PythonTerms", "Threads", "function_of", "gateway_function"]


def _open(contract: Contract, surroundings: Surroundings) -> Gateway:
    return PythonGateway(contract, cast("PythonTerms", contract.gateway), surroundings)


# The function may read any variable.
register(GatewayKind(terms=PythonTerms, open=_open, secrets=environment_secrets))

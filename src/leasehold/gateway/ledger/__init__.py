"""Kind ledger: signed batches for a distributed ledger, over its REST interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from leasehold.gateway.http import address_problems
from leasehold.gateway.ledger.terms import LedgerTerms
from leasehold.gateway.registry import GatewayKind, register

if TYPE_CHECKING:
    from leasehold.domain.contract import Contract
    from leasehold.gateway.protocol import Gateway
    from leasehold.gateway.registry import Surroundings


def _open(contract: Contract, surroundings: Surroundings) -> Gateway:
    from leasehold.gateway.ledger.gateway import LedgerGateway  # late, as for kind http

    return LedgerGateway(contract, cast("LedgerTerms", contract.gateway), surroundings)


register(GatewayKind(terms=LedgerTerms, open=_open, address_problems=address_problems))

"""The targets that this instance serves: their contracts, their gateways, and what bounds them.

Contracts are read again and again, so a new version or a new target is served within seconds,
without a restart; that is also how lease durations change at runtime. An intent keeps the version
that it was accepted under, so older versions are opened when one of their intents turns up; only
so many stay open. A target that was given another scope or group is served in the former one too,
until nothing is pending there.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from leasehold.domain.errors import InvalidArgument, LeaseholdError
from leasehold.executor.limits import Gate
from leasehold.observe.logs import get_logger
from leasehold.service.service import Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from leasehold.coordination.claims import Clock
    from leasehold.domain.contract import Contract, Scope
    from leasehold.domain.intent import Claimed
    from leasehold.domain.timing import Timings
    from leasehold.gateway.protocol import Gateway
    from leasehold.store.rows import FormerTerms

# Older versions of contracts that stay open; each may hold connections.
OLD_VERSIONS_MAX = 32

_LOG = get_logger(__name__)


class Contracts(Protocol):
    """Where contracts are read: the part of a store that this needs."""

    async def read_contracts(
        self, refused: Callable[[str, str], None] | None = None
    ) -> Sequence[Contract]:
        """Read the current version of every target's terms; the unreadable ones are `refused`."""
        ...

    async def read_contract(self, target: str, version: int) -> Contract | None:
        """Read one version."""
        ...

    async def read_former_terms(self) -> Sequence[FormerTerms]:
        """Read under which terms, no longer current, intents are still pending."""
        ...


@dataclass(slots=True, eq=False)
class Served:
    """One version of a contract, open for calls."""

    contract: Contract
    gateway: Gateway
    lease_seconds: float
    calls: int = 0  # under way, so that nobody closes the gateway under them

    def is_of(self, claimed: Claimed) -> bool:
        """Whether an intent was accepted under it."""
        contract = self.contract
        return (contract.version, contract.target) == (claimed.contract_version, claimed.target)


class Targets:
    """The service that keeps contracts and gateways current."""

    def __init__(
        self,
        contracts: Contracts,
        open_gateway: Callable[[Contract], Gateway],
        timings: Callable[[], Timings],
        clock: Clock,
        only: Collection[str] | None = None,
        scope: Scope = "item",
    ) -> None:
        self.name = "targets" if scope == "item" else f"{scope} targets"
        self.wake = asyncio.Event()
        self._contracts = contracts
        self._open_gateway = open_gateway
        self._timings = timings
        self._clock = clock
        self._only = only
        self._scope: Scope = scope
        self._current: dict[str, Served] = {}
        self._groups: dict[str, list[str]] = {}
        self._left_out: dict[str, list[str]] = {}
        self._open: OrderedDict[tuple[str, int], Served] = OrderedDict()
        self._gates: dict[str, Gate] = {}
        self._refused: dict[tuple[str, int | None], str] = {}

    @property
    def current(self) -> dict[str, Served]:
        """The targets that may be claimed for, each in its current version."""
        return self._current

    @property
    def groups(self) -> dict[str, list[str]]:
        """The targets to execute under each lease; one that moved is in both until it is done."""
        return self._groups

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The targets that were not asked for, of each group that is served in part."""
        return self._left_out

    def of_group(self, lease_name: str) -> list[str]:
        """Give the targets to execute under a lease."""
        return self._groups.get(lease_name, [])

    def gate(self, target: str) -> Gate:
        """Give what bounds a target; it outlives versions of the contract."""
        return self._gates[target]

    async def start(self) -> None:
        """Read contracts for the first time; raises for one that these timings cannot serve."""
        contracts = await self._served_contracts()
        for contract in contracts:
            try:
                self._require(contract)
            except InvalidArgument as error:
                raise InvalidArgument(f"target {contract.target}: {error}") from None
        await self._adopt(contracts)

    async def step(self) -> Pause:
        """Read contracts again."""
        await self._adopt(await self._served_contracts())
        await self._close_unused()
        return Pause(self._timings().contracts_seconds)

    async def of(self, target: str, version: int) -> Served:
        """Give the version that an intent was accepted under; open it where it is not."""
        served = self._open.get((target, version))
        if served is None:
            contract = await self._contracts.read_contract(target, version)
            if contract is None:
                raise InvalidArgument(f"target {target} has no contract of version {version}")
            served = self._opened(contract)
        self._open.move_to_end((target, version))
        return served

    async def close(self) -> None:
        """Close every gateway."""
        for served in self._open.values():
            await served.gateway.close()
        self._open.clear()
        self._current, self._groups = {}, {}

    async def _served_contracts(self) -> list[Contract]:
        contracts = [
            contract
            for contract in await self._contracts.read_contracts(self._refuse_unread)
            if contract.scope == self._scope
        ]
        served = [one for one in contracts if self._is_asked_for(one.target)]
        left_out: dict[str, list[str]] = {}
        for lease_name in {one.lease_name for one in served if one.lease_name}:
            others = [one.target for one in contracts if one.lease_name == lease_name]
            if kept_out := [target for target in others if not self._is_asked_for(target)]:
                left_out[lease_name] = kept_out
        self._left_out = left_out
        return served

    async def _adopt(self, contracts: Iterable[Contract]) -> None:
        current: dict[str, Served] = {}
        for contract in contracts:
            try:
                self._require(contract)
                current[contract.target] = self._adopted(contract)
            except LeaseholdError as error:
                self._refuse(contract.target, str(error))
            else:
                self._refused.pop((contract.target, None), None)
        former = await self._former()
        for served in former:
            current.setdefault(served.contract.target, served)
        groups: dict[str, list[str]] = {}
        for served in dict.fromkeys([*current.values(), *former]):
            if served.contract.lease_name is not None:
                groups.setdefault(served.contract.lease_name, []).append(served.contract.target)
        self._current, self._groups = current, groups

    async def _former(self) -> list[Served]:
        """Open the terms that are no longer current, but under which intents still wait."""
        found: list[Served] = []
        for terms in await self._contracts.read_former_terms():
            if terms.scope != self._scope or not self._is_asked_for(terms.target):
                continue
            try:
                served = await self.of(terms.target, terms.version)
                self._require(served.contract)
            except LeaseholdError as error:
                self._refuse(terms.target, str(error), terms.version)
            else:
                found.append(served)
        return found

    def _adopted(self, contract: Contract) -> Served:
        served = self._open.get((contract.target, contract.version or 0))
        if served is None:
            served = self._opened(contract)
        served.lease_seconds = self._timings().lease_of(contract.lease_seconds)
        return served

    def _opened(self, contract: Contract) -> Served:
        served = Served(
            contract=contract,
            gateway=self._open_gateway(contract),
            lease_seconds=self._timings().lease_of(contract.lease_seconds),
        )
        self._open[contract.target, contract.version or 0] = served
        self._bound(contract)
        _LOG.info("contract_opened", target=contract.target, version=contract.version)
        return served

    def _bound(self, contract: Contract) -> None:
        """Apply the newest terms to the gate, but keep what it learnt about the target."""
        gate = self._gates.get(contract.target)
        fresh = Gate(contract.concurrency, contract.rate_per_second, self._clock)
        current = self._current.get(contract.target)
        if gate is None:
            self._gates[contract.target] = fresh
        elif current is None or (contract.version or 0) > (current.contract.version or 0):
            gate.concurrency, gate.bucket = fresh.concurrency, fresh.bucket

    def _require(self, contract: Contract) -> None:
        timings = self._timings()
        if self._scope == "cluster":
            asked_after = contract.quarantine_seconds if contract.can_look_up else math.inf
            timings.require_cluster(contract.call_timeout_seconds, asked_after)
        else:
            lease_seconds = timings.lease_of(contract.lease_seconds)
            timings.require(lease_seconds, contract.call_timeout_seconds)

    def _refuse_unread(self, target: str, why: str) -> None:
        if self._is_asked_for(target):
            self._refuse(target, why)

    def _is_asked_for(self, target: str) -> bool:
        return self._only is None or target in self._only

    def _refuse(self, target: str, why: str, version: int | None = None) -> None:
        """Leave a target out; its work stays in the database. Said once, not every few seconds."""
        if self._refused.get((target, version)) != why:
            self._refused[target, version] = why
            _LOG.error("target_not_served", target=target, version=version, error=why)

    async def _close_unused(self) -> None:
        current = {id(served) for served in self._current.values()}
        old = [
            key
            for key, served in self._open.items()
            if id(served) not in current and served.calls == 0
        ]
        for key in old[: max(0, len(old) - OLD_VERSIONS_MAX)]:
            await self._open.pop(key).gateway.close()

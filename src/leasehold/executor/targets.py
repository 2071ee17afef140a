"""The targets that this instance serves: their contracts, their gateways and their gates.

One reader of contracts serves all scopes, and a target has one gate, whatever its scope.

Contracts are read again every few seconds, so a new version or a new target is served without a
restart; that is also how lease durations change at runtime. An intent keeps the contract version
that it was accepted under. An older version is opened when one of its intents turns up, and a
limited number of them stays open. A target that moved to another scope or group is served in the
former one too, until nothing is pending there.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.domain.errors import (
    AccessDenied,
    DatabaseUnavailable,
    InvalidArgument,
    LeaseholdError,
    MigrationError,
)
from leasehold.domain.outcome import Accepted
from leasehold.executor.limits import Gate
from leasehold.observe.logs import get_logger
from leasehold.service.service import Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from leasehold.domain.contract import Contract, Scope
    from leasehold.domain.intent import Claimed
    from leasehold.domain.lease import Clock
    from leasehold.domain.outcome import Outcome
    from leasehold.domain.timing import Timings
    from leasehold.executor.item import Item
    from leasehold.gateway.protocol import Gateway
    from leasehold.observe.metrics import Metrics
    from leasehold.store.executor_protocol import TargetStore

# How many older versions of contracts stay open; each may hold connections.
OLD_VERSIONS_MAX = 32

_LOG = get_logger(__name__)


@dataclass(slots=True, eq=False)
class Served:
    """One version of a contract with its open gateway."""

    contract: Contract
    gateway: Gateway
    lease_seconds: float
    calls: int = 0  # in progress: the gateway is not closed before they end

    @property
    def asks_before_sending(self) -> bool:
        """Whether the gateway asks before the first bytes of each call leave."""
        return getattr(self.gateway, "asks_before_sending", False)

    def serves(self, claimed: Claimed) -> bool:
        """Say whether an intent was accepted under this version."""
        contract = self.contract
        return (contract.version, contract.target) == (claimed.contract_version, claimed.target)


class Targets:
    """Keeps contracts and gateways current."""

    def __init__(
        self,
        contracts: TargetStore,
        open_gateway: Callable[[Contract], Gateway],
        timings: Callable[[], Timings],
        clock: Clock,
        only: Collection[str] | None = None,
    ) -> None:
        self.wake = asyncio.Event()
        # Every published target, also if this release cannot read its contract.
        self.published: set[str] = set()
        self._contracts = contracts
        self._open_gateway = open_gateway
        self._timings = timings
        self._clock = clock
        self._only = only
        self._current: dict[Scope, dict[str, Served]] = {}
        self._groups: dict[str, list[str]] = {}
        self._left_out: dict[str, list[str]] = {}
        self._open: OrderedDict[tuple[str, int], Served] = OrderedDict()
        self._gates: dict[str, Gate] = {}
        self._gate_versions: dict[str, int] = {}  # of the contract that each gate has the terms of
        self._refused: dict[tuple[str, int | None], str] = {}
        self._is_fresh = False

    def current(self, scope: Scope) -> Mapping[str, Served]:
        """Return the targets of a scope, each in its current version."""
        return self._current.get(scope, {})

    @property
    def names(self) -> set[str]:
        """The targets that are served, in any scope."""
        return {target for current in self._current.values() for target in current}

    @property
    def groups(self) -> dict[str, list[str]]:
        """The targets of each cluster lease. A target that moved is in both groups until the
        former one has nothing pending.
        """
        return self._groups

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The targets that this instance does not serve, of each group that it serves in part."""
        return self._left_out

    def of_group(self, lease_name: str) -> list[str]:
        """Return the targets of a cluster lease."""
        return self._groups.get(lease_name, [])

    def gate(self, target: str) -> Gate:
        """Return the gate of a target, which outlives versions of its contract."""
        return self._gates[target]

    def observe(self, item: Item, outcome: Outcome, metrics: Metrics) -> None:
        """Let the breaker of a target learn from the outcome of a call."""
        breaker = self._gates[item.target].breaker
        before = breaker.state
        if before == "closed" and isinstance(outcome, Accepted):
            return  # nothing to learn from it
        breaker.observe(outcome)
        if breaker.state != before:
            metrics.breaker(item.target, breaker.state)
            _LOG.warning(
                "breaker_changed",
                before=before,
                now=breaker.state,
                seconds=round(breaker.seconds_until_probe, 3),
                **item.log_fields(),
            )

    def report_refused(self, item: Item, error: LeaseholdError, metrics: Metrics) -> None:
        """Report an intent whose contract version cannot be opened; a newer version may be."""
        metrics.contract_refused(item.target)
        _LOG.error(
            "contract_refused",
            version=item.claimed.contract_version,
            error=str(error),
            advice="an intent keeps its version: correct what the error says, or cancel it and "
            "redrive it under the current version",
            **item.log_fields(),
        )

    async def start(self) -> None:
        """Read contracts for the first time. A contract that cannot be served costs its target."""
        await self._adopt(await self._served_contracts())
        self._is_fresh = True

    async def step(self) -> Pause:
        """Read contracts again, unless `start` has just read them."""
        if self._is_fresh:
            self._is_fresh = False
        else:
            await self._adopt(await self._served_contracts())
            await self._close_unused()
        return Pause(self._timings().contracts_seconds)

    async def of(self, target: str, version: int) -> Served:
        """Return the version that an intent was accepted under, and open it if necessary."""
        served = self._open.get((target, version))
        if served is None:
            contract = await self._contracts.read_contract(target, version)
            if contract is None:
                raise InvalidArgument(f"target {target} has no contract version {version}")
            # Unless another batch has opened it meanwhile.
            served = self._open.get((target, version)) or self._open_contract(contract)
        self._open.move_to_end((target, version))
        return served

    async def close(self) -> None:
        """Close every gateway."""
        for served in self._open.values():
            await served.gateway.close()
        self._open.clear()
        self._current, self._groups = {}, {}

    async def _served_contracts(self) -> list[Contract]:
        published: set[str] = set()

        def refuse_unread(target: str, why: str) -> None:
            published.add(target)
            if self._is_selected(target):
                self._refuse(target, why)

        readable = await self._contracts.read_contracts(refuse_unread)
        published.update(contract.target for contract in readable)
        self.published = published
        served = [one for one in readable if self._is_selected(one.target)]
        left_out: dict[str, list[str]] = {}
        for lease_name in {one.lease_name for one in served if one.lease_name}:
            others = [one.target for one in readable if one.lease_name == lease_name]
            if not_selected := [target for target in others if not self._is_selected(target)]:
                left_out[lease_name] = not_selected
        self._left_out = left_out
        return served

    async def _adopt(self, contracts: Iterable[Contract]) -> None:
        adopted: list[Served] = []
        for contract in contracts:
            try:
                self._require(contract)
                adopted.append(self._adopt_version(contract))
            except LeaseholdError as error:
                self._refuse(contract.target, str(error), current=contract.version)
            else:
                self._refused.pop((contract.target, None), None)
        current: dict[Scope, dict[str, Served]] = {}
        groups: dict[str, list[str]] = {}
        for served in dict.fromkeys([*adopted, *await self._open_former()]):
            contract = served.contract
            served.lease_seconds = self._timings().lease_of(contract.lease_seconds)
            current.setdefault(contract.scope, {}).setdefault(contract.target, served)
            if contract.lease_name is not None:
                groups.setdefault(contract.lease_name, []).append(contract.target)
        self._current, self._groups = current, groups

    async def _open_former(self) -> list[Served]:
        """Open the terms that are not current, but under which intents are still pending."""
        found: list[Served] = []
        for terms in await self._contracts.read_former_terms():
            if not self._is_selected(terms.target):
                continue
            try:
                served = await self.of(terms.target, terms.version)
                self._require(served.contract)
            except (DatabaseUnavailable, AccessDenied, MigrationError):
                raise  # no fault of the contract
            except LeaseholdError as error:
                self._refuse(terms.target, str(error), former=terms.version)
            else:
                found.append(served)
        return found

    def _adopt_version(self, contract: Contract) -> Served:
        served = self._open.get((contract.target, contract.version or 0))
        return served or self._open_contract(contract)

    def _open_contract(self, contract: Contract) -> Served:
        served = Served(
            contract=contract,
            gateway=self._open_gateway(contract),
            lease_seconds=self._timings().lease_of(contract.lease_seconds),
        )
        self._open[contract.target, contract.version or 0] = served
        self._update_gate(contract)
        _LOG.info("contract_opened", target=contract.target, version=contract.version)
        return served

    def _update_gate(self, contract: Contract) -> None:
        """Apply the newest terms to the gate."""
        version = contract.version or 0
        if version <= self._gate_versions.get(contract.target, -1):
            return
        self._gate_versions[contract.target] = version
        gate = self._gates.get(contract.target)
        if gate is None:
            gate = self._gates[contract.target] = Gate(1, None, self._clock)
        longest = contract.retry.retry_after_seconds_max
        gate.adopt(contract.concurrency, contract.rate_per_second, longest)

    def _require(self, contract: Contract) -> None:
        timings = self._timings()
        lookup_after_seconds = contract.quarantine_seconds if contract.can_look_up else math.inf
        if contract.scope == "cluster":
            timings.require_cluster(contract.call_timeout_seconds, lookup_after_seconds)
        elif contract.scope == "stream":
            timings.require_stream(contract.call_timeout_seconds, lookup_after_seconds)
        else:
            lease_seconds = timings.lease_of(contract.lease_seconds)
            timings.require(lease_seconds, contract.call_timeout_seconds)

    def _is_selected(self, target: str) -> bool:
        return self._only is None or target in self._only

    def _refuse(
        self, target: str, why: str, *, current: int | None = None, former: int | None = None
    ) -> None:
        """Do not serve a target: its work stays in the database. Each reason is logged once."""
        if self._refused.get((target, former)) != why:
            self._refused[target, former] = why
            _LOG.error("target_refused", target=target, version=former or current, error=why)

    async def _close_unused(self) -> None:
        current = {id(served) for one in self._current.values() for served in one.values()}
        old = [
            key
            for key, served in self._open.items()
            if id(served) not in current and served.calls == 0
        ]
        for key in old[: max(0, len(old) - OLD_VERSIONS_MAX)]:
            await self._open.pop(key).gateway.close()


class ScopeTargets:
    """The targets of one scope, for the executor that claims for them."""

    def __init__(self, targets: Targets, scope: Scope) -> None:
        self.gate = targets.gate
        self._targets = targets
        self._scope: Scope = scope

    @property
    def current(self) -> Mapping[str, Served]:
        """The targets to claim for, each in its current version."""
        return self._targets.current(self._scope)

"""One leader executes everything of a group. An instance that is told to serve some targets alone
must therefore serve all of a group or nothing of it: elected, it would keep everybody else from
executing the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.domain.errors import InvalidArgument
from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from leasehold.domain.contract import Contract
    from leasehold.store.protocol import ExecutorStore

_LOG = get_logger(__name__)


def left_out(contracts: Iterable[Contract], only: Collection[str]) -> dict[str, list[str]]:
    """Name the targets of each group that would not be executed with `only` these."""
    groups: dict[str, list[str]] = {}
    for contract in contracts:
        if contract.lease_name is not None:
            groups.setdefault(contract.lease_name, []).append(contract.target)
    return {
        lease_name: sorted(set(targets).difference(only))
        for lease_name, targets in sorted(groups.items())
        if not set(targets).isdisjoint(only) and not set(targets).issubset(only)
    }


class WholeGroups:
    """Looks whether an instance serves its groups as a whole; `only` None: it serves everything."""

    def __init__(self, store: ExecutorStore, only: Collection[str] | None, worker_id: str) -> None:
        self._store = store
        self._only = only
        self._worker_id = worker_id
        self._told: Mapping[str, list[str]] = {}

    async def require(self) -> None:
        """Refuse to start with a part of a group."""
        for lease_name, targets in (await self._left_out()).items():
            raise InvalidArgument(
                f"the group {lease_name!r} would be served in part: {', '.join(targets)} would not "
                "be executed while this instance leads; name all targets of the group, or publish "
                "these with another lease_name"
            )

    async def look(self) -> None:
        """Say what a leader here does not execute of what was published since; once for each."""
        found = await self._left_out()
        for lease_name, targets in found.items():
            if self._told.get(lease_name) != targets:
                _LOG.error(
                    "group_served_in_part",
                    worker_id=self._worker_id,
                    lease_name=lease_name,
                    not_executed=targets,
                )
        self._told = found

    async def _left_out(self) -> dict[str, list[str]]:
        if self._only is None:
            return {}
        return left_out(await self._store.read_contracts(), self._only)

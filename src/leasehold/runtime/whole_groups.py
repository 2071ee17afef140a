"""One leader executes everything of a group. An instance that is told to serve some targets alone
must therefore serve all of a group or nothing of it: elected, it would keep everybody else from
executing the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.domain.errors import InvalidArgument
from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from leasehold.executor.targets import Targets

_LOG = get_logger(__name__)


class WholeGroups:
    """Looks whether an instance serves its groups as a whole."""

    def __init__(self, targets: Targets, worker_id: str) -> None:
        self._targets = targets
        self._worker_id = worker_id
        self._told: dict[str, list[str]] = {}

    def require(self) -> None:
        """Refuse to start with a part of a group."""
        for lease_name, targets in sorted(self._targets.left_out.items()):
            raise InvalidArgument(
                f"the group {lease_name!r} would be served in part: {', '.join(targets)} would not "
                "be executed while this instance leads; name all targets of the group, or publish "
                "these with another lease_name"
            )

    def look(self) -> None:
        """Say what a leader here does not execute of what was published since; once for each."""
        found = self._targets.left_out
        for lease_name, targets in found.items():
            if self._told.get(lease_name) != targets:
                _LOG.error(
                    "group_served_in_part",
                    worker_id=self._worker_id,
                    lease_name=lease_name,
                    not_executed=targets,
                )
        self._told = found

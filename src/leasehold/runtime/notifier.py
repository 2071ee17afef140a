"""The notifier: passes hints of the database on to the services that they concern.

Hints only save waiting; polling alone is correct. After a lost connection the notifier listens
again first and then has everything looked at, so that no change falls between the two. LISTEN does
not work through a transaction pooler, so the notifier is not started there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from leasehold.domain.errors import DatabaseUnavailable
from leasehold.observe.logs import get_logger
from leasehold.service.service import AGAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.service.service import Pause
    from leasehold.store.database import Hint, Notifications

# How often the connection must prove that it is alive.
LISTEN_SECONDS = 30.0

_LOG = get_logger(__name__)


class Hinted(Protocol):
    """A service that takes hints."""

    def work_is_due(self, target: str) -> None:
        """Hint: this target has due work."""
        ...

    def lease_is_free(self, lease_name: str) -> None:
        """Hint: a leader released this lease."""
        ...

    def look_everywhere(self) -> None:
        """Hint: notifications may have been missed, so any target may have due work."""
        ...


class Notifier:
    """The service that receives hints and passes them on."""

    name = "notifier"

    def __init__(
        self,
        notifications: Notifications,
        hinted: Sequence[Hinted],
        worker_id: str,
        role: Callable[[], str],
    ) -> None:
        self.wake = asyncio.Event()
        self._notifications = notifications
        self._hinted = hinted
        self._worker_id = worker_id
        self._role = role
        self._is_reported = False

    async def step(self) -> Pause:
        """Pass hints on for a while, then check that the connection is alive."""
        try:
            if not self._notifications.is_open:
                await self._listen()
            async for hint in self._notifications.received(LISTEN_SECONDS):
                self._pass_on(hint)
            await self._notifications.ping()
        except DatabaseUnavailable as error:
            await self.close()
            self._report(error)
            raise
        return AGAIN

    async def close(self) -> None:
        """Close the connection."""
        await self._notifications.close()

    async def _listen(self) -> None:
        await self._notifications.listen()
        self._is_reported = False
        for one in self._hinted:
            one.look_everywhere()

    def _pass_on(self, hint: Hint) -> None:
        for one in self._hinted:
            if hint.kind == "lease":
                one.lease_is_free(hint.name)
            else:
                one.work_is_due(hint.name)

    def _report(self, error: DatabaseUnavailable) -> None:
        """Log what may be stale now: once per outage, not for each attempt to connect."""
        if not self._is_reported:
            self._is_reported = True
            _LOG.error(
                "notifications_lost",
                worker_id=self._worker_id,
                role=self._role(),
                sql_error=str(error),
                stale="which work is due and which leases are free; polling goes on",
            )

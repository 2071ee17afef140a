"""The lock watch finds sessions that hold our advisory locks and are no instance of ours.

PostgreSQL lets any login take any advisory lock, and the keys of ours are no secret. Whoever holds
one of them stops cluster work: nobody is elected by that lock, or no call can be marked. Nothing
can prevent it, so the watch says who it is, by pid and login.

Our own functions hold some of these locks for moments. So a session is reported when it still has
the lock a moment later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.coordination.advisory_lock import lock_key
from leasehold.observe.logs import get_logger
from leasehold.service.service import Pause

if TYPE_CHECKING:
    from leasehold.runtime.elections import Elections
    from leasehold.runtime.sessions import Parts
    from leasehold.store.leader_protocol import LockWatchStore
    from leasehold.store.rows import LockSquatter

WATCH_SECONDS = 5.0
# After the first sight, before the second.
CONFIRM_SECONDS = 0.5
# How often the same session is logged.
LOG_SECONDS = 60.0
_ADVICE = {
    True: "end that session (pg_terminate_backend); or elect by row: LEASEHOLD_ELECTOR=row",
    False: "end that session (pg_terminate_backend)",
}

_LOG = get_logger(__name__)


class LockWatch:
    """The service that looks, in an instance that serves cluster targets."""

    name = "lock watch"

    def __init__(self, parts: Parts, elections: Elections) -> None:
        self.wake = asyncio.Event()
        self._store: LockWatchStore = parts.store
        self._worker_id = parts.worker_id
        self._elections = elections
        self._metrics = parts.metrics
        self._timings = parts.timings
        self._clock = parts.pool.clock
        self._seen: set[LockSquatter] = set()
        self._logged_at: dict[LockSquatter, float] = {}

    async def step(self) -> Pause:
        """Look, and report who was seen before."""
        found = await self._look()
        squatters = found & self._seen
        is_new = bool(found - self._seen)
        self._seen = found
        self._metrics.locks_squatted(len(squatters))
        now = self._clock()
        self._logged_at = {one: at for one, at in self._logged_at.items() if one in found}
        for one in squatters:
            if now - self._logged_at.get(one, -LOG_SECONDS) >= LOG_SECONDS:
                self._logged_at[one] = now
                self._log(one)
        return Pause(CONFIRM_SECONDS if is_new else self._watch_seconds())

    def _watch_seconds(self) -> float:
        return min(WATCH_SECONDS, self._timings().cluster_acquire_seconds)

    async def _look(self) -> set[LockSquatter]:
        names = sorted(self._elections.lease_names)
        if not names:
            return set()
        keys = [lock_key(name) for name in names] if self._elections.is_by_lock else []
        return set(await self._store.read_lock_squatters(names, keys))

    def _log(self, squatter: LockSquatter) -> None:
        _LOG.error(
            "lock_squatted",
            worker_id=self._worker_id,
            lease_name=squatter.lease_name,
            lock=squatter.lock,
            pid=squatter.pid,
            login=squatter.login,
            application_name=squatter.application_name,
            advice=_ADVICE[squatter.lock == "election"],
        )

"""The generation of the database: what an instance does when commits may have been lost.

A failover, a copy or a restore can lose commits: a lease that we hold may be another's, and fencing
tokens may repeat. The database notices, and refuses to grant, renew or begin anything (P7006) until
somebody calls begin_generation, which raises the floor of all tokens. So whoever meets P7006 calls
it, drops its leases and starts anew. If another instance was faster we never meet P7006; then the
number of the generation tells us, which is read with each heartbeat.

Calls that were made before may end, and their results are recorded if the database still knows
their leases. Nothing else goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from leasehold.observe.logs import get_logger
from leasehold.service.service import Pause

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from leasehold.runtime.sessions import Parts

_LOG = get_logger(__name__)


class Leaseholder(Protocol):
    """Holds leases in memory."""

    async def drop_leases(self) -> None:
        """Begin nothing more under the present leases, and let go of them."""
        ...


class GenerationWatch:
    """The service that notices a new generation, or begins it."""

    name = "generation watch"

    def __init__(
        self, parts: Parts, holders: Sequence[Leaseholder], refused: asyncio.Event
    ) -> None:
        """`refused` is set when the database has refused a call with P7006."""
        self.wake = refused
        self._store = parts.store
        self._worker_id = parts.worker_id
        self._timings = parts.timings
        self._metrics = parts.metrics
        self._holders = holders
        self._generation_no: int | None = None
        self._is_ready = True

    async def step(self) -> Pause:
        """Begin a new generation if the database must, and drop all leases of a former one."""
        generation = await self._store.begin_generation(self._worker_id)
        former, self._generation_no = self._generation_no, generation.generation_no
        is_changed = former not in (None, generation.generation_no)
        if is_changed or generation.is_new:
            self._metrics.generation_changed()
            _LOG.warning(
                "generation_changed",
                worker_id=self._worker_id,
                generation_no=generation.generation_no,
                token_floor=generation.token_floor,
                begun_here=generation.is_new,
                advice="the database may have lost commits: see docs/how-to/failover.md",
            )
            for holder in self._holders:
                await holder.drop_leases()
        if self._is_ready and not generation.is_ready:
            _LOG.warning(
                "restore_awaited",
                worker_id=self._worker_id,
                advice="let `leasehold restored` run to its end; nothing is submitted before",
            )
        self._is_ready = generation.is_ready
        return Pause(self._timings().heartbeat_seconds)

"""WebService: what every route of the API needs, put together and kept running."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from leasehold.domain.errors import LeaseholdError
from leasehold.intake.group_commit import GroupCommit
from leasehold.observe.metrics import Metrics
from leasehold.runtime.queue_watch import QueueWatch
from leasehold.service.deadline import within_deadline
from leasehold.service.loop import Loop
from leasehold.web.access_log import AccessLog
from leasehold.web.admission import Admission
from leasehold.web.auth import TokenBook
from leasehold.web.body import Bodies
from leasehold.web.events import Events
from leasehold.web.limiter import Room
from leasehold.web.long_poll import Waits
from leasehold.web.metrics import WebMetrics
from leasehold.web.queue_limits import QueueLimits
from leasehold.web.rates import RedriveRate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from leasehold.observe.logs import Format
    from leasehold.runtime.instance import ScopeState
    from leasehold.service.service import Service
    from leasehold.store.postgres.roles import RoleStores

    State = Literal["ready", "draining", "database_unavailable"]

# A look at the database is good for this long, and takes no longer than that.
PROBE_SECONDS = 1.0
_JOIN_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """What the API is told at start."""

    instance_id: str = "web"
    is_open: bool = False  # --no-auth
    requests_max: int = 1000
    # Beside those: who waits for an intent to be finished.
    waits_max: int = 500
    waiting_max: int = 10_000
    token_seconds: float = 2.0
    log_format: Format = "console"
    log_level: str = "info"


class WebService:
    """`async with WebService(stores) as service`, then create_app(service)."""

    def __init__(
        self,
        stores: RoleStores,
        settings: WebSettings | None = None,
        *,
        metrics: Metrics | None = None,
        scopes: Callable[[], Mapping[str, ScopeState]] = dict,
    ) -> None:
        self.settings = settings or WebSettings()
        self.stores = stores
        self.scopes = scopes
        self.metrics = metrics or Metrics(self.settings.instance_id)
        self.web_metrics = WebMetrics(self.metrics.registry, self.settings.instance_id)
        self.access_log = AccessLog(self.settings.log_format, self.settings.log_level)
        self.group_commit = GroupCommit(
            stores.ingest,
            waiting_max=self.settings.waiting_max,
            observe=self.web_metrics.batch,
        )
        self.bodies = Bodies()
        self.tokens = TokenBook(
            stores.api,
            is_open=self.settings.is_open,
            refresh_seconds=self.settings.token_seconds,
        )
        self.room = Room(self.settings.requests_max, self.settings.waits_max)
        self.queue_limits = QueueLimits(stores.reader)
        self.admission = Admission(self.queue_limits, stores.reader)
        self.waits = Waits(stores.reader)
        self.events = Events(stores.reader)
        self.redrive_rate = RedriveRate()
        self.web_metrics.watch(lambda: self.group_commit.waiting, lambda: self.events.listeners)
        self._is_draining = False
        self._probe = asyncio.Lock()
        self._probed_at = float("-inf")
        self._is_database_there = False
        self._loops: list[Loop] = []

    @property
    def is_draining(self) -> bool:
        """Whether this instance is on its way out."""
        return self._is_draining

    async def __aenter__(self) -> Self:
        # Nobody is to be refused only because we have not looked yet.
        await self.tokens.step()
        services: list[Service] = [self.tokens, self.queue_limits, self.waits, self.events]
        services.append(QueueWatch(self.stores.reader, self.metrics))
        self._loops = [Loop(service, self.settings.instance_id) for service in services]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.drain()
        self.end_streams()
        await self.group_commit.close()
        for loop in self._loops:
            loop.stop()
        for loop in self._loops:
            await loop.join(_JOIN_SECONDS)
        self.access_log.close()

    def drain(self) -> None:
        """Say to whoever asks that new requests should go elsewhere; all are still answered."""
        self._is_draining = True

    def end_streams(self) -> None:
        """Let everybody go who only waits or listens: another instance goes on for them."""
        self.waits.close()
        self.events.close()

    async def state(self) -> State:
        """Say whether requests should come here."""
        if self._is_draining:
            return "draining"
        async with self._probe:
            if time.monotonic() - self._probed_at > PROBE_SECONDS:
                self._is_database_there = await self._is_answering()
                self._probed_at = time.monotonic()
        return "ready" if self._is_database_there else "database_unavailable"

    async def _is_answering(self) -> bool:
        try:
            await within_deadline(PROBE_SECONDS, self.tokens.step(), "a look at the tokens")
        except LeaseholdError:
            return False
        return True

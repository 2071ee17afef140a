"""WebService: what the routes share, the background services and the metrics of the API."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from prometheus_client import Counter, Gauge, Histogram

from leasehold.domain.errors import LeaseholdError
from leasehold.intake.group_commit import GroupCommit
from leasehold.observe.labelled import Factory
from leasehold.observe.logs import BufferedLog
from leasehold.observe.metrics import Metrics
from leasehold.runtime.watches import QueueWatch
from leasehold.service.deadline import within_deadline
from leasehold.service.service import Loop
from leasehold.web.admission import Admission, QueueLimits
from leasehold.web.auth import TokenCache
from leasehold.web.events import Events
from leasehold.web.limiter import KeepAlive, Limiter, RedriveLimiter
from leasehold.web.long_poll import LongPoll
from leasehold.web.request_context import BodyReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasehold.observe.logs import Format
    from leasehold.runtime.registration import ScopeState
    from leasehold.service.service import Service
    from leasehold.store.database import RoleStores

    State = Literal["ready", "draining", "database_unavailable"]

    from prometheus_client import CollectorRegistry

# How long a probe of the database is valid, and how long it may take.
PROBE_SECONDS = 1.0
_JOIN_SECONDS = 3.0
_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BUCKETS_INTENTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
# One token may have a tenth of all requests waiting for their bodies.
SLOW_BODIES_SHARE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """The settings of the API."""

    instance_id: str = "web"
    is_open: bool = False  # --no-auth
    requests_max: int = 1000
    # Long polls, in addition to these requests.
    waits_max: int = 500
    # Connections that stay open between requests: half of what the server accepts.
    kept_max: int = 1000
    waiting_max: int = 10_000
    token_seconds: float = 2.0
    log_format: Format = "console"
    log_level: str = "info"


class WebService:
    """Use as `async with WebService(stores) as service`, then create_app(service)."""

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
        self.access_log = BufferedLog(self.settings.log_format, self.settings.log_level)
        self.group_commit = GroupCommit(
            stores.ingest, waiting_max=self.settings.waiting_max, observe=self.web_metrics.batch
        )
        self.bodies = BodyReader(max(1, self.settings.requests_max // SLOW_BODIES_SHARE))
        self.tokens = TokenCache(
            stores.api, is_open=self.settings.is_open, refresh_seconds=self.settings.token_seconds
        )
        self.limiter = Limiter(self.settings.requests_max, self.settings.waits_max)
        self.keep_alive = KeepAlive(self.settings.kept_max)
        self.redrive_limiter = RedriveLimiter()
        self.queue_limits = QueueLimits(stores.reader)
        self.admission = Admission(self.queue_limits, stores.reader)
        self.long_poll = LongPoll(stores.reader)
        self.events = Events(stores.reader)
        self.web_metrics.watch(lambda: self.group_commit.waiting, lambda: self.events.listeners)
        self._is_draining = False
        self._probe_lock = asyncio.Lock()
        self._probed_at = float("-inf")
        self._is_database_up = False
        self._loops: list[Loop] = []

    @property
    def is_draining(self) -> bool:
        """Whether this instance is about to stop."""
        return self._is_draining

    async def __aenter__(self) -> Self:
        # The first request must find the tokens.
        await self.tokens.step()
        services: list[Service] = [self.tokens, self.queue_limits, self.long_poll, self.events]
        services.append(QueueWatch(self.stores.reader, self.metrics))
        self._loops = [Loop(service, self.settings.instance_id) for service in services]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.drain()
        self.end_streams()
        await self.group_commit.close()
        for loop in self._loops:
            loop.stop()
        for loop in self._loops:
            await loop.join(_JOIN_SECONDS)
        self.access_log.flush()

    def drain(self) -> None:
        """Report "draining" to the load balancer. Requests are still answered."""
        self._is_draining = True

    def end_streams(self) -> None:
        """End long polls and event streams; clients continue at another instance."""
        self.long_poll.close()
        self.events.close()

    async def state(self) -> State:
        """Return whether this instance should get requests."""
        if self._is_draining:
            return "draining"
        async with self._probe_lock:
            if time.monotonic() - self._probed_at > PROBE_SECONDS:
                self._is_database_up = await self._probe()
                self._probed_at = time.monotonic()
        return "ready" if self._is_database_up else "database_unavailable"

    async def _probe(self) -> bool:
        try:
            await within_deadline(PROBE_SECONDS, self.tokens.step(), "the database probe")
        except LeaseholdError:
            return False
        return True


class WebMetrics:
    """The metrics of the API, in the registry of the process."""

    def __init__(self, registry: CollectorRegistry, worker_id: str) -> None:
        factory = Factory(registry, worker_id)
        self._requests = factory.by(
            Counter,
            "http_requests",
            "HTTP requests answered, by method, route and status.",
            "method",
            "route",
            "status",
        )
        self._seconds = factory.by(
            Histogram,
            "http_request_seconds",
            "Time from the head of a request to the end of its response.",
            "method",
            "route",
            buckets=_BUCKETS_SECONDS,
        )
        self._batch = factory.of_worker(
            Histogram,
            "intake_batch_size",
            "Intents that shared one commit.",
            buckets=_BUCKETS_INTENTS,
        )
        self._commit = factory.of_worker(
            Histogram,
            "intake_commit_seconds",
            "Time of one enqueue call, with its commit.",
            buckets=_BUCKETS_SECONDS,
        )
        self._waiting = factory.of_worker(
            Gauge, "intake_waiting", "Intents that wait for an enqueue call."
        )
        self._listeners = factory.of_worker(
            Gauge, "event_listeners", "Clients that listen to events."
        )

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.at(method, route, str(status)).inc()
        self._seconds.at(method, route).observe(seconds)

    def batch(self, intents: int, seconds: float) -> None:
        """Count an enqueue call."""
        self._batch.observe(intents)
        self._commit.observe(seconds)

    def watch(self, waiting: Callable[[], float], listeners: Callable[[], float]) -> None:
        """Read these gauges when they are scraped."""
        self._waiting.set_function(waiting)
        self._listeners.set_function(listeners)

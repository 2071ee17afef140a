"""Limits: requests at a time, long polls, connections kept open, redriven intents."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leasehold.service.token_bucket import TokenBucket
from leasehold.web.problems import RETRY_SECONDS, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

REDRIVE_BURST = 1000
REDRIVE_PER_SECOND = 20.0
# For a request head, and between two requests: hyper has one timer for both. It must be longer than
# a load balancer keeps an idle connection, so that the balancer never uses one that we just closed.
IDLE_SECONDS = 75.0


class Limiter:
    """Counts the concurrent requests of one instance.

    Long polls and event streams are counted apart. They cost next to nothing but last long: counted
    together, a few of them would keep enqueues out.
    """

    def __init__(self, requests_max: int, waits_max: int) -> None:
        self._requests_max = requests_max
        self._waits_max = waits_max
        self._requests = 0
        self._waits = 0

    @property
    def requests(self) -> int:
        """How many requests are in progress, without long polls and event streams."""
        return self._requests

    @property
    def is_full_of_waits(self) -> bool:
        """Whether there is room for no further long poll."""
        return self._waits >= self._waits_max

    def enter(self, *, is_exempt: bool) -> None:
        """Count a request, or refuse it. Call leave() afterwards in both cases."""
        self._requests += 1
        if self._requests > self._requests_max and not is_exempt:
            raise Problem("overloaded", "Try again in a moment.", retry_seconds=RETRY_SECONDS)

    def leave(self) -> None:
        """Count a request as finished."""
        self._requests -= 1

    def require_room_to_wait(self) -> None:
        """Refuse one long poll too many."""
        if self.is_full_of_waits:
            raise Problem(
                "overloaded",
                "Too many requests wait for intents. Try again in a moment, or do not wait.",
                retry_seconds=RETRY_SECONDS,
            )

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Count the current request as a long poll instead."""
        self._waits += 1
        try:
            with self.streaming():
                yield
        finally:
            self._waits -= 1

    @contextmanager
    def streaming(self) -> Generator[None]:
        """Do not count the current request; `events` has its own limit."""
        self._requests -= 1
        try:
            yield
        finally:
            self._requests += 1


class KeepAlive:
    """Decides which connections stay open after a response, so that idle ones keep nobody out.

    The server cannot close an idle connection and does not tell us when one ends. So a connection
    counts until the server would have closed it for silence; beyond the limit, a response is the
    last one of its connection.
    """

    def __init__(
        self,
        connections_max: int,
        idle_seconds: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections_max = connections_max
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._used_at: OrderedDict[object, float] = OrderedDict()

    def keeps(self, client: object) -> bool:
        """Whether the connection from this address may be used again; counts it if so."""
        now = self._clock()
        used_at = self._used_at
        used_at.pop(client, None)
        while used_at and next(iter(used_at.values())) < now - self._idle_seconds:
            used_at.popitem(last=False)
        if len(used_at) >= self._connections_max:
            return False
        used_at[client] = now
        return True


class RedriveLimiter:
    """Limits how many finished intents an instance redrives, so that a slip is not a flood."""

    def __init__(
        self,
        burst: int = REDRIVE_BURST,
        per_second: float = REDRIVE_PER_SECOND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = f"at most {burst} at once and {per_second:g} a second, at each instance"
        self._bucket = TokenBucket(per_second, burst, clock)

    def take(self, intents: int) -> None:
        """Take so many, or refuse with the time until there will be enough."""
        seconds = self._bucket.seconds_until(intents)
        if seconds > 0:
            raise Problem(
                "too_many",
                f"{intents} intents exceed the redrive limit: {self._limit}.",
                retry_seconds=math.ceil(seconds),
            )
        self._bucket.take(intents)

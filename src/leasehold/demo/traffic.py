"""The demo's targets and contracts, its sample intents, and the client of its sandbox gateway."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from leasehold.demo.processes import LEASE_SECONDS
from leasehold.domain.contract import Contract, RetryTerms
from leasehold.domain.errors import DatabaseUnavailable, LeaseholdError
from leasehold.domain.intent import NewIntent
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.gateway.http.terms import HttpTerms
from leasehold.intake.intake import Intake
from leasehold.sandbox.faults import FaultSettings
from leasehold.sandbox.gateways import STREAM_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.domain.contract import Guarantee
    from leasehold.store.protocol import IngestStore

TARGETS: Mapping[str, Guarantee] = {
    "payments": "keyed",
    "ledger": "fenced",
    "payouts": "lookup",
    "letters": "blind",
    "accounts": "keyed",
}
# The target of scope stream, and its streams. The others have scope item.
STREAM_TARGET = "accounts"
STREAMS = [f"account-{number}" for number in range(1, 5)]
# Frequent enough to see each kind of fault within a minute.
SOME_FAULTS = FaultSettings(
    latency_ms=150,
    jitter=0.6,
    reject_rate=0.03,
    throttle_rate=0.03,
    lost_response_rate=0.06,
    retry_after_seconds=1,
)
# Keeps calls in flight long enough to kill a worker in the middle of them.
SLOW = FaultSettings(latency_ms=1500, jitter=0.2)
_TARGET_OF_GATEWAY = {name: target for target, name in TARGETS.items() if target != STREAM_TARGET}
_PAGE_SIZE = 10_000
_TIMEOUT_SECONDS = 5.0
_TICK_SECONDS = 0.1
_RETRY_SECONDS = 0.5
_BATCH_MAX = 100
_COMMITTED = {EnqueueVerdict.ACCEPTED, EnqueueVerdict.DUPLICATE}


def contracts(sandbox_url: str) -> list[Contract]:
    """Return the contract of each target, with short leases and retries."""
    return [_contract(target, sandbox_url) for target in TARGETS]


def _contract(target: str, sandbox_url: str) -> Contract:
    guarantee = TARGETS[target]
    url = f"{sandbox_url}/{guarantee}"
    is_ordered = target == STREAM_TARGET
    return Contract(
        target=target,
        scope="stream" if is_ordered else "item",
        guarantee=guarantee,
        gateway=HttpTerms(
            url=url,
            lookup_url=f"{url}/{{key}}" if guarantee == "lookup" else None,
            stream_header=STREAM_HEADER if is_ordered else None,
            allow_private=True,
        ),
        # A rejected intent does not block its stream: nobody is there to resume it.
        on_failure="continue" if is_ordered else None,
        retry=RetryTerms(first_seconds=1.0, longest_seconds=5.0),
        lease_seconds=LEASE_SECONDS,
        call_timeout_seconds=3.0,
        connect_timeout_seconds=1.0,
    )


@dataclass(slots=True)
class EffectCount:
    """The effects of one target, and the submission keys that had more than one."""

    effects: int = 0
    doubled_keys: int = 0


class Effects:
    """The effects at the gateway: by submission key in the order of their arrival, and counted."""

    def __init__(self) -> None:
        self.per_key: Counter[str] = Counter()
        self.per_target: defaultdict[str, EffectCount] = defaultdict(EffectCount)

    def add(self, request: Mapping[str, Any]) -> None:
        """Count a request of the log if it had an effect."""
        if not request["had_effect"]:
            return
        # Two targets have the keyed gateway; only one of them tells it a stream.
        target = STREAM_TARGET if request["stream"] else _TARGET_OF_GATEWAY[request["gateway"]]
        self.per_key[request["key"]] += 1
        self.per_target[target].effects += 1
        self.per_target[target].doubled_keys += self.per_key[request["key"]] == 2


class SandboxClient:
    """Sets the faults of a running sandbox, and reads its effects."""

    def __init__(self, url: str) -> None:
        self.url = url
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        self._session = aiohttp.ClientSession(url, timeout=timeout)
        self._effects = Effects()
        self._read = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def set_faults(self, settings: FaultSettings) -> None:
        """Replace the fault settings of all its gateways."""
        await self._request("PUT", "/faults", json=settings.model_dump())

    async def effects(self) -> Effects:
        """Read what was added to the request log, and return all effects so far."""
        while True:
            page = await self._request("GET", f"/requests?after={self._read}&limit={_PAGE_SIZE}")
            for one in page["requests"]:
                self._effects.add(one)
            self._read += len(page["requests"])
            if not page["requests"] or self._read >= page["total"]:
                return self._effects

    async def _request(self, method: str, path: str, **more: Any) -> Any:  # noqa: ANN401 (JSON)
        try:
            async with self._session.request(method, path, **more) as response:
                response.raise_for_status()
                return await response.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LeaseholdError(f"the sandbox at {self.url} does not answer: {error}") from error


class Traffic:
    """Enqueues intents until it is closed."""

    def __init__(self, store: IngestStore, rate_per_second: float) -> None:
        # Committed intents by target, according to the answers of the database.
        self.enqueued: Counter[str] = Counter()
        self._intake = Intake(store)
        self._rate = rate_per_second
        self._created = 0
        self._is_open = True
        self._calls_in_flight = 0

    @property
    def is_finished(self) -> bool:
        """Whether it is closed and no call is in flight."""
        return not self._is_open and self._calls_in_flight == 0

    def close(self) -> None:
        """Enqueue no more."""
        self._is_open = False

    async def run(self) -> None:
        """Keep the rate. After an outage of the database, catch up with one batch at most."""
        async with self._intake:
            last_at, owed = time.monotonic(), 1.0
            while True:
                if self._is_open and owed >= 1:
                    await self.enqueue(int(owed))
                    owed -= int(owed)
                await asyncio.sleep(_TICK_SECONDS)
                now = time.monotonic()
                owed, last_at = min(owed + (now - last_at) * self._rate, _BATCH_MAX), now

    async def enqueue(self, count: int) -> None:
        """Enqueue this many intents, round-robin over the targets."""
        self._calls_in_flight += 1
        try:
            await self._enqueue([self._next_intent() for _ in range(count)])
        finally:
            self._calls_in_flight -= 1

    async def _enqueue(self, batch: Sequence[NewIntent]) -> None:
        while True:
            try:
                answers = await self._intake.enqueue_many(batch)
                break
            except DatabaseUnavailable:
                # Outcome unknown. The idempotency keys make it safe to repeat.
                await asyncio.sleep(_RETRY_SECONDS)
        for new, answer in zip(batch, answers, strict=True):
            if answer.verdict not in _COMMITTED:
                raise LeaseholdError(f"the database refused a sample intent: {answer}")
            self.enqueued[new.target] += 1

    def _next_intent(self) -> NewIntent:
        self._created += 1
        turn, place = divmod(self._created, len(TARGETS))
        target = list(TARGETS)[place]
        return NewIntent(
            target=target,
            stream=STREAMS[turn % len(STREAMS)] if target == STREAM_TARGET else None,
            payload={"sample": self._created, "amount": self._created * 7 % 1000},
            idempotency_key=f"sample-{self._created}",
        )

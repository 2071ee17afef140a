"""What `leasehold demo` asks of its gateway: to misbehave a little, and to say what happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from leasehold.domain.errors import LeaseholdError
from leasehold.sandbox.faults import FaultSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from leasehold.domain.contract import Guarantee

# Enough trouble to see each kind of it within a minute.
TROUBLE = FaultSettings(
    latency_ms=150,
    jitter=0.6,
    reject_rate=0.03,
    throttle_rate=0.03,
    lost_response_rate=0.06,
    retry_after_seconds=1,
)
# For the moment in which a worker is to be killed during its calls.
SLOW = FaultSettings(latency_ms=1500, jitter=0.2)
_PAGE = 10_000
_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class EffectCount:
    """How much happened at one gateway."""

    effects: int
    doubled_keys: int


class SandboxClient:
    """The control requests of a running sandbox."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session = aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=_SECONDS))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def set_faults(self, settings: FaultSettings) -> None:
        """Replace the fault settings of all its gateways."""
        await self._asked("PUT", "/faults", json=settings.model_dump())

    async def effects(self) -> Mapping[Guarantee, EffectCount]:
        """Say how much happened at each gateway."""
        summed = await self._asked("GET", "/effects")
        return {
            name: EffectCount(one["effects"], one["doubled_keys"])
            for name, one in summed["gateways"].items()
        }

    async def effects_per_key(self) -> Counter[str]:
        """Count the effects of every submission key, from the request log."""
        counted: Counter[str] = Counter()
        read = 0
        while True:
            page = await self._asked("GET", f"/requests?after={read}&limit={_PAGE}")
            entries: list[dict[str, Any]] = page["requests"]
            counted.update(entry["key"] for entry in entries if entry["had_effect"])
            read += len(entries)
            if not entries or read >= page["total"]:
                return counted

    async def _asked(self, method: str, path: str, **more: Any) -> Any:  # noqa: ANN401 (JSON)
        try:
            async with self._session.request(method, path, **more) as response:
                response.raise_for_status()
                return await response.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LeaseholdError(f"the sandbox at {self.url} does not answer: {error}") from error

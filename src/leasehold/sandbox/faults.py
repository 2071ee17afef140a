"""The faults that a gateway of the sandbox injects: settings per class, changeable at runtime."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Annotated, Any, Self, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from leasehold.domain.errors import InvalidArgument

Rate: TypeAlias = Annotated[float, Field(ge=0, le=1)]


class Fault(Enum):
    """The fault of one request, if any."""

    NONE = auto()
    REJECTED = auto()
    REFUSED = auto()
    THROTTLED = auto()
    UNAUTHORIZED = auto()
    FORBIDDEN = auto()
    REQUEST_LOST = auto()
    RESPONSE_LOST = auto()


class Fate(Enum):
    """What becomes of a batch that the ledger took. The value is its status after its block."""

    COMMITTED = "COMMITTED"
    INVALID = "INVALID"
    EVICTED = "UNKNOWN"


class FaultSettings(BaseModel):
    """The settings of one class. With the defaults every submission succeeds at once.

    The rates from `reject_rate` to `lost_response_rate` exclude each other, so their sum is at most
    1. `late_rate` and `duplicate_rate` are drawn independently. Only the ledger has the last three.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    latency_ms: Annotated[float, Field(ge=0, le=600_000)] = 0
    jitter: Annotated[Rate, Field(description="varies latency_ms by this fraction")] = 0
    reject_rate: Annotated[Rate, Field(description="422, no effect")] = 0
    refuse_rate: Annotated[Rate, Field(description="503, no effect")] = 0
    throttle_rate: Annotated[Rate, Field(description="429 with Retry-After, no effect")] = 0
    unauthorized_rate: Annotated[Rate, Field(description="401, no effect; also to lookups")] = 0
    forbidden_rate: Annotated[Rate, Field(description="403, no effect; also to lookups")] = 0
    lost_request_rate: Annotated[Rate, Field(description="no effect, no response")] = 0
    lost_response_rate: Annotated[Rate, Field(description="the effect, but no response")] = 0
    late_rate: Annotated[Rate, Field(description="effect and response after late_seconds")] = 0
    late_seconds: Annotated[float, Field(ge=0, le=3600)] = 0
    duplicate_rate: Annotated[Rate, Field(description="the request arrives twice")] = 0
    early_not_found_rate: Annotated[
        Rate, Field(description="a lookup answers 404 for a known key")
    ] = 0
    pending_seconds: Annotated[
        float, Field(ge=0, le=3600, description="202, and pending for this long")
    ] = 0
    retry_after_seconds: Annotated[float, Field(ge=0, le=10_000_000)] = 1
    invalid_rate: Annotated[Rate, Field(description="202, then INVALID, no effect")] = 0
    evict_rate: Annotated[Rate, Field(description="202, then UNKNOWN, no effect")] = 0
    pending_max: Annotated[
        int, Field(ge=0, le=1_000_000, description="429 while so many batches wait; 0: no limit")
    ] = 0

    @model_validator(mode="after")
    def _limit_sum_of_rates(self) -> Self:
        total = sum(rate for _, rate in self.exclusive_rates())
        if total > 1:
            raise ValueError(
                "reject, refuse, throttle, unauthorized, forbidden, lost_request and lost_response "
                f"rates sum to {total:g}: at most 1"
            )
        if self.invalid_rate + self.evict_rate > 1:
            raise ValueError("invalid_rate and evict_rate sum to more than 1")
        return self

    def exclusive_rates(self) -> tuple[tuple[Fault, float], ...]:
        """Return the faults that exclude each other, with their rates."""
        return (
            (Fault.REJECTED, self.reject_rate),
            (Fault.REFUSED, self.refuse_rate),
            (Fault.THROTTLED, self.throttle_rate),
            (Fault.UNAUTHORIZED, self.unauthorized_rate),
            (Fault.FORBIDDEN, self.forbidden_rate),
            (Fault.REQUEST_LOST, self.lost_request_rate),
            (Fault.RESPONSE_LOST, self.lost_response_rate),
        )


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn for one request."""

    fault: Fault = Fault.NONE
    wait_seconds: float = 0.0
    is_late: bool = False
    is_duplicated: bool = False


_NO_FAULT = Drawn()


class FaultInjector:
    """Draws faults by their settings. The same seed and order of requests draw the same faults."""

    def __init__(self, settings: FaultSettings, seed: int | None) -> None:
        self.settings = settings
        self._random = Random(seed)  # noqa: S311 (a simulation, not a secret)
        self._is_idle = settings == FaultSettings(
            pending_seconds=settings.pending_seconds,
            retry_after_seconds=settings.retry_after_seconds,
            pending_max=settings.pending_max,
        )

    def draw(self) -> Drawn:
        """Draw what happens to a submission."""
        if self._is_idle:
            return _NO_FAULT
        is_late = self._happens(self.settings.late_rate)
        return Drawn(
            fault=self._draw_fault(),
            wait_seconds=self._latency_seconds() + (self.settings.late_seconds if is_late else 0),
            is_late=is_late,
            is_duplicated=self._happens(self.settings.duplicate_rate),
        )

    def draw_fate(self) -> Fate:
        """Draw what becomes of a batch that the ledger takes."""
        settings = self.settings
        if not settings.invalid_rate + settings.evict_rate:
            return Fate.COMMITTED
        drawn = self._random.random()
        if drawn < settings.invalid_rate:
            return Fate.INVALID
        if drawn < settings.invalid_rate + settings.evict_rate:
            return Fate.EVICTED
        return Fate.COMMITTED

    def draw_early_not_found(self) -> bool:
        """Draw whether a lookup denies a key that the gateway knows."""
        return self._happens(self.settings.early_not_found_rate)

    def draw_denied_lookup(self) -> Fault:
        """Draw whether a lookup is answered with 401 or 403."""
        if self._happens(self.settings.unauthorized_rate):
            return Fault.UNAUTHORIZED
        return Fault.FORBIDDEN if self._happens(self.settings.forbidden_rate) else Fault.NONE

    def _draw_fault(self) -> Fault:
        drawn = self._random.random()
        for fault, rate in self.settings.exclusive_rates():
            if drawn < rate:
                return fault
            drawn -= rate
        return Fault.NONE

    def _latency_seconds(self) -> float:
        spread = self.settings.jitter * self._random.uniform(-1, 1)
        return self.settings.latency_ms / 1000 * (1 + spread)

    def _happens(self, rate: float) -> bool:
        return rate > 0 and self._random.random() < rate


def read_settings(body: bytes) -> tuple[FaultSettings, int | None]:
    """Read settings and a seed from JSON. Raises InvalidArgument, which says what is wrong."""
    try:
        given: Any = json.loads(body)
    except ValueError:
        raise InvalidArgument("the body is not JSON") from None
    if not isinstance(given, dict):
        raise InvalidArgument("the body must be a JSON object")
    fields = cast("dict[str, Any]", given)
    seed = fields.pop("seed", None)
    if seed is not None and not isinstance(seed, int):
        raise InvalidArgument("seed must be a whole number")
    try:
        return FaultSettings.model_validate(fields), seed
    except ValidationError as error:
        raise InvalidArgument(_describe(error)) from None


def _describe(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ")
        for one in error.errors(include_input=False, include_url=False)
    )

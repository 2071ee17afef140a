"""How badly a gateway of the sandbox behaves: a dial per class, turned while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Annotated, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

Rate: TypeAlias = Annotated[float, Field(ge=0, le=1)]


class Fate(Enum):
    """What becomes of one request."""

    ANSWERED = auto()
    REJECTED = auto()
    REFUSED = auto()
    THROTTLED = auto()
    REQUEST_LOST = auto()
    RESPONSE_LOST = auto()


class Dial(BaseModel):
    """The settings of one class; all zero is a gateway that works at once and always.

    The rates from `reject_rate` to `lost_response_rate` exclude each other, so their sum is at most
    1. `late_rate` and `duplicate_rate` come on top.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    latency_ms: Annotated[float, Field(ge=0, le=600_000)] = 0
    jitter: Annotated[Rate, Field(description="part of latency_ms, up and down")] = 0
    reject_rate: Annotated[Rate, Field(description="422, no effect")] = 0
    refuse_rate: Annotated[Rate, Field(description="503, no effect")] = 0
    throttle_rate: Annotated[Rate, Field(description="429 with Retry-After, no effect")] = 0
    lost_request_rate: Annotated[Rate, Field(description="no effect, no answer")] = 0
    lost_response_rate: Annotated[Rate, Field(description="the effect, but no answer")] = 0
    late_rate: Annotated[Rate, Field(description="effect and answer after late_seconds")] = 0
    late_seconds: Annotated[float, Field(ge=0, le=3600)] = 0
    duplicate_rate: Annotated[Rate, Field(description="the request arrives twice")] = 0
    early_not_found_rate: Annotated[Rate, Field(description="a lookup says 404, wrongly")] = 0
    pending_seconds: Annotated[
        float, Field(ge=0, le=3600, description="202, and pending for so long")
    ] = 0
    retry_after_seconds: Annotated[float, Field(ge=0, le=3600)] = 1

    @model_validator(mode="after")
    def _refuse_more_than_all(self) -> Self:
        total = sum(rate for _, rate in self.fates())
        if total > 1:
            raise ValueError(
                f"reject, refuse, throttle, lost_request and lost_response rates sum to {total:g}: "
                "at most 1"
            )
        return self

    def fates(self) -> tuple[tuple[Fate, float], ...]:
        """Give the fates that exclude each other, with their rates."""
        return (
            (Fate.REJECTED, self.reject_rate),
            (Fate.REFUSED, self.refuse_rate),
            (Fate.THROTTLED, self.throttle_rate),
            (Fate.REQUEST_LOST, self.lost_request_rate),
            (Fate.RESPONSE_LOST, self.lost_response_rate),
        )


@dataclass(frozen=True, slots=True)
class Draw:
    """What was drawn for one request."""

    fate: Fate = Fate.ANSWERED
    wait_seconds: float = 0.0
    is_late: bool = False
    is_doubled: bool = False


_CALM = Draw()


class Chance:
    """Draws from a dial. The same seed and the same order of requests give the same fates."""

    def __init__(self, dial: Dial, seed: int | None) -> None:
        self.dial = dial
        self._random = Random(seed)  # noqa: S311 (a simulation, no secret)
        self._is_calm = dial == Dial(
            pending_seconds=dial.pending_seconds, retry_after_seconds=dial.retry_after_seconds
        )

    def draw(self) -> Draw:
        """Draw what becomes of a submission."""
        if self._is_calm:
            return _CALM
        is_late = self._happens(self.dial.late_rate)
        return Draw(
            fate=self._fate(),
            wait_seconds=self._latency_seconds() + (self.dial.late_seconds if is_late else 0),
            is_late=is_late,
            is_doubled=self._happens(self.dial.duplicate_rate),
        )

    def is_early_not_found(self) -> bool:
        """Draw whether a lookup denies what it knows."""
        return self._happens(self.dial.early_not_found_rate)

    def _fate(self) -> Fate:
        drawn = self._random.random()
        for fate, rate in self.dial.fates():
            if drawn < rate:
                return fate
            drawn -= rate
        return Fate.ANSWERED

    def _latency_seconds(self) -> float:
        spread = self.dial.jitter * self._random.uniform(-1, 1)
        return self.dial.latency_ms / 1000 * (1 + spread)

    def _happens(self, rate: float) -> bool:
        return rate > 0 and self._random.random() < rate

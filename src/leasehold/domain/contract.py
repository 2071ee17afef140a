"""Contract: one immutable version of a target's terms. Refuses terms that cannot work.

The terms are stored as one document. The database reads a few of them (its generated columns, by
name), executors read all of them, so the two sides cannot disagree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, ValidationError

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.gateway_terms import AnyGatewayTerms, GatewayTerms, Guarantee
from leasehold.domain.refused_terms import problems_of
from leasehold.domain.terms import Terms, matching
from leasehold.domain.timing import CLUSTER_LEASE_SECONDS, LEASE_SECONDS, OUTSIDE_LEASE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Scope: TypeAlias = Literal["item", "stream", "cluster"]
RetryPolicy: TypeAlias = Literal["max_attempts", "deadline", "one_shot"]
# What a terminal failure does to its stream: a person must resume it, it goes on, or it waits.
OnFailure: TypeAlias = Literal["block", "continue", "block_for"]
LeaseName: TypeAlias = Annotated[
    str,
    matching(
        r"[^/\x00-\x1f\x7f]{1,64}", "must be 1 to 64 characters without / or control characters"
    ),
]

ATTEMPTS_CEILING = 20
# The API counts a limited queue about once a second, up to its limit, so the limit bounds the cost.
PENDING_CEILING = 1_000_000
DEFAULT_LEASE_NAME = "submission-manager-executor"
_DAY_SECONDS = 86_400
_TEN_YEARS_SECONDS = 315_360_000
# The retry terms that the database reads, by the name that it knows them by.
_FLAT_RETRY_TERMS = {"policy": "retry_policy", "attempts_max": "attempts_max"}


class RetryTerms(Terms):
    """How often and after what delay a call that had no effect is retried."""

    place: ClassVar[tuple[str, ...]] = ("retry",)

    policy: RetryPolicy = "max_attempts"
    attempts_max: Annotated[int, Field(ge=1, le=ATTEMPTS_CEILING)] = Field(
        default_factory=lambda data: 1 if data.get("policy") == "one_shot" else ATTEMPTS_CEILING
    )
    first_seconds: Annotated[float, Field(ge=0, le=_DAY_SECONDS)] = 5.0
    factor: Annotated[float, Field(ge=1, le=10)] = 2.0
    longest_seconds: Annotated[float, Field(gt=0, le=30 * _DAY_SECONDS)] = 3600.0
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.2
    retry_after_seconds_max: Annotated[float, Field(gt=0, le=30 * _DAY_SECONDS)] = 3600.0

    def contradictions(self) -> Iterator[str]:
        """Return what cannot work: more attempts than the policy, a first delay above the last."""
        if self.policy == "one_shot" and self.attempts_max != 1:
            yield (f"attempts_max ({self.attempts_max}) must be 1 with policy one_shot")
        if self.first_seconds > self.longest_seconds:
            yield (
                f"first_seconds ({self.first_seconds:g}) must not exceed longest_seconds "
                f"({self.longest_seconds:g})"
            )


class Contract(Terms):
    """The terms under which the intents of a target are submitted.

    A contract that was published in plain SQL may have no `gateway`: then no instance submits its
    intents, but another program may.
    `version` is None until the contract is published.
    """

    placeholders: ClassVar[Mapping[str, object]] = {
        "target": "placeholder",
        "scope": "item",
        "guarantee": "keyed",
    }
    assigned: ClassVar[frozenset[str]] = frozenset({"target", "version"})

    target: Annotated[
        str,
        matching(
            r"[a-z0-9][a-z0-9._-]{0,63}",
            "must be 1 to 64 of a-z 0-9 . _ - and start with a letter or digit",
        ),
    ]
    version: Annotated[int, Field(ge=1)] | None = None
    scope: Scope
    guarantee: Guarantee
    gateway: AnyGatewayTerms | None = None
    lease_name: LeaseName | None = Field(
        default_factory=lambda data: DEFAULT_LEASE_NAME if data.get("scope") == "cluster" else None
    )
    retry: RetryTerms = RetryTerms()
    deadline_seconds: Annotated[float, Field(gt=0, le=_TEN_YEARS_SECONDS)] | None = None
    lease_seconds: Annotated[float, Field(ge=1, le=3600)] = Field(
        default_factory=lambda data: _lease_default(data.get("gateway"))
    )
    call_timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 25.0
    connect_timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 5.0
    quarantine_seconds: Annotated[float, Field(gt=0, le=30 * _DAY_SECONDS)] = Field(
        default_factory=lambda data: _quarantine_least(
            # The leader's lease is a setting of the instance; this is its default.
            max(
                data.get("lease_seconds", LEASE_SECONDS),
                CLUSTER_LEASE_SECONDS if data.get("scope") == "cluster" else 0,
            ),
            data.get("call_timeout_seconds", 25.0),
        )
    )
    key_window_seconds: Annotated[float, Field(gt=0, le=_TEN_YEARS_SECONDS)] | None = None
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 10
    rate_per_second: Annotated[float, Field(gt=0, le=100_000)] | None = None
    pending_max: Annotated[int, Field(ge=1, le=PENDING_CEILING)] | None = None
    priority: Annotated[int, Field(ge=0, le=3)] = 1
    on_failure: OnFailure | None = Field(
        default_factory=lambda data: "block" if data.get("scope") == "stream" else None
    )
    block_seconds: Annotated[float, Field(gt=0, le=30 * _DAY_SECONDS)] | None = None
    confirm_within_seconds: Annotated[float, Field(gt=0, le=30 * _DAY_SECONDS)] | None = None
    pipeline_max: Annotated[int, Field(ge=1, le=100)] | None = None

    @property
    def can_look_up(self) -> bool:
        """Whether the gateway can look up the outcome of a key."""
        return self.guarantee == "lookup" if self.gateway is None else self.gateway.can_look_up

    @property
    def batch_max(self) -> int:
        """The most consecutive intents of a stream in one submission."""
        return self.gateway.batch_max if self.gateway and self.scope == "stream" else 1

    @property
    def confirms_later(self) -> bool:
        """Whether the gateway may take several submissions now and confirm them later."""
        return self.gateway is not None and self.gateway.confirms_later

    @property
    def calls_outside(self) -> bool:
        """Whether a call goes to somebody else's service, not to a function of the user's."""
        return self.gateway is not None and self.gateway.calls_outside

    @property
    def unexecutable_reason(self) -> str | None:
        """Why no instance submits the target's intents; None if one can."""
        return "its contract names no gateway" if self.gateway is None else None

    @property
    def must_begin(self) -> bool:
        """Whether the call must be marked as begun in the database before it is made."""
        return self.scope == "stream" or self.guarantee in {"lookup", "blind"}

    def terms(self) -> dict[str, Any]:
        """Return the terms as published, with those that the database reads at the top level."""
        terms = self.model_dump(mode="json", exclude={"target", "version"}, exclude_none=True)
        retry: dict[str, Any] = terms["retry"]
        flat = {name: retry.pop(field) for field, name in _FLAT_RETRY_TERMS.items()}
        # The database refuses terms that say nothing about a gateway.
        gateway = terms.get("gateway")
        flat |= {"can_look_up": self.can_look_up, "gateway": gateway}
        return terms | flat | ({"batch_max": self.batch_max} if self.batch_max > 1 else {})

    @classmethod
    def from_terms(cls, target: str, version: int, terms: Mapping[str, Any]) -> Contract:
        """Read published terms. Missing terms have their defaults.

        Raises InvalidArgument for a term that this release does not know: ignoring it could break a
        promise.
        """
        given = dict(terms)
        can_look_up = given.pop("can_look_up", None)
        batch_max = given.pop("batch_max", None)
        flat = {
            field: given.pop(name) for field, name in _FLAT_RETRY_TERMS.items() if name in given
        }
        retry = given.get("retry", {})
        if isinstance(retry, dict):  # else the model refuses it
            given["retry"] = {**retry, **flat}
        try:
            contract = cls.model_validate({**given, "target": target, "version": version})
        except ValidationError as error:
            why = "; ".join(str(problem) for problem in problems_of(cls, error))
            raise InvalidArgument(_unreadable(target, version, why)) from None
        if can_look_up not in (None, contract.can_look_up):
            why = f"can_look_up is {can_look_up}, but the gateway's is {contract.can_look_up}"
            raise InvalidArgument(_unreadable(target, version, why))
        if batch_max not in (None, contract.batch_max):
            why = f"batch_max is {batch_max}, but the gateway's is {contract.batch_max}"
            raise InvalidArgument(_unreadable(target, version, why))
        return contract

    def contradictions(self) -> Iterator[str]:
        """Return what cannot work: timings, promises that the gateway cannot keep, streams."""
        yield from self._impossible_timings()
        yield from self._impossible_promises()
        yield from self._contradictions_of_streams()

    def _impossible_timings(self) -> Iterator[str]:
        lease, call = self.lease_seconds, self.call_timeout_seconds
        if call >= lease:
            yield (
                f"call_timeout_seconds ({call:g}) must be less than lease_seconds ({lease:g}): "
                "a call must end while its lease is valid, even if every renewal fails"
            )
        if self.connect_timeout_seconds >= call:
            yield (
                f"connect_timeout_seconds ({self.connect_timeout_seconds:g}) must be less than "
                f"call_timeout_seconds ({call:g}): connecting is part of the call"
            )
        if self.quarantine_seconds < _quarantine_least(lease, call):
            yield (
                f"quarantine_seconds ({self.quarantine_seconds:g}) must be at least 2 * "
                f"lease_seconds ({2 * lease:g}) and call_timeout_seconds ({call:g}): until then "
                'a paused executor may still send, so "not found" proves nothing'
            )
        if self.key_window_seconds is not None and self.key_window_seconds <= 2 * lease:
            yield (
                f"key_window_seconds ({self.key_window_seconds:g}) must exceed 2 * lease_seconds "
                f"({2 * lease:g}): the call of a dead instance is repeated under a new lease after "
                "its own has expired, and the gateway must still know the key then"
            )

    def _impossible_promises(self) -> Iterator[str]:
        gateway = self.gateway
        if self.retry.policy == "deadline" and self.deadline_seconds is None:
            yield "deadline_seconds is required with retry.policy deadline"
        if self.key_window_seconds is not None and self.guarantee != "keyed":
            yield f"key_window_seconds is only for guarantee keyed, not {self.guarantee}"
        if (self.scope == "cluster") != (self.lease_name is not None):
            yield "lease_name is only for scope cluster: items and streams have their own leases"
        if self.guarantee == "lookup" and not self.can_look_up:
            advice = GatewayTerms.lookup_advice if gateway is None else gateway.lookup_advice
            yield f"guarantee lookup needs a gateway with a lookup: {advice}"
        if gateway is not None and self.guarantee in gateway.refused_guarantees:
            yield gateway.refused_guarantees[self.guarantee]
        if self.guarantee == "blind" and self.can_look_up:
            yield (
                "guarantee blind is only for a gateway without a lookup: use guarantee lookup, or "
                "remove the lookup"
            )
        if self.confirm_within_seconds is not None and not self.can_look_up:
            yield (
                "confirm_within_seconds needs a gateway with a lookup: without one nobody asks "
                "whether a submission is confirmed"
            )

    def _contradictions_of_streams(self) -> Iterator[str]:
        if self.scope != "stream" and self.on_failure is not None:
            yield f"on_failure is only for scope stream, not {self.scope}"
        if (self.on_failure == "block_for") != (self.block_seconds is not None):
            yield "block_seconds is required with on_failure block_for, and only then"
        if self.scope != "stream" and self.pipeline_max is not None:
            yield f"pipeline_max is only for scope stream, not {self.scope}"
        elif self.pipeline_max is not None and self.pipeline_max > 1 and not self.can_look_up:
            yield (
                f"pipeline_max ({self.pipeline_max}) needs a gateway with a lookup: the next "
                "intent starts while others await their confirmation, and somebody must ask"
            )
        together = 1 if self.gateway is None else self.gateway.batch_max
        if self.scope != "stream" and together > 1:
            yield (
                f"submissions_max ({together}) is only for scope stream, not {self.scope}: several "
                "intents in one call must be consecutive ones of a stream"
            )
        pipeline = self.pipeline_max or 1
        if self.scope == "stream" and together > pipeline and self.confirms_later:
            yield (
                f"submissions_max ({together}) must not exceed pipeline_max ({pipeline}) where the "
                "gateway confirms later: all intents of one call await their confirmation at once"
                f"{self.gateway.confirmation_advice if self.gateway else ''}"
            )


def _lease_default(gateway: GatewayTerms | None) -> float:
    is_outside = gateway is not None and gateway.calls_outside
    return OUTSIDE_LEASE_SECONDS if is_outside else LEASE_SECONDS


def _quarantine_least(lease_seconds: float, call_timeout_seconds: float) -> float:
    return max(2 * lease_seconds, call_timeout_seconds)


def _unreadable(target: str, version: int, why: str) -> str:
    return f"this release cannot read the contract of {target}, version {version}: {why}"

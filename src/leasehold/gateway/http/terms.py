"""The terms of kind http: which URLs are called, and what each status means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, field_validator

from leasehold.domain.terms import matching
from leasehold.gateway.http.connection_terms import (
    KEY_PLACE,
    ConnectionTerms,
    EnvironmentName,
    require_address,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def _status_pattern(given: Any) -> Any:  # noqa: ANN401 (pydantic validates the rest)
    """Accept 429 as well as "429"."""
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else given


StatusPattern: TypeAlias = Annotated[
    str,
    BeforeValidator(_status_pattern),
    matching(r"[1-5](xx|[0-9][0-9])", "must be a status such as 429, or a class such as 4xx"),
]
StatusPatterns: TypeAlias = Annotated[
    tuple[StatusPattern, ...], Field(strict=False, max_length=100)
]

ResponseClass: TypeAlias = Literal[
    "accepted", "rejected", "retryable", "saturated", "submitted", "unknown", "deferred"
]
_CLASSES: tuple[ResponseClass, ...] = (
    "accepted",
    "rejected",
    "retryable",
    "saturated",
    "submitted",
    "unknown",
    "deferred",
)
# They refuse the sender, not the intent: its credentials, or its right to submit at all.
_REFUSING_THE_SENDER = ("401", "403", "407")


def _not_named(data: dict[str, Any], statuses: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the statuses that no list in the terms names."""
    lists: list[tuple[str, ...]] = [data.get(f"{one}_statuses", ()) for one in _CLASSES]
    return tuple(one for one in statuses if not any(one in patterns for patterns in lists))


class HttpTerms(ConnectionTerms):
    """A gateway that is called by HTTP POST, and by GET for lookups if it has a `lookup_url`."""

    lookup_advice: ClassVar[str] = "set lookup_url"
    confirmation_advice: ClassVar[str] = "; if it never does, set submitted_statuses = []"

    kind: Literal["http"] = "http"
    lookup_url: Annotated[str, Field(max_length=2000)] | None = None
    signing_secret_env: EnvironmentName | None = None
    accepted_statuses: StatusPatterns = ("2xx",)
    rejected_statuses: StatusPatterns = ("4xx",)
    # These reject the request before it has an effect, and they are temporary.
    retryable_statuses: StatusPatterns = ("408", "425")
    saturated_statuses: StatusPatterns = ("429", "503")
    # 202 announces a later answer. Without a lookup nobody could ask for it, so it means accepted.
    submitted_statuses: StatusPatterns = Field(
        default_factory=lambda data: ("202",) if data.get("lookup_url") else ()
    )
    # 409 may mean "in progress" or "already exists".
    unknown_statuses: StatusPatterns = ("409",)
    # No effect, and no verdict about the intent. What another list names keeps that meaning.
    deferred_statuses: StatusPatterns = Field(
        default_factory=lambda data: _not_named(data, _REFUSING_THE_SENDER)
    )
    submissions_max: Annotated[int, Field(ge=1, le=100)] = 1

    def classify(self, status: int) -> ResponseClass:
        """Return what a status means. An exact status takes precedence over its class."""
        for pattern in (str(status), f"{status // 100}xx"):
            for response_class in _CLASSES:
                if pattern in self.patterns_of(response_class):
                    return response_class
        return "unknown"

    def patterns_of(self, response_class: ResponseClass) -> tuple[str, ...]:
        """Return the status patterns of a response class."""
        patterns: tuple[str, ...] = getattr(self, f"{response_class}_statuses")
        return patterns

    @property
    def urls(self) -> tuple[str, ...]:
        """The URL of submissions, and that of lookups if there is one."""
        return (self.url,) if self.lookup_url is None else (self.url, self.lookup_url)

    @property
    def can_look_up(self) -> bool:
        """Whether the gateway can look up the outcome of a key."""
        return self.lookup_url is not None

    @property
    def batch_max(self) -> int:
        """The most consecutive intents of a stream in one POST."""
        return self.submissions_max

    @property
    def signing_variable(self) -> str | None:
        """The variable of the secret that signs each call, if it is signed."""
        return self.signing_secret_env

    @property
    def confirms_later(self) -> bool:
        """Whether a submission may end as Submitted."""
        return bool(self.submitted_statuses)

    @field_validator("lookup_url")
    @classmethod
    def _validate_lookup_url(cls, url: str | None) -> str | None:
        if url is not None:
            require_address(url)
        return url

    def contradictions(self) -> Iterator[str]:
        """Return what cannot work: addresses without a key, a status with two meanings."""
        yield from super().contradictions()
        if KEY_PLACE in self.url:
            yield f"url must not contain {KEY_PLACE}: the key is sent in a header"
        if self.lookup_url is not None and KEY_PLACE not in self.lookup_url:
            yield f"lookup_url must contain {KEY_PLACE}, which is replaced by the submission key"
        meanings: dict[str, str] = {}
        for response_class in _CLASSES:
            for pattern in self.patterns_of(response_class):
                other = meanings.setdefault(pattern, response_class)
                if other != response_class:
                    yield (
                        f"{pattern} is in {other}_statuses and in {response_class}_statuses: "
                        "a status can have only one meaning"
                    )
        if self.submitted_statuses and self.lookup_url is None:
            yield "submitted_statuses need a lookup_url, to ask for the outcome"

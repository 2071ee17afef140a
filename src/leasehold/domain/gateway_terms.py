"""The gateway terms of a contract: which gateway makes the calls, and how to read its responses.

Every reader can see a contract, so it never contains a secret, only the names of environment
variables that do.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from leasehold.domain.address import classify_address
from leasehold.domain.contract_problems import refuse_all
from leasehold.domain.secret_text import is_variable_name, may_be_secret

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY_PLACE = "{key}"

_NAMES = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HOST = re.compile(r"(\*\.)?[a-z0-9.:_-]{1,253}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Headers that the gateway sets itself. Another value could break a promise.
_OWN_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "fencing-token",
        "host",
        "idempotency-key",
        "traceparent",
        "tracestate",
        "transfer-encoding",
        "webhook-id",
        "webhook-signature",
        "webhook-timestamp",
    }
)
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key"})


class Terms(BaseModel):
    """The base class of all contract terms: immutable, without unknown fields.

    Strict: "30" is not a number, and true is not 1. Errors never show the given value.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        validate_default=True,
    )


def matching(pattern: str, allowed: str) -> AfterValidator:
    """Accept text that matches the whole pattern; the error message is `allowed`."""
    expression = re.compile(pattern)

    def check(text: str) -> str:
        if not expression.fullmatch(text):
            raise ValueError(allowed)
        return text

    return AfterValidator(check)


def _variable_name(text: str) -> str:
    if not is_variable_name(text):
        raise ValueError(
            "must be the name of an environment variable, in capitals such as SMS_TOKEN, not the "
            "secret itself"
        )
    return text


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
EnvironmentName: TypeAlias = Annotated[str, AfterValidator(_variable_name)]
FunctionPath: TypeAlias = Annotated[
    str,
    matching(rf"{_NAMES}:{_NAMES}", "must be an import path such as package.module:function"),
    Field(max_length=255),
]

ResponseClass: TypeAlias = Literal[
    "accepted", "rejected", "retryable", "saturated", "submitted", "unknown"
]
_CLASSES: tuple[ResponseClass, ...] = (
    "accepted",
    "rejected",
    "retryable",
    "saturated",
    "submitted",
    "unknown",
)


class HttpTerms(Terms):
    """A gateway that is called by HTTP POST, and by GET for lookups if it has a `lookup_url`."""

    kind: Literal["http"] = "http"
    url: Annotated[str, Field(max_length=2000)]
    lookup_url: Annotated[str, Field(max_length=2000)] | None = None
    headers: Annotated[dict[str, str], Field(max_length=50)] = {}
    secret_headers: Annotated[dict[str, EnvironmentName], Field(max_length=50)] = {}
    signing_secret_env: EnvironmentName | None = None
    allow_hosts: Annotated[tuple[str, ...], Field(strict=False, max_length=50)] = ()
    allow_private: bool = False
    response_bytes_max: Annotated[int, Field(ge=1, le=16_777_216)] = 65_536
    accepted_statuses: StatusPatterns = ("2xx",)
    rejected_statuses: StatusPatterns = ("4xx",)
    # These reject the request before it has an effect, and they are temporary.
    retryable_statuses: StatusPatterns = ("401", "407", "408", "425")
    saturated_statuses: StatusPatterns = ("429", "503")
    # 202 announces a later answer. Without a lookup nobody could ask for it, so it means accepted.
    submitted_statuses: StatusPatterns = Field(
        default_factory=lambda data: ("202",) if data.get("lookup_url") else ()
    )
    # 409 may mean "in progress" or "already exists".
    unknown_statuses: StatusPatterns = ("409",)

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
    def can_look_up(self) -> bool:
        """Whether the gateway can look up the outcome of a key."""
        return self.lookup_url is not None

    @property
    def hosts_in_clear(self) -> frozenset[str]:
        """The hosts that are called over plain http."""
        urls = [url for url in (self.url, self.lookup_url) if url and url.startswith("http:")]
        return frozenset(urlsplit(url).hostname or "" for url in urls)

    @field_validator("url", "lookup_url")
    @classmethod
    def _validate_address(cls, url: str | None) -> str | None:
        if url is not None:
            _require_address(url)
        return url

    @field_validator("headers", "secret_headers", mode="before")
    @classmethod
    def _refuse_secrets_as_names(cls, headers: Any) -> Any:  # noqa: ANN401 (as above)
        # First, because other errors show the name.
        if any(may_be_secret(str(name)) for name in _members(headers)):
            raise ValueError(
                "the name of a header looks like a secret: write the header first, then the name "
                "of the environment variable that holds its value"
            )
        return headers

    @field_validator("headers", "secret_headers")
    @classmethod
    def _validate_header_names(cls, headers: dict[str, str]) -> dict[str, str]:
        for name in headers:
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError("a header name must consist of letters, digits and hyphens")
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"{name} is set by the gateway itself; remove it")
        return headers

    @field_validator("headers")
    @classmethod
    def _refuse_visible_secrets(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if name.lower() in _SECRET_HEADERS:
                raise ValueError(
                    f"{name} is a secret, but every reader sees the contract: put the name of an "
                    "environment variable in secret_headers"
                )
            if _CONTROL.search(value):
                raise ValueError(f"the value of {name} must not contain control characters")
        return headers

    @field_validator("allow_hosts")
    @classmethod
    def _normalize_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        lowered = tuple(host.lower() for host in hosts)
        if not all(_HOST.fullmatch(host) for host in lowered):
            raise ValueError(
                "each must be a host name or address without a port, or such as *.internal"
            )
        return lowered

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        refuse_all([*self._broken_addresses(), *self._broken_headers(), *self._broken_statuses()])
        return self

    def _broken_addresses(self) -> Iterator[str]:
        if KEY_PLACE in self.url:
            yield f"url must not contain {KEY_PLACE}: the key is sent in a header"
        if self.lookup_url is not None and KEY_PLACE not in self.lookup_url:
            yield f"lookup_url must contain {KEY_PLACE}, which is replaced by the submission key"

    def _broken_headers(self) -> Iterator[str]:
        names = [name.lower() for name in (*self.headers, *self.secret_headers)]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"the header {name} is given twice, in headers or secret_headers"
        if self.secret_headers and not all(map(self._is_internal, self.hosts_in_clear)):
            yield (
                "secret_headers need https: plain http would expose them. Plain http is only for a "
                "host in your own network: list its name in allow_hosts, or give its private "
                "address and set allow_private"
            )

    def _is_internal(self, host: str) -> bool:
        """Whether the contract says that a host is in the user's own network.

        A listed name may still resolve to a public address; the gateway checks that before a call.
        """
        is_listed = host in self.allow_hosts or any(
            one.startswith("*.") and host.endswith(one[1:]) for one in self.allow_hosts
        )
        try:
            address = ip_address(host)
        except ValueError:
            return is_listed or (self.allow_private and host == "localhost")
        return (is_listed or self.allow_private) and classify_address(address) is not None

    def _broken_statuses(self) -> Iterator[str]:
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


class PythonTerms(Terms):
    """A gateway that is an async function, given by its import path."""

    kind: Literal["python"] = "python"
    function: FunctionPath
    lookup: FunctionPath | None = None

    @property
    def can_look_up(self) -> bool:
        """Whether the gateway can look up the outcome of a key."""
        return self.lookup is not None


GatewayTerms: TypeAlias = Annotated[HttpTerms | PythonTerms, Field(discriminator="kind")]


def _members(given: object) -> dict[Any, Any]:
    """Return what was given for a table; empty if it is none."""
    return cast("dict[Any, Any]", given) if isinstance(given, dict) else {}


def _require_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("must be an address such as https://api.example.com/send") from None
    if not url.startswith(("http://", "https://")) or not parts.hostname or port == 0:
        raise ValueError("must be an address such as https://api.example.com/send")
    if "@" in parts.netloc:
        raise ValueError("must not contain a user or password: use secret_headers")
    if parts.fragment or _CONTROL.search(url) or " " in url:
        raise ValueError("must not contain spaces, control characters or a #fragment")
    if re.search(r"[{}]", url.replace(KEY_PLACE, "")) or KEY_PLACE in parts.netloc:
        raise ValueError(f"may contain {KEY_PLACE} only after the host, and no other braces")

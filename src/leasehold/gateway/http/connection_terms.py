"""The terms of a connection: which server is called over HTTP, and what each call carries.

Every reader can see a contract, so it never contains a secret, only the names of environment
variables that do.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator

from leasehold.domain.address import classify_address
from leasehold.domain.gateway_terms import GatewayTerms
from leasehold.domain.secret_names import is_secret_name, is_variable_name, may_be_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

KEY_PLACE = "{key}"

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HOST = re.compile(r"(\*\.)?[a-z0-9._-]{1,253}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Headers that the gateway sets itself. Another value could break a promise.
_OWN_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "fencing-token",
        "host",
        "idempotency-key",
        "leasehold-batch-id",
        "traceparent",
        "tracestate",
        "transfer-encoding",
        "webhook-id",
        "webhook-signature",
        "webhook-timestamp",
    }
)


def _variable_name(text: str) -> str:
    if not is_variable_name(text):
        raise ValueError(
            "must be the name of an environment variable, in capitals such as SMS_TOKEN, not the "
            "secret itself"
        )
    return text


def _header_name(name: str) -> str:
    if may_be_secret(name):  # first, because other errors show the name
        raise ValueError("must be the name of a header, but looks like a secret")
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("a header name must consist of letters, digits and hyphens")
    if name.lower() in _OWN_HEADERS:
        raise ValueError(f"{name} is set by the gateway itself; remove it")
    return name


EnvironmentName: TypeAlias = Annotated[str, AfterValidator(_variable_name)]
HeaderName: TypeAlias = Annotated[str, AfterValidator(_header_name), Field(max_length=128)]


class ConnectionTerms(GatewayTerms):
    """A server that is called over HTTP: where it is, and the headers of each call.

    `stream_header` names the header that tells the intent's stream; without one it is not told.
    """

    placeholders: ClassVar[Mapping[str, object]] = {"url": "https://placeholder.invalid/"}

    url: Annotated[str, Field(max_length=2000)]
    headers: dict[str, str] = Field(default={}, max_length=50)
    secret_headers: dict[str, EnvironmentName] = Field(default={}, max_length=50)
    stream_header: HeaderName | None = None
    allow_hosts: Annotated[tuple[str, ...], Field(strict=False, max_length=50)] = ()
    allow_private: bool = False
    response_bytes_max: Annotated[int, Field(ge=1, le=16_777_216)] = 65_536

    @property
    def urls(self) -> tuple[str, ...]:
        """Everything that is called."""
        return (self.url,)

    @property
    def destination(self) -> str:
        """The URL of submissions."""
        return self.url

    @property
    def signing_variable(self) -> str | None:
        """The variable of the secret that signs each call, if it is signed."""
        return None

    @property
    def secret_variables(self) -> Iterable[str]:
        """The variables of the secret headers and of the signature."""
        return filter(None, (*self.secret_headers.values(), self.signing_variable))

    @property
    def hosts_in_clear(self) -> frozenset[str]:
        """The hosts that are called over plain http."""
        urls = [url for url in self.urls if url.startswith("http:")]
        return frozenset(urlsplit(url).hostname or "" for url in urls)

    @field_validator("url")
    @classmethod
    def _validate_url(cls, url: str) -> str:
        require_address(url)
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
            _header_name(name)
        return headers

    @field_validator("headers")
    @classmethod
    def _refuse_visible_secrets(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if is_secret_name(name):
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
        if not all(map(_is_host, lowered)):
            raise ValueError(
                "each must be a host name or address without a port, or such as *.internal"
            )
        return lowered

    def contradictions(self) -> Iterator[str]:
        """Return what cannot work: a header with two values, a secret over plain http."""
        told = () if self.stream_header is None else (self.stream_header,)
        names = [name.lower() for name in (*self.headers, *self.secret_headers, *told)]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"the header {name} is given twice, in headers, secret_headers or stream_header"
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


def _is_host(host: str) -> bool:
    """Return whether this is a name, a name pattern or an address; only addresses have colons."""
    if ":" not in host:
        return _HOST.fullmatch(host) is not None
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _members(given: object) -> dict[Any, Any]:
    """Return what was given for a table; empty if it is none."""
    return cast("dict[Any, Any]", given) if isinstance(given, dict) else {}


def require_address(url: str) -> None:
    """Raise ValueError unless a gateway could call this URL."""
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

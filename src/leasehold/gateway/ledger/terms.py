"""The terms of kind ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field

from leasehold.gateway.http.connection_terms import KEY_PLACE, ConnectionTerms
from leasehold.gateway.http.terms import HttpTerms, ResponseClass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leasehold.domain.gateway_terms import Guarantee

_DEFAULTS = HttpTerms(url="https://defaults.invalid/")


class LedgerTerms(ConnectionTerms):
    """The REST endpoint of a distributed ledger, which takes signed batches and tells their status.

    `url` is what `/batches` and `/batch_statuses` are appended to.
    """

    refused_guarantees: ClassVar[Mapping[Guarantee, str]] = {
        "fenced": (
            "guarantee fenced is not for kind ledger, which knows no fencing tokens: use lookup, "
            "or keyed if the ledger refuses a batch that it already has"
        )
    }

    kind: Literal["ledger"] = "ledger"
    response_bytes_max: Annotated[int, Field(ge=1, le=16_777_216)] = 1_048_576
    ask_after_seconds: Annotated[float, Field(gt=0, le=3600)] = 5.0
    # An id has 128 characters, and servers refuse a request line of more than 8 kB.
    lookups_max: Annotated[int, Field(ge=1, le=50)] = 50
    submissions_max: Annotated[int, Field(ge=1, le=50)] = 1

    @property
    def can_look_up(self) -> bool:
        """Whether the gateway can look up the outcome of a key: always."""
        return True

    @property
    def confirms_later(self) -> bool:
        """Whether a submission may end as Submitted: always."""
        return True

    @property
    def batch_max(self) -> int:
        """The most consecutive batches of a stream in one request."""
        return self.submissions_max

    def classify(self, status: int) -> ResponseClass:
        """Return what a status means: as with kind http, but a ledger decides later."""
        return "submitted" if status // 100 == 2 else _DEFAULTS.classify(status)

    def contradictions(self) -> Iterator[str]:
        """Return what cannot work: a URL to which no path can be appended."""
        yield from super().contradictions()
        if KEY_PLACE in self.url or urlsplit(self.url).query or self.url.endswith("?"):
            yield (
                "url must be the address to which /batches and /batch_statuses are appended, "
                "without a query"
            )

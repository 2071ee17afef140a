"""The gateway terms of a contract: what every kind of gateway has, and the kinds that are known.

Each kind is a package in `leasehold.gateway`, which registers its terms here. So whoever parses
contracts imports `leasehold.gateway` first.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, Union, cast

from pydantic import BeforeValidator, Field, SerializeAsAny, TypeAdapter, ValidationInfo

from leasehold.domain.terms import Terms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Guarantee: TypeAlias = Literal["keyed", "fenced", "lookup", "blind"]


class GatewayTerms(Terms):
    """The settings of one kind of gateway, and what they let a contract promise.

    Each kind narrows `kind` to a Literal, its name, which is also the default.
    """

    place: ClassVar[tuple[str, ...]] = ("gateway",)
    # Whether a call goes to somebody else's service, not to a function of the user's.
    calls_outside: ClassVar[bool] = True
    # How to give a gateway of this kind a lookup, and how to do without later confirmations.
    lookup_advice: ClassVar[str] = "use another kind"
    confirmation_advice: ClassVar[str] = ""
    # The guarantees that this kind can never give, each with the reason and what to do.
    refused_guarantees: ClassVar[Mapping[Guarantee, str]] = {}

    kind: Any  # as said above: only the kinds know their names

    @property
    def can_look_up(self) -> bool:
        """Whether the gateway can look up the outcome of a key."""
        return False

    @property
    def confirms_later(self) -> bool:
        """Whether a submission may end as Submitted."""
        return False

    @property
    def batch_max(self) -> int:
        """The most consecutive intents of a stream in one submission."""
        return 1

    @property
    def destination(self) -> str:
        """What is called, as people read it."""
        return ""

    @property
    def secret_variables(self) -> Iterable[str]:
        """The environment variables whose values must reach neither the ledger nor a log."""
        return ()


_kinds: dict[str, type[GatewayTerms]] = {}


def register_terms(terms: type[GatewayTerms]) -> str:
    """Make a kind of gateway known to contracts. Return its name."""
    kind: str = terms.model_fields["kind"].default
    if _kinds.setdefault(kind, terms) is not terms:
        raise ValueError(f"two kinds of gateways are named {kind}: rename one of them")
    _union.cache_clear()
    return kind


def known_kinds() -> Mapping[str, type[GatewayTerms]]:
    """Return the terms of every registered kind, by name."""
    return dict(sorted(_kinds.items()))


@cache
def _union() -> TypeAdapter[Any]:
    if not _kinds:
        raise RuntimeError("no kind of gateway is registered: import leasehold.gateway first")
    # Types made at run time, which no checker can read.
    union, annotated = cast("Any", Union), cast("Any", Annotated)
    kinds = union[tuple(known_kinds().values())]
    return TypeAdapter(annotated[kinds, Field(discriminator="kind")])


def _parse(given: object, info: ValidationInfo) -> object:
    return None if given is None else _union().validate_python(given, context=info.context)


# The terms of whichever kind the value names.
AnyGatewayTerms: TypeAlias = Annotated[SerializeAsAny[GatewayTerms], BeforeValidator(_parse)]

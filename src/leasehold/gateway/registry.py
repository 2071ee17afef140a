"""The kinds of gateways. A kind is one package, which registers itself when it is imported.

`leasehold.gateway` imports the kinds of this release, one line for each. A program that brings a
kind of its own calls `register` before it reads contracts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from leasehold.domain.contract import Contract
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.gateway_terms import register_terms
from leasehold.gateway.errors import GatewayMisconfigured
from leasehold.gateway.sanitize import Sanitizer
from leasehold.observe.logs import hide_in_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from leasehold.domain.gateway_terms import GatewayTerms
    from leasehold.gateway.protocol import Gateway
    from leasehold.gateway.python.gateway import Threads

# `Contract` stands here for programs that parse contracts: with it come the kinds of gateways.
__all__ = [
    "Contract",
    "GatewayKind",
    "Surroundings",
    "address_problems",
    "open_gateway",
    "register",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an instance gives to a gateway that it opens.

    `sanitizer` knows the secrets of the gateway's terms. `threads` run plain functions; without
    them a gateway makes its own.
    """

    environment: Mapping[str, str]
    sanitizer: Sanitizer
    threads: Threads | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayKind:
    """One kind of gateway: its terms, with what they may promise and which fields are secret, and
    how it is opened.

    - `open` connects to nothing yet, and raises GatewayMisconfigured, which says what to change. It
      imports what only calls need.
    - `secrets` are secrets of the environment beyond those that the terms name.
    - `address_problems` returns what every instance would refuse about terms as they were written:
      the name of each setting and the reason.
    """

    terms: type[GatewayTerms]
    open: Callable[[Contract, Surroundings], Gateway]
    secrets: Callable[[Mapping[str, str]], Iterable[str]] = lambda _: ()
    address_problems: Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]] = lambda _: ()


_kinds: dict[str, GatewayKind] = {}


def register(kind: GatewayKind) -> None:
    """Make a kind known to contracts, instances and commands."""
    _kinds[register_terms(kind.terms)] = kind


def open_gateway(
    contract: Contract,
    *,
    environment: Mapping[str, str],
    secrets: Collection[str] = (),
    threads: Threads | None = None,
) -> Gateway:
    """Create the gateway of a contract. Connects to nothing yet.

    `environment` holds the secrets that the contract names; `secrets` are others that must not get
    to the ledger; `threads` run plain functions. Raises GatewayMisconfigured, which says what to
    change.
    """
    terms = contract.gateway
    if terms is None:
        raise GatewayMisconfigured(
            f"the contract of {contract.target} names no gateway: publish one that does"
        )
    kind = _kinds[terms.kind]
    named = [environment.get(name, "").strip() for name in terms.secret_variables]
    known = [*filter(None, named), *kind.secrets(environment)]
    hide_in_logs(known)
    sanitizer = Sanitizer([*known, *secrets])
    try:
        return kind.open(
            contract, Surroundings(environment=environment, sanitizer=sanitizer, threads=threads)
        )
    except LeaseholdError:
        raise
    except Exception as error:  # noqa: BLE001 (one target's code must not stop the others)
        # Not chained, because the error may contain a secret.
        raise GatewayMisconfigured(
            f"the gateway of {contract.target} cannot be opened: {sanitizer.error(error)}"
        ) from None


def address_problems(given: object) -> Iterator[tuple[str, str]]:
    """Return what every instance would refuse about the gateway as it was written.

    Malformed settings are skipped: the contract refuses them.
    """
    written = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    kind = _kinds.get(str(written.get("kind")))
    if kind is not None:
        yield from kind.address_problems(written)

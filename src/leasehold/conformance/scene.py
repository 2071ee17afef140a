"""The scene of a case: two processes at one database, and what a case does with them."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, TypeAlias

from leasehold.domain.errors import LeaseLost
from leasehold.domain.intent import NewIntent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import Lease
    from leasehold.store.database import Database
    from leasehold.store.protocol import Store

# Nothing expires during a case.
LEASE_SECONDS = 600.0


class NotConforming(Exception):
    """The store does something else than it must."""


class Scene:
    """Two processes, `one` and `other`, and a target of scope `cluster` with its lease."""

    def __init__(self, one: Database, other: Database) -> None:
        self.one: Store = one.store
        self.other: Store = other.store
        self.lease_name = f"conformance-{secrets.token_hex(4)}"
        self.target = self.lease_name

    async def publish(self) -> None:
        """Publish the target, whose intents are written under the lease."""
        terms = {
            "scope": "cluster",
            "guarantee": "keyed",
            "gateway": None,
            "lease_name": self.lease_name,
        }
        await self.one.publish_contract(self.target, terms, "conformance")

    async def enqueue(self, count: int = 1) -> list[IntentId]:
        """Enqueue intents of the target."""
        return [
            await self.one.enqueue_intent(NewIntent(target=self.target, payload={"number": number}))
            for number in range(count)
        ]

    async def acquire(self, store: Store, holder_id: str) -> Lease:
        """Acquire the lease, which must be free."""
        found = await store.acquire_lease(self.lease_name, holder_id, LEASE_SECONDS)
        require(found.is_ours, f"a free lease was not granted: {found.lease}")
        return found.lease

    async def replaced(self) -> tuple[Lease, Lease]:
        """Return the lease of `one`, who has lost it, and that of `other`, who has it now."""
        former = await self.acquire(self.one, "one")
        require(await self.one.release_lease(former), "the holder could not release its lease")
        return former, await self.acquire(self.other, "other")


Case: TypeAlias = "Callable[[Scene], Awaitable[None]]"


def require(is_so: bool, otherwise: str) -> None:
    """Raise NotConforming unless it is so."""
    if not is_so:
        raise NotConforming(otherwise)


async def require_lost(what: str, call: Awaitable[object]) -> None:
    """Raise NotConforming unless the call raises LeaseLost."""
    try:
        answer = await call
    except LeaseLost:
        return
    raise NotConforming(f"{what} under a lost lease was accepted: {answer}")

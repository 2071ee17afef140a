"""The scene of a case: two processes at one database, and what a case does with them."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, Unpack, cast

from leasehold.conformance.workers import ItemWorker, LeaderWorker, StreamWorker
from leasehold.domain.errors import LeaseholdError, LeaseLost
from leasehold.domain.intent import IntentOptions, NewIntent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from leasehold.conformance.workers import Work, Worker
    from leasehold.domain.contract import Scope
    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import Lease
    from leasehold.domain.outcome import Outcome
    from leasehold.store.database import Database
    from leasehold.store.protocol import Store
    from leasehold.store.reader_rows import Attempt, IntentStatus
    from leasehold.store.rows import Recorded

    Seen = TypeVar("Seen")

# Nothing expires during a case,
LEASE_SECONDS = 600.0
# except what a case wants to expire: no lease can be shorter.
SHORT_SECONDS = 1.0
NOTE = "a case of the conformance suite"
OPERATOR = "conformance"
_LOOK_SECONDS = 0.05
_WAIT_SECONDS = 30.0


class NotConforming(Exception):
    """The store does something else than it must."""


class Scene:
    """Two processes, `one` and `other`, and a target of one scope.

    `open_as` returns a database at the same URL that acts as the role of this name; it is opened
    with `async with`.
    """

    def __init__(
        self,
        one: Database,
        other: Database,
        open_as: Callable[[str], Database],
        scope: Scope = "cluster",
    ) -> None:
        self.database = one
        self.open_as = open_as
        self._databases = one, other
        self.one: Store = one.store
        self.other: Store = other.store
        self.scope: Scope = scope
        self.lease_name = f"conformance-{secrets.token_hex(6)}"
        self.target = self.lease_name

    def second(self) -> Scene:
        """Return a scene with another target of the same scope."""
        return Scene(*self._databases, self.open_as, self.scope)

    async def publish(self, **terms: Any) -> int:  # noqa: ANN401 (any term of a contract)
        """Publish the target with these terms, and return their version."""
        known = {"scope": self.scope, "guarantee": "keyed", "gateway": None}
        lease = {"lease_name": self.lease_name} if self.scope == "cluster" else {}
        return await self.one.publish_contract(self.target, known | lease | terms, OPERATOR)

    def new(self, payload: Any = 1, **options: Unpack[IntentOptions]) -> NewIntent:  # noqa: ANN401
        """Return an intent of the target; in scope stream, it is in one of its own."""
        if self.scope == "stream" and "stream" not in options:
            options["stream"] = secrets.token_hex(6)
        if options.get("body") is not None:
            payload = None
        return NewIntent(target=self.target, payload=payload, **options)

    async def enqueue(self, count: int = 1, **options: Unpack[IntentOptions]) -> list[IntentId]:
        """Enqueue intents of the target."""
        return [
            await self.one.enqueue_intent(self.new({"number": number}, **options))
            for number in range(count)
        ]

    async def acquire(self, store: Store, holder_id: str, seconds: float = LEASE_SECONDS) -> Lease:
        """Acquire the lease, which must be free."""
        found = await store.acquire_lease(self.lease_name, holder_id, seconds)
        require(found.is_ours, f"a free lease was not granted: {found.lease}")
        return found.lease

    async def replaced(self) -> tuple[Lease, Lease]:
        """Return the lease of `one`, who has lost it, and that of `other`, who has it now."""
        former = await self.acquire(self.one, "one")
        require(await self.one.release_lease(former), "the holder could not release its lease")
        return former, await self.acquire(self.other, "other")

    async def worker(self, name: str = "one") -> Worker:
        """Return a worker of the target, in the process `one` or `other`."""
        store = self.other if name == "other" else self.one
        if self.scope == "item":
            return ItemWorker(store, name, self.target)
        if self.scope == "stream":
            return StreamWorker(store, name, self.target)
        return LeaderWorker(store, await self.acquire(store, name), self.target)

    async def taken(self, worker: Worker) -> Work:
        """Return the one intent that is due."""
        found = await worker.take()
        require(len(found) == 1, f"one intent is due, but {len(found)} were handed out")
        return found[0]

    async def attempt(self, worker: Worker, outcome: Outcome) -> Recorded:
        """Take the one intent that is due, begin its call, and record this outcome."""
        work = await self.taken(worker)
        begun = await worker.begin(work)
        require(begun == "begun", f"a call that is due could not begin: {begun}")
        return await worker.record(work, outcome)

    async def ledger(self, intent_id: IntentId) -> list[Attempt]:
        """Read the ledger of an intent in the other process."""
        return await self.other.read_ledger([intent_id])

    async def status(self, intent_id: IntentId) -> IntentStatus:
        """Read the status of an intent in the other process."""
        found = await self.other.read_status([intent_id])
        require(len(found) == 1, f"an intent has {len(found)} statuses")
        return found[0]


Run: TypeAlias = "Callable[[Scene], Awaitable[None]]"


class Case(NamedTuple):
    """A sentence that must be true, for a target of this scope."""

    run: Run
    scope: Scope

    @property
    def name(self) -> str:
        """Its name, and the scope."""
        return f"{cast('Any', self.run).__name__}[{self.scope}]"

    @property
    def sentence(self) -> str:
        """What must be true."""
        return (self.run.__doc__ or "").partition("\n")[0]


def cases(scopes: Iterable[Scope], *runs: Run) -> tuple[Case, ...]:
    """Return the cases, each for every one of these scopes."""
    return tuple(Case(run, scope) for run in runs for scope in scopes)


def require(is_so: bool, otherwise: str) -> None:
    """Raise NotConforming unless it is so."""
    if not is_so:
        raise NotConforming(otherwise)


def require_equal(what: str, found: object, wanted: object) -> None:
    """Raise NotConforming unless both are equal."""
    require(found == wanted, f"{what}: {found!r} instead of {wanted!r}")


async def require_refused(
    what: str, error: type[LeaseholdError], call: Awaitable[object]
) -> LeaseholdError:
    """Raise NotConforming unless the call raises this error, and return it."""
    try:
        answer = await call
    except error as raised:
        return raised
    except LeaseholdError as raised:
        raise NotConforming(f"{what} raised {raised!r}, not {error.__name__}") from raised
    raise NotConforming(f"{what} was accepted: {answer}")


async def require_lost(what: str, call: Awaitable[object]) -> None:
    """Raise NotConforming unless the call raises LeaseLost, with the name of the lease."""
    error = await require_refused(f"{what} under a lost lease", LeaseLost, call)
    require(getattr(error, "lease_name", None) is not None, f"{what}: {error} names no lease")


async def until(what: str, look: Callable[[], Awaitable[Seen | None]]) -> Seen:
    """Look until there is something to see, and return it."""
    for _ in range(int(_WAIT_SECONDS / _LOOK_SECONDS)):
        seen = await look()
        if seen is not None:
            return seen
        await asyncio.sleep(_LOOK_SECONDS)
    raise NotConforming(f"after {_WAIT_SECONDS:g} seconds: {what}")

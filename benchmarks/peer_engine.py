"""What the benchmark needs of an engine, ours or another's: four calls, the same for all.

Modules of engines import nothing of Leasehold and nothing of each other (but for our own): they run
in the virtual environment of the peers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    # Told the number of an item when its call begins; from any thread.
    Called = Callable[[int], None]

BULK = 1_000
QUEUE = "bench"


def payload(number: int) -> dict[str, Any]:
    """What every engine carries."""
    return {
        "to": "+41 79 000 00 00",
        "text": "Your parcel arrives today.",
        "sender": "post",
        "number": number,
    }


class Producer(Protocol):
    """Hands items in; each call returns when they are committed."""

    async def one(self, number: int) -> None: ...

    async def many(self, numbers: range) -> None:
        """Hand in all of them in one call or, where there is none, in one transaction."""
        ...


class Engine(Protocol):
    """One engine at its best documented settings."""

    # Whose versions to report.
    distributions: tuple[str, ...]
    # What it was told, for the reader of the report.
    settings: str
    # Counts what is not finished yet; None where that costs more than the work itself.
    unfinished: str | None
    # Whether its own documentation runs it on uvloop.
    on_uvloop: bool

    async def install(self, url: str) -> None:
        """Make its schema in an empty database."""
        ...

    def producer(self, url: str) -> AbstractAsyncContextManager[Producer]: ...

    async def work(self, url: str, called: Called) -> None:
        """Run one worker until the process ends; its calls only say that they have begun."""
        ...

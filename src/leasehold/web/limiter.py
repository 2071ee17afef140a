"""Room for what is being answered: those who only wait or listen take none of it from the others.

A request that waits costs next to nothing, but it stays for long. Counted with the rest, some who
wait would keep out everybody who hands something in.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from leasehold.web.problems import RETRY_SECONDS, Problem

if TYPE_CHECKING:
    from collections.abc import Generator


class Room:
    """Counts the requests of one service."""

    def __init__(self, requests_max: int, waits_max: int) -> None:
        self._requests_max = requests_max
        self._waits_max = waits_max
        self._requests = 0
        self._waits = 0

    @property
    def requests(self) -> int:
        """How many are being answered, without those who wait or listen."""
        return self._requests

    @property
    def is_full_of_waits(self) -> bool:
        """Whether nobody more may wait."""
        return self._waits >= self._waits_max

    def enter(self, *, is_urgent: bool) -> None:
        """Begin to answer a request; leave() belongs to it, also where it is refused."""
        self._requests += 1
        if self._requests > self._requests_max and not is_urgent:
            raise Problem("overloaded", "try again in a moment", retry_seconds=RETRY_SECONDS)

    def leave(self) -> None:
        """Be done with a request."""
        self._requests -= 1

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Give the place of a request to others, for as long as it waits for an intent."""
        self._waits += 1
        try:
            with self.listening():
                yield
        finally:
            self._waits -= 1

    @contextmanager
    def listening(self) -> Generator[None]:
        """Give the place of a request to others; how many may listen, `events` says."""
        self._requests -= 1
        try:
            yield
        finally:
            self._requests += 1


def require_waiting_room(room: Room) -> None:
    """Refuse somebody who would only wait where too many do."""
    if room.is_full_of_waits:
        raise Problem(
            "overloaded", "too many wait for intents already", retry_seconds=RETRY_SECONDS
        )

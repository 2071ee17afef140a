"""Under which numbers a leader has marked its calls in the database, batch by batch.

A number can be used again when every call of its batch has ended: the new batch's mark then takes
the place of the old one, so there are never more of them than batches in flight.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet


class Marks:
    """The calls of each mark that have not ended, by the numbers of their ids."""

    def __init__(self) -> None:
        self._in_flight: dict[int, set[int]] = {}

    def begin(self, calls: Iterable[int]) -> int:
        """Give the number for a batch of calls: the lowest that is free."""
        mark_no = next(number for number in itertools.count(1) if number not in self._in_flight)
        self._in_flight[mark_no] = set(calls)
        return mark_no

    def end(self, calls: AbstractSet[int]) -> None:
        """Know that these calls have ended."""
        for mark_no, in_flight in list(self._in_flight.items()):
            in_flight -= calls
            if not in_flight:
                del self._in_flight[mark_no]

"""Bounds the memory that the contents of items in flight take, whatever the number of slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.executor.item import Item

# When contents have so many bytes, nothing more is claimed until some end. So an instance holds
# this, and the budget of one more claim (8 MiB) for each of its executors. Sixty of the largest
# intents fit; most intents have a thousandth of that.
CONTENT_BYTES_MAX = 64 * 1024 * 1024


class ContentMemory:
    """Counts the bytes of the contents in memory, of one instance."""

    def __init__(self) -> None:
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no more content may come into memory."""
        return self._bytes >= CONTENT_BYTES_MAX

    def add(self, items: Iterable[Item]) -> None:
        """Count items that come into memory."""
        self._bytes += _content_bytes(items)

    def remove(self, items: Iterable[Item]) -> None:
        """Count items as gone."""
        self._bytes -= _content_bytes(items)


def _content_bytes(items: Iterable[Item]) -> int:
    return sum(item.claimed.content_bytes for item in items)

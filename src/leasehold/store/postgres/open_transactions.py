"""Which transactions may still commit rows behind what a claim has read, from look to look."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_START = datetime.min.replace(tzinfo=UTC)


class SeenTransactions(NamedTuple):
    """OpenTransactions on PostgreSQL: each open transaction, with when it began at the earliest."""

    seen_at: datetime
    since: datetime | None
    open_since: Mapping[int, datetime]


_NOTHING = SeenTransactions(_START, None, {})


def seen_after(
    former: SeenTransactions | None, seen_at: datetime, ids: Collection[int]
) -> SeenTransactions:
    """Compare the open transactions of this moment with those of the look before."""
    former = former or _NOTHING
    if seen_at < former.seen_at:  # the clock stepped back: times from before say nothing
        return SeenTransactions(seen_at, None, dict.fromkeys(ids, _START))
    open_since = {one: former.open_since.get(one, former.seen_at) for one in ids}
    ended = former.open_since.keys() - open_since.keys()
    # Transactions that began and ended between two looks began after the first.
    since = min((former.open_since[one] for one in ended), default=former.seen_at)
    return SeenTransactions(seen_at, None if since == _START else since, open_since)

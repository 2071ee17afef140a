"""The summary of `leasehold demo`: the database's intents beside the gateway's effects, by key.

- lost: an intent that the database says is accepted and that had no effect at the gateway; one
  that a client was told is accepted and that is not in the database; and, where the demo waited for
  an end, one that is neither finished nor held for a person.
- doubled: a submission key with more than one effect.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from leasehold.demo.read import Counted

_FINISHED = frozenset({"accepted", "rejected", "exhausted", "cancelled"})
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was counted."""

    intents: int
    effects: int
    statuses: Mapping[str, int]
    lost: int
    doubled: int
    # Neither finished nor held, where nobody waited for that.
    waiting: int
    # The first of the lost and doubled ones.
    named: tuple[str, ...] = field(default=())

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost and nothing doubled."""
        return self.lost == 0 and self.doubled == 0

    def lines(self) -> Iterator[str]:
        """Tell it."""
        yield f"accepted   {self.intents:6d}  intents, by the database"
        yield f"effects    {self.effects:6d}  at the gateway"
        yield f"rejected   {self.statuses.get('rejected', 0):6d}  by the gateway"
        yield f"exhausted  {self.statuses.get('exhausted', 0):6d}  no try or time left"
        yield f"held       {self.statuses.get('held', 0):6d}  in doubt, for a person to resolve"
        if self.waiting:
            yield f"waiting    {self.waiting:6d}  unfinished when the demo was stopped"
        yield f"lost       {self.lost:6d}"
        yield f"doubled    {self.doubled:6d}"
        yield from self.named


def audit(
    intents: Iterable[Counted],
    effects_per_key: Mapping[str, int],
    told_accepted: int,
    *,
    is_settled: bool,
) -> Audit:
    """Compare. `is_settled`: the demo waited for an end, so what has none is lost."""
    statuses: Counter[str] = Counter()
    named: list[str] = []
    lost = unfinished = 0
    for one in intents:
        statuses[one.status] += 1
        is_without_effect = one.status == "accepted" and not effects_per_key.get(
            str(one.submission_key)
        )
        is_unfinished = one.status != "held" and one.status not in _FINISHED
        unfinished += is_unfinished
        if is_without_effect or (is_unfinished and is_settled):
            lost += 1
            named.append(f"lost: intent {one.intent_id}, {one.status}")
    missing = max(0, told_accepted - statuses.total())
    if missing:
        named.append(f"lost: {missing} that were accepted and are not in the database")
    doubled = [key for key, count in effects_per_key.items() if count > 1]
    named = named[:_NAMED_MAX] + [
        f"doubled: submission key {key}, {effects_per_key[key]} effects"
        for key in doubled[:_NAMED_MAX]
    ]
    return Audit(
        intents=statuses.total(),
        effects=sum(effects_per_key.values()),
        statuses=statuses,
        lost=lost + missing,
        doubled=len(doubled),
        waiting=0 if is_settled else unfinished,
        named=tuple(named),
    )

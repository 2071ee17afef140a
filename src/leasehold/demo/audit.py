"""The summary of a demo: the intents in the database compared with the effects at the gateway.

- lost: an intent with status `accepted` but without an effect; one that was committed for a client
  but is not in the database; and, if the demo waited for the end, one neither finished nor held.
- doubled: a submission key with more than one effect.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from leasehold.demo.database import IntentRow

_FINISHED = frozenset({"accepted", "rejected", "exhausted", "cancelled"})
_EXAMPLES_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The counts."""

    intents: int
    effects: int
    statuses: Mapping[str, int]
    lost: int
    doubled: int
    # Neither finished nor held, if the demo was stopped before the end.
    unfinished: int
    # The first lost and doubled ones.
    examples: tuple[str, ...] = field(default=())

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost and nothing doubled."""
        return self.lost == 0 and self.doubled == 0

    def lines(self) -> Iterator[str]:
        """Return the summary for the terminal."""
        yield f"enqueued   {self.intents:6d}  intents in the database"
        yield f"effects    {self.effects:6d}  at the gateway"
        yield f"rejected   {self.statuses.get('rejected', 0):6d}  by the gateway, for good"
        yield f"exhausted  {self.statuses.get('exhausted', 0):6d}  no attempts or time left"
        yield f"held       {self.statuses.get('held', 0):6d}  in doubt, for a person to resolve"
        if self.unfinished:
            yield f"unfinished {self.unfinished:6d}  when the demo was stopped"
        yield f"lost       {self.lost:6d}  intents"
        yield f"doubled    {self.doubled:6d}  submission keys with more than one effect"
        yield from self.examples


def audit(
    intents: Iterable[IntentRow],
    effects_per_key: Mapping[str, int],
    committed: int,
    *,
    is_settled: bool,
) -> Audit:
    """Compare. `committed` is what clients were told; `is_settled`: the demo waited for the end."""
    statuses: Counter[str] = Counter()
    examples: list[str] = []
    lost = unfinished = 0
    for one in intents:
        statuses[one.status] += 1
        has_no_effect = one.status == "accepted" and not effects_per_key.get(
            str(one.submission_key)
        )
        is_unfinished = one.status != "held" and one.status not in _FINISHED
        unfinished += is_unfinished
        if has_no_effect or (is_unfinished and is_settled):
            lost += 1
            examples.append(f"lost: intent {one.intent_id}, {one.status}")
    missing = max(0, committed - statuses.total())
    if missing:
        examples.append(f"lost: {missing} committed intents that are not in the database")
    doubled = [key for key, count in effects_per_key.items() if count > 1]
    examples = examples[:_EXAMPLES_MAX] + [
        f"doubled: submission key {key}, {effects_per_key[key]} effects"
        for key in doubled[:_EXAMPLES_MAX]
    ]
    return Audit(
        intents=statuses.total(),
        effects=sum(effects_per_key.values()),
        statuses=statuses,
        lost=lost + missing,
        doubled=len(doubled),
        unfinished=0 if is_settled else unfinished,
        examples=tuple(examples),
    )

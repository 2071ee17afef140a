"""The summary of a demo: the intents in the database compared with the effects at the gateway.

- lost: an intent with status `accepted` but without an effect; one that was committed for a client
  but is not in the database; and, if the demo waited for the end, one neither finished nor held.
- doubled: a submission key with more than one effect.
- disordered: a stream whose effects are not in the order in which its intents were accepted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from leasehold.store.demo import IntentRow

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
    disordered: int
    # Neither finished nor held, if the demo was stopped before the end.
    unfinished: int
    # The first ones that are lost, doubled or disordered.
    examples: tuple[str, ...] = field(default=())

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, doubled or disordered."""
        return self.lost == 0 and self.doubled == 0 and self.disordered == 0

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
        yield f"disordered {self.disordered:6d}  streams whose effects are not in accepted order"
        yield from self.examples


def audit(
    intents: Iterable[IntentRow],
    effects_per_key: Mapping[str, int],
    committed: int,
    *,
    is_settled: bool,
) -> Audit:
    """Compare. `effects_per_key` has the keys in the order in which they first had an effect;
    `committed` is what clients were told; `is_settled`: the demo waited for the end.
    """
    statuses: Counter[str] = Counter()
    streams: defaultdict[str, list[IntentRow]] = defaultdict(list)
    examples: list[str] = []
    lost = unfinished = 0
    for one in intents:
        statuses[one.status] += 1
        if one.stream is not None:
            streams[one.stream].append(one)
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
    places = {key: place for place, key in enumerate(effects_per_key)}
    disordered = [name for name, accepted in streams.items() if not _in_order(accepted, places)]
    examples = examples[:_EXAMPLES_MAX] + [
        f"doubled: submission key {key}, {effects_per_key[key]} effects"
        for key in doubled[:_EXAMPLES_MAX]
    ]
    examples += [f"disordered: stream {name}" for name in disordered[:_EXAMPLES_MAX]]
    return Audit(
        intents=statuses.total(),
        effects=sum(effects_per_key.values()),
        statuses=statuses,
        lost=lost + missing,
        doubled=len(doubled),
        disordered=len(disordered),
        unfinished=0 if is_settled else unfinished,
        examples=tuple(examples),
    )


def _in_order(intents: Iterable[IntentRow], places: Mapping[str, int]) -> bool:
    """Say whether the intents of a stream had their effects in the order of their numbers."""
    accepted = sorted(intents, key=lambda one: one.stream_seq or 0)
    keys = [str(one.submission_key) for one in accepted]
    seen = [places[key] for key in keys if key in places]
    return seen == sorted(seen)

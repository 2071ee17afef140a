"""What each class of gateway makes of a submission, without any network: pure bookkeeping.

- `keyed` has one effect per key and answers a repeated key as it answered the first time.
- `fenced` remembers the highest fence per key and refuses a lower one with 409; what a higher fence
  submits is the same write once more, so it has no second effect.
- `lookup` and `blind` have an effect per request: a resend doubles it, and that shows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.domain.contract import Guarantee

_DOUBLED_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Reply:
    """A status and a JSON body, and whether the request had an effect."""

    status: int
    body: bytes
    had_effect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """How often something happened at one gateway, or at all of them."""

    keys: int
    effects: int
    doubled_keys: int
    doubled: tuple[str, ...]


@dataclass(slots=True)
class _Known:
    """What a gateway knows of a key; it is pending until `settles_at` on the server's clock."""

    first: Reply
    status: str
    reference: str
    settles_at: float


class Book:
    """The state of one gateway of the sandbox."""

    def __init__(self, guarantee: Guarantee) -> None:
        self.guarantee: Guarantee = guarantee
        self.effect_counts: dict[str, int] = {}
        self._known: dict[str, _Known] = {}
        self._fences: dict[str, int] = {}
        self._effects = 0
        self._doubled: dict[str, None] = {}

    def submit(
        self, key: str, fence: int | None, *, is_rejected: bool, now: float, pending_seconds: float
    ) -> Reply:
        """Take one submission and have its effect, or not."""
        if self.guarantee == "fenced":
            refusal = self._fence_off(key, fence)
            if refusal is not None:
                return refusal
        known = self._known.get(key)
        if known is not None and self.guarantee in {"keyed", "fenced"}:
            return known.first
        if is_rejected:
            return self._reject(key, now)
        return self._accept(key, now, pending_seconds)

    def look_up(self, key: str, now: float) -> Reply:
        """Say what is known of a key."""
        known = self._known.get(key)
        if known is None:
            return reply(404, status="not_found")
        status = "pending" if now < known.settles_at else known.status
        return reply(200, status=status, reference=known.reference)

    def effects(self) -> Effects:
        """Sum up; only the first doubled keys are named."""
        named = tuple(key for key, _ in zip(self._doubled, range(_DOUBLED_SHOWN), strict=False))
        return Effects(
            keys=len(self.effect_counts),
            effects=self._effects,
            doubled_keys=len(self._doubled),
            doubled=named,
        )

    def _fence_off(self, key: str, fence: int | None) -> Reply | None:
        if fence is None:
            return reply(400, reason="a fenced gateway needs the header Fencing-Token")
        highest = self._fences.get(key, fence)
        if fence < highest:
            return reply(409, reason="stale_fence", highest_fence=highest)
        self._fences[key] = fence
        return None

    def _accept(self, key: str, now: float, pending_seconds: float) -> Reply:
        self._effects += 1
        count = self.effect_counts.get(key, 0) + 1
        self.effect_counts[key] = count
        if count > 1:
            self._doubled[key] = None
        reference = f"{self.guarantee}-{self._effects}"
        status = 202 if pending_seconds else 200
        body = f'{{"status": "accepted", "reference": "{reference}"}}'.encode()
        known = _Known(Reply(status, body), "accepted", reference, now + pending_seconds)
        # A key that had its effect stays accepted, whatever a resend is told.
        first = self._known.get(key)
        if first is None or first.status == "rejected":
            self._known[key] = known
        return Reply(status, body, had_effect=True)

    def _reject(self, key: str, now: float) -> Reply:
        rejection = reply(422, status="rejected", reason="rejected by the sandbox")
        self._known.setdefault(key, _Known(rejection, "rejected", "", now))
        return rejection


def reply(status: int, /, **fields: object) -> Reply:
    """Make a reply without an effect."""
    return Reply(status, json.dumps(fields).encode())


def summed(books: Mapping[Guarantee, Book]) -> dict[str, Any]:
    """Sum the effects of all gateways up, for GET /effects."""
    each = {name: book.effects() for name, book in books.items()}
    return {
        "keys": sum(one.keys for one in each.values()),
        "effects": sum(one.effects for one in each.values()),
        "doubled_keys": sum(one.doubled_keys for one in each.values()),
        "gateways": {
            name: {
                "keys": one.keys,
                "effects": one.effects,
                "doubled_keys": one.doubled_keys,
                "doubled": list(one.doubled),
            }
            for name, one in each.items()
        },
    }

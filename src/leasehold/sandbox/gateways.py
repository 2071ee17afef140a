"""What the gateways of the sandbox do with a submission. Pure bookkeeping, without a network.

There is one of kind http for each class; other kinds `register` theirs.

- `keyed` has one effect per key and answers a repeated key as it answered the first time.
- `fenced` does the same, whatever the token of the repeated key. It also remembers the highest
  fencing token per key, also of a submission that it answers with 503, and refuses a new effect
  under a lower one with 409.
- `lookup` and `blind` have one effect per request: a resend doubles it, and the counts show it.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, get_args

from leasehold.domain.gateway_terms import Guarantee
from leasehold.domain.outcome import STALE_REASON
from leasehold.sandbox.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from leasehold.sandbox.faults import FaultInjector

STREAM_HEADER = "Leasehold-Stream"
RequestKind: TypeAlias = Literal["submission", "lookup"]
_DOUBLED_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Reply:
    """A status and a JSON body, whether the request had an effect, and a remark for the log."""

    status: int
    body: bytes
    had_effect: bool = False
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectSummary:
    """The number of keys and effects at one gateway, or at several."""

    keys: int
    effects: int
    doubled_keys: int
    doubled: tuple[str, ...]  # at most the first hundred per gateway


class Effects:
    """Counts the effects of each key at one gateway."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.total = 0
        self._doubled: dict[str, None] = {}

    def add(self, key: str) -> None:
        """Count one effect."""
        self.total += 1
        self.counts[key] = self.counts.get(key, 0) + 1
        if self.counts[key] > 1:
            self._doubled[key] = None

    def summary(self) -> EffectSummary:
        """Return the counts of this gateway."""
        return EffectSummary(
            keys=len(self.counts),
            effects=self.total,
            doubled_keys=len(self._doubled),
            doubled=tuple(islice(self._doubled, _DOUBLED_SHOWN)),
        )


@dataclass(slots=True)
class _KnownKey:
    """What a gateway knows about a key. It answers "pending" until `settles_at`."""

    first_reply: Reply
    status: str
    reference: str
    settles_at: float  # on the server's monotonic clock


class Simulation(Protocol):
    """One gateway of the sandbox. The server draws its faults, waits, and logs."""

    effects: Effects

    def route(self, method: str, rest: str) -> RequestKind | None:
        """Say what a request below the gateway's path is; None if there is no such route."""
        ...

    def entries(self, headers: Mapping[str, str], body: bytes) -> Sequence[Entry]:
        """Return the submissions of a request."""
        ...

    def submit(
        self,
        headers: Mapping[str, str],
        body: bytes,
        fault: Fault,
        injector: FaultInjector,
        url: str,
    ) -> tuple[Reply, Sequence[Reply]]:
        """Take the submissions of a request in order, up to the first that is refused.

        Return the reply to the request, and what the log says of each submission.
        """
        ...

    def looked_up(self, rest: str, query: Mapping[str, str]) -> Sequence[str]:
        """Return the keys that a lookup names."""
        ...

    def look_up(self, keys: Sequence[str], injector: FaultInjector, url: str) -> Reply:
        """Answer what is known about these keys."""
        ...


class SimulatedGateway:
    """A gateway of kind http: POST its path, and GET its path and a key unless it is blind."""

    def __init__(self, guarantee: Guarantee) -> None:
        self.guarantee: Guarantee = guarantee
        self.effects = Effects()
        self._known: dict[str, _KnownKey] = {}
        self._highest_tokens: dict[str, int] = {}

    def route(self, method: str, rest: str) -> RequestKind | None:
        """Say what a request is."""
        if method == "POST" and not rest:
            return "submission"
        return "lookup" if method == "GET" and rest and self.guarantee != "blind" else None

    def entries(self, headers: Mapping[str, str], body: bytes) -> Sequence[Entry]:
        """Return the submissions of a request. More than one come as a JSON array."""
        if body.startswith(b"["):
            with suppress(ValueError, KeyError, TypeError):
                return [
                    Entry(
                        str(one["idempotency_key"]), int(one["fencing_token"]), int(one["attempt"])
                    )
                    for one in json.loads(body)
                ]
        return [entry_of(headers, headers.get("Idempotency-Key", ""))]

    def submit(
        self,
        headers: Mapping[str, str],
        body: bytes,
        fault: Fault,
        injector: FaultInjector,
        url: str,
    ) -> tuple[Reply, Sequence[Reply]]:
        """Take the submissions of a request in order, up to the first that is refused."""
        del url
        replies: list[Reply] = []
        for entry in self.entries(headers, body):
            replies.append(self._answer(entry, fault, injector.settings.pending_seconds))
            if replies[-1].status >= 300:
                break
        return _common_reply(replies), replies

    def looked_up(self, rest: str, query: Mapping[str, str]) -> Sequence[str]:
        """Return the key of a lookup, which is the rest of its path."""
        del query
        return [rest]

    def look_up(self, keys: Sequence[str], injector: FaultInjector, url: str) -> Reply:
        """Answer what is known about a key."""
        del url
        denied = DENIALS.get(injector.draw_denied_lookup())
        answer = denied or self._look_up(keys[0], time.monotonic())
        if answer.status == 200 and injector.draw_early_not_found():
            return replace(reply(404, status="not_found"), remark="early")
        return answer

    def _answer(self, entry: Entry, fault: Fault, pending_seconds: float) -> Reply:
        """Handle one submission: apply its effect, or answer without one."""
        key, fencing_token = entry.key, entry.fencing_token
        if not key:
            return reply(400, reason="the header Idempotency-Key is missing")
        match fault:
            case Fault.REFUSED:
                stale = self._check_token(key, fencing_token)
                return stale or reply(503, reason="refused by the sandbox")
            case Fault.THROTTLED:
                return reply(429, reason="throttled by the sandbox")
            case Fault.UNAUTHORIZED | Fault.FORBIDDEN:
                return DENIALS[fault]
            case Fault.REQUEST_LOST:
                return reply(507)
            case Fault.NONE | Fault.REJECTED | Fault.RESPONSE_LOST:
                is_rejected = fault is Fault.REJECTED
                return self._take(key, fencing_token, pending_seconds, is_rejected=is_rejected)

    def _take(
        self, key: str, fencing_token: int | None, pending_seconds: float, *, is_rejected: bool
    ) -> Reply:
        refusal = self._check_token(key, fencing_token)
        if refusal is not None:
            return refusal
        known = self._known.get(key)
        if known is not None and self.guarantee in {"keyed", "fenced"}:
            return known.first_reply
        now = time.monotonic()
        return self._reject(key, now) if is_rejected else self._accept(key, now, pending_seconds)

    def _check_token(self, key: str, fencing_token: int | None) -> Reply | None:
        """Remember the token of a fenced submission; return a refusal if it is missing, or stale
        for a key that has no answer yet."""
        if self.guarantee != "fenced":
            return None
        if fencing_token is None:
            return reply(400, reason="a fenced gateway needs the header Fencing-Token")
        highest = self._highest_tokens.get(key, fencing_token)
        if fencing_token < highest and key not in self._known:
            return reply(409, reason=STALE_REASON, highest=highest)
        self._highest_tokens[key] = max(highest, fencing_token)
        return None

    def _look_up(self, key: str, now: float) -> Reply:
        known = self._known.get(key)
        if known is None:
            return reply(404, status="not_found")
        status = "pending" if now < known.settles_at else known.status
        return reply(200, status=status, reference=known.reference)

    def _accept(self, key: str, now: float, pending_seconds: float) -> Reply:
        self.effects.add(key)
        reference = f"{self.guarantee}-{self.effects.total}"
        status = 202 if pending_seconds else 200
        body = f'{{"status": "accepted", "reference": "{reference}"}}'.encode()
        # A key that had its effect stays accepted, whatever a resend is answered.
        first = self._known.get(key)
        if first is None or first.status == "rejected":
            self._known[key] = _KnownKey(
                Reply(status, body), "accepted", reference, now + pending_seconds
            )
        return Reply(status, body, had_effect=True)

    def _reject(self, key: str, now: float) -> Reply:
        rejection = reply(422, status="rejected", reason="rejected by the sandbox")
        self._known.setdefault(key, _KnownKey(rejection, "rejected", "", now))
        return rejection


@dataclass(frozen=True, slots=True)
class Entry:
    """One submission of a request, by its headers or as an entry of a JSON array."""

    key: str
    fencing_token: int | None
    attempt_no: int | None


def entry_of(headers: Mapping[str, str], key: str) -> Entry:
    """Return a submission whose token and attempt are in the headers."""
    return Entry(
        key, number(headers.get("Fencing-Token")), number(headers.get("Leasehold-Attempt"))
    )


def _common_reply(replies: Sequence[Reply]) -> Reply:
    """Return the reply to a request by those to its submissions, of which the last may fail."""
    taken = [one for one in replies if one.status < 300]
    if len(replies) == 1 or not taken:
        return replies[0]
    return replace(taken[0], body=json.dumps({"accepted": len(taken)}).encode())


def number(text: str | None) -> int | None:
    """Read a whole number; None if it is none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def reply(status: int, /, **fields: object) -> Reply:
    """Build a reply without an effect."""
    return Reply(status, json.dumps(fields).encode())


def total(summaries: Iterable[EffectSummary]) -> EffectSummary:
    """Add up the counts of several gateways."""
    each = list(summaries)
    return EffectSummary(
        keys=sum(one.keys for one in each),
        effects=sum(one.effects for one in each),
        doubled_keys=sum(one.doubled_keys for one in each),
        doubled=tuple(key for one in each for key in one.doubled),
    )


# What a submission or a lookup is answered with if the sandbox refuses the sender.
DENIALS = {
    Fault.UNAUTHORIZED: reply(401, reason="credentials refused by the sandbox"),
    Fault.FORBIDDEN: reply(403, reason="access refused by the sandbox"),
}
# The gateways of every sandbox by name, which is the first part of their paths.
simulations: dict[str, Callable[[], Simulation]] = {
    name: partial(SimulatedGateway, name) for name in get_args(Guarantee)
}


def register(name: str, simulation: Callable[[], Simulation]) -> None:
    """Give every sandbox a gateway of another kind."""
    simulations[name] = simulation

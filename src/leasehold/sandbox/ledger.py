"""A distributed ledger that takes signed batches, in the style of Hyperledger Sawtooth.

A batch has its fate from the moment it is taken: it will be committed with its block, be found
invalid, or be evicted, which means that the ledger forgets it. Until its block comes, its status is
PENDING, then VALID. A batch that the ledger still knows is never taken twice, so a resend has no
second effect. Blocks keep the order in which batches came.

Its routes: POST /ledger/batches, GET /ledger/batch_statuses?id=a,b.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasehold.sandbox.faults import Fate, Fault
from leasehold.sandbox.gateways import (
    DENIALS,
    Effects,
    Entry,
    Reply,
    RequestKind,
    entry_of,
    register,
    reply,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.sandbox.faults import FaultInjector

NAME = "ledger"
BATCH_ID_HEADER = "Leasehold-Batch-Id"

_BATCH_ID = re.compile(r"[0-9a-f]{128}")
_BODY_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class _Batch:
    fate: Fate
    came_at: float  # on the server's monotonic clock, like the next
    block_at: float

    def status(self, now: float) -> str:
        if now >= self.block_at:
            return self.fate.value
        return "PENDING" if now < (self.came_at + self.block_at) / 2 else "VALID"


class SimulatedLedger:
    """The state of the ledger of the sandbox."""

    def __init__(self) -> None:
        self.effects = Effects()
        self._batches: dict[str, _Batch] = {}
        self._waiting: dict[str, float] = {}  # when the block of each batch comes, in that order
        self._last_block_at = 0.0

    def route(self, method: str, rest: str) -> RequestKind | None:
        """Say what a request is."""
        return _ROUTES.get((method, rest))

    def entries(self, headers: Mapping[str, str], body: bytes) -> Sequence[Entry]:
        """Return the batches of a request."""
        return [entry_of(headers, one) for one in _ids_of(headers, body)]

    def submit(
        self,
        headers: Mapping[str, str],
        body: bytes,
        fault: Fault,
        injector: FaultInjector,
        url: str,
    ) -> tuple[Reply, Sequence[Reply]]:
        """Take the batches of a request, all or none."""
        replies = self._replies(headers, body, fault, injector, url)
        return replies[0], replies

    def looked_up(self, rest: str, query: Mapping[str, str]) -> Sequence[str]:
        """Return the batches of a status request."""
        del rest
        return [one for one in query.get("id", "").split(",") if one]

    def look_up(self, keys: Sequence[str], injector: FaultInjector, url: str) -> Reply:
        """Tell the status of each batch."""
        denied = DENIALS.get(injector.draw_denied_lookup())
        return denied or self._statuses(keys, injector.draw_early_not_found, url)

    def _replies(
        self,
        headers: Mapping[str, str],
        body: bytes,
        fault: Fault,
        injector: FaultInjector,
        url: str,
    ) -> list[Reply]:
        """Take the batches of a request, all or none. The replies differ in their effects only."""
        batch_ids = _ids_of(headers, body)
        refusal = _malformed(headers, body) or _REFUSALS.get(fault)
        if refusal is not None:
            return [refusal] * len(batch_ids)
        now = time.monotonic()
        self._forget_waiting(now)
        pending_max = injector.settings.pending_max
        unknown = [one for one in batch_ids if not self._knows(one, now)]
        if pending_max and len(self._waiting) + len(unknown) > pending_max:
            return [_QUEUE_FULL] * len(batch_ids)
        answer = json.dumps({"link": _link(url, batch_ids)}).encode()
        return [Reply(202, answer, *self._take(one, now, injector)) for one in batch_ids]

    def _statuses(self, batch_ids: Sequence[str], is_denied: Callable[[], bool], url: str) -> Reply:
        """Tell the status of each batch. `is_denied` draws whether a known one is denied."""
        now = time.monotonic()
        if not batch_ids or not all(map(_BATCH_ID.fullmatch, batch_ids)):
            return _error(400, 60, "Invalid Resource Id", "an id has 128 hexadecimal digits")
        data = [self._status(one, now, is_denied) for one in batch_ids]
        return reply(200, data=data, link=_link(url, batch_ids))

    def _take(self, batch_id: str, now: float, injector: FaultInjector) -> tuple[bool, str]:
        """Take one batch. Return whether it has an effect, and a remark for the log."""
        if self._knows(batch_id, now):
            return False, "repeated"
        fate = injector.draw_fate()
        # A batch that came later is never in an earlier block, also if blocks become faster.
        block_at = max(now + injector.settings.pending_seconds, self._last_block_at)
        self._batches[batch_id] = _Batch(fate, now, block_at)
        self._waiting[batch_id] = self._last_block_at = block_at
        if fate is not Fate.COMMITTED:
            return False, fate.name.lower()
        self.effects.add(batch_id)
        return True, ""

    def _knows(self, batch_id: str, now: float) -> bool:
        batch = self._batches.get(batch_id)
        return batch is not None and batch.status(now) != Fate.EVICTED.value

    def _forget_waiting(self, now: float) -> None:
        """Drop batches whose block has come from the queue."""
        while self._waiting:
            first = next(iter(self._waiting))
            if self._waiting[first] > now:
                return
            del self._waiting[first]

    def _status(self, batch_id: str, now: float, is_denied: Callable[[], bool]) -> dict[str, Any]:
        batch = self._batches.get(batch_id)
        known: dict[str, Any] = {"id": batch_id, "invalid_transactions": []}
        if batch is None or is_denied():
            return known | {"status": "UNKNOWN"}
        status = batch.status(now)
        if status == "INVALID":
            reason = {"id": batch_id, "message": "found invalid by the sandbox"}
            known["invalid_transactions"] = [reason]
        return known | {"status": status}


def _ids_of(headers: Mapping[str, str], body: bytes) -> list[str]:
    """Return the ids of the batches in a request. For one without the header, make one up."""
    given = headers.get(BATCH_ID_HEADER)
    return given.split(",") if given else [hashlib.sha512(body).hexdigest()]


def _malformed(headers: Mapping[str, str], body: bytes) -> Reply | None:
    """Return the refusal of a request that contains no batches."""
    if headers.get("Content-Type") != _BODY_TYPE:
        return _error(400, 42, "Wrong Content Type", f"batches must be sent as {_BODY_TYPE}")
    if not body:
        return _error(400, 34, "No Batches Submitted", "the body is empty")
    if not all(map(_BATCH_ID.fullmatch, _ids_of(headers, body))):
        return _error(400, 60, "Invalid Resource Id", "an id has 128 hexadecimal digits")
    return None


def _error(status: int, code: int, title: str, message: str) -> Reply:
    """Build an error as the REST interface of Sawtooth writes it."""
    return reply(status, error={"code": code, "title": title, "message": message})


def _link(url: str, batch_ids: Sequence[str]) -> str:
    return f"{url}/{NAME}/batch_statuses?id={','.join(batch_ids)}"


_QUEUE_FULL = _error(429, 31, "Unable to Accept Batches", "the queue is full")
# What a fault of a request is answered with. None of them takes a batch.
_REFUSALS = {
    Fault.REJECTED: _error(400, 30, "Submitted Batches Invalid", "rejected by the sandbox"),
    Fault.REFUSED: _error(503, 15, "Validator Not Ready", "refused by the sandbox"),
    Fault.THROTTLED: _error(429, 31, "Unable to Accept Batches", "throttled by the sandbox"),
    Fault.REQUEST_LOST: reply(507),
    **DENIALS,
}
_ROUTES: Mapping[tuple[str, str], RequestKind] = {
    ("POST", "batches"): "submission",
    ("GET", "batch_statuses"): "lookup",
}

register(NAME, SimulatedLedger)

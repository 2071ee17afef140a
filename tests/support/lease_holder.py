"""A holder of a cluster or stream lease; it keeps acting under the epoch that it acquired."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.database import LONG_AGO
from tests.support.outbox import CLUSTER_LEASE, ZERO_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime
    from uuid import UUID

    from psycopg.rows import DictRow

    from tests.support.outbox import Outbox

LEASE_SECONDS = 30
GRACE_SECONDS = 150


@dataclass(frozen=True)
class Holder:
    """The lease as it was acquired; never read again, so a holder can be stale."""

    outbox: Outbox
    name: str
    lease_name: str
    epoch: int

    @property
    def fence(self) -> tuple[str, str, int]:
        return self.lease_name, self.name, self.epoch

    def begin(self, intent_ids: Sequence[UUID]) -> list[str]:
        """Begin these; return the verdicts in the order of the ids."""
        rows = self.call("begin_leased_attempts", *self.fence, list(intent_ids))
        return _verdicts(rows, intent_ids)

    def record(self, intent_ids: Sequence[UUID], state: str, **fields: Any) -> list[str]:
        """Record one state for all of these; return the verdicts in the order of the ids."""
        results = [leased_result(intent_id, state, **fields) for intent_id in intent_ids]
        rows = self.call("record_attempts", *self.fence, results)
        return _verdicts(rows, intent_ids)

    def renew(self, grace_seconds: float = 0) -> None:
        self.call("renew_lease", *self.fence, 60, grace_seconds)

    def release(self) -> bool:
        [row] = self.call("release_lease", *self.fence)
        return row["release_lease"]

    def window(self, limit: int = 100, targets: Sequence[str] = ("sms",)) -> list[DictRow]:
        fence = (self.name, [self.lease_name], [self.epoch])
        return self.call("refresh_due_rows", *fence, list(targets), limit)

    def call(self, function: str, *arguments: Any) -> list[DictRow]:
        return self.outbox.call("executor", function, *arguments)


class ChangeReader:
    """Reads what changed under the leases of holders, by the protocol of read_open_writers."""

    def __init__(self, holders: Sequence[Holder], limit: int = 100):
        self.limit = limit
        self.read_to: tuple[datetime, UUID] = (LONG_AGO, ZERO_ID)
        self.writers: dict[str, datetime] = {}
        self._holders = holders

    def page(self, after: tuple[Any, Any], limit: int | None = None) -> list[DictRow]:
        """Read the rows after a position."""
        first = self._holders[0]
        names = [holder.lease_name for holder in self._holders]
        epochs = [holder.epoch for holder in self._holders]
        return first.call(
            "refresh_schedule", first.name, names, epochs, *after, limit or self.limit
        )

    def refresh(self) -> list[UUID]:
        """Read what may have changed since the last refresh; return the ids."""
        [seen] = self._holders[0].call("read_open_writers")
        writers = dict(zip(seen["writers"], seen["began_at"], strict=True))
        ended = [(at, ZERO_ID) for writer, at in self.writers.items() if writer not in writers]
        position = min([self.read_to, *ended])
        found: list[UUID] = []
        while page := self.page(position):
            found += [row["intent_id"] for row in page]
            position = (page[-1]["last_modified_at"], page[-1]["intent_id"])
            if len(page) < self.limit:
                break
        self.read_to, self.writers = (seen["seen_at"], ZERO_ID), writers
        return found


def take(outbox: Outbox, name: str = "holder-1", lease_name: str = CLUSTER_LEASE) -> Holder:
    """Acquire a lease; fail if it is not free."""
    row = outbox.acquire(name, lease_name)
    assert row["acquired"], row
    return Holder(outbox, name, lease_name, row["lease_epoch"])


@dataclass(frozen=True)
class StreamHolder(Holder):
    """The holder of one stream. `heads` are the rows that it got when it claimed the stream."""

    heads: tuple[DictRow, ...] = ()

    @property
    def stream(self) -> str:
        return self.lease_name.split("/", 2)[2]

    @property
    def fences(self) -> tuple[str, list[str], list[int]]:
        return self.name, [self.lease_name], [self.epoch]

    def begin(self, intent_ids: Sequence[UUID]) -> list[str]:
        rows = self.call("begin_stream_attempts", *self.fences, list(intent_ids))
        return _verdicts(rows, intent_ids)

    def record(self, intent_ids: Sequence[UUID], state: str, **fields: Any) -> list[str]:
        """Record one state for all of these and keep the stream; return the verdicts."""
        results = [leased_result(intent_id, state, **fields) for intent_id in intent_ids]
        rows = self.call(
            "record_stream_attempts", *self.fences, json.dumps(results), None, False, False
        )
        return _verdicts([row for row in rows if row["verdict"]], intent_ids)

    def record_next(self, intent_ids: Sequence[UUID], state: str, **fields: Any) -> list[DictRow]:
        """Record one state for all of these; return what is next. Idle streams are freed."""
        results = [leased_result(intent_id, state, **fields) for intent_id in intent_ids]
        rows = self.call("record_stream_attempts", *self.fences, json.dumps(results))
        return [row for row in rows if not row["verdict"]]

    def look(self, *, free_idle: bool = False) -> list[DictRow]:
        return self.call("refresh_streams", *self.fences, free_idle)

    def renew(self, grace_seconds: float = GRACE_SECONDS) -> None:
        [row] = self.call("renew_streams", *self.fences, LEASE_SECONDS, grace_seconds)
        assert row["verdict"] == "renewed"

    def release(self, unsent: Sequence[UUID] = ()) -> bool:
        [row] = self.call("release_streams", *self.fences, list(unsent))
        return row["verdict"] == "released"


def claim_streams(
    outbox: Outbox,
    name: str = "holder-1",
    targets: Sequence[str] = ("pay",),
    streams_max: int = 100,
    grace_seconds: float = GRACE_SECONDS,
) -> list[StreamHolder]:
    """Claim streams by a complete walk; return one holder per stream that is held then."""
    rows = outbox.call(
        "executor",
        "claim_streams",
        streams_max,
        name,
        LEASE_SECONDS,
        grace_seconds,
        list(targets),
    )
    return stream_holders(outbox, name, rows)


def stream_holders(outbox: Outbox, name: str, rows: Iterable[DictRow]) -> list[StreamHolder]:
    """Return one holder for each stream that is held according to these rows."""
    by_lease: dict[tuple[str, int], list[DictRow]] = {}
    for row in rows:
        if row["is_held"]:
            heads = by_lease.setdefault((row["lease_name"], row["lease_epoch"]), [])
            heads += [row] if row["intent_id"] else []
    return [StreamHolder(outbox, name, *lease, tuple(heads)) for lease, heads in by_lease.items()]


def leased_result(intent_id: UUID, state: str, **fields: Any) -> dict[str, Any]:
    """Return a result without a token; non-terminal states get the fields that they need."""
    if state in ("RETRYABLE", "IN_DOUBT", "SUBMITTED", "DEFERRED"):
        fields = {"retry_after_seconds": 5} | fields
    if state == "SUBMITTED":
        fields = {"reference": "gateway-reference"} | fields
    return {"intent_id": str(intent_id), "state": state} | fields


def _verdicts(rows: Sequence[DictRow], intent_ids: Sequence[UUID]) -> list[str]:
    by_id = {row["intent_id"]: row["verdict"] for row in rows}
    assert len(by_id) == len(rows) == len(intent_ids)
    return [by_id[intent_id] for intent_id in intent_ids]

"""A holder of a cluster or stream lease; it keeps acting under the epoch that it acquired."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.outbox import CLUSTER_LEASE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from psycopg.rows import DictRow

    from tests.support.outbox import Outbox

LEASE_SECONDS = 30
GRACE_SECONDS = 180


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


def take(outbox: Outbox, name: str = "holder-1", lease_name: str = CLUSTER_LEASE) -> Holder:
    """Acquire a lease; fail if it is not free."""
    row = outbox.acquire(name, lease_name)
    assert row["acquired"], row
    return Holder(outbox, name, lease_name, row["lease_epoch"])


def claim_streams(
    outbox: Outbox,
    name: str = "holder-1",
    targets: Sequence[str] = ("pay",),
    streams_max: int = 100,
) -> list[Holder]:
    """Claim free streams; return one holder per stream."""
    rows = outbox.call(
        "executor",
        "claim_streams",
        name,
        list(targets),
        LEASE_SECONDS,
        GRACE_SECONDS,
        streams_max,
    )
    return [Holder(outbox, name, row["lease_name"], row["lease_epoch"]) for row in rows]


def leased_result(intent_id: UUID, state: str, **fields: Any) -> dict[str, Any]:
    """Return a result without a token; non-terminal states get the fields that they need."""
    if state in ("RETRYABLE", "IN_DOUBT", "SUBMITTED"):
        fields = {"retry_after_seconds": 5} | fields
    if state == "SUBMITTED":
        fields = {"reference": "gateway-reference"} | fields
    return {"intent_id": str(intent_id), "state": state} | fields


def _verdicts(rows: Sequence[DictRow], intent_ids: Sequence[UUID]) -> list[str]:
    by_id = {row["intent_id"]: row["verdict"] for row in rows}
    assert len(by_id) == len(rows) == len(intent_ids)
    return [by_id[intent_id] for intent_id in intent_ids]

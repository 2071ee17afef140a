"""Items under claims: claim, renew, begin, complete, release, repair."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

from leasehold.domain.intent import AttemptState, Claimed
from leasehold.domain.outcome import DEFERRED, attempt_state, next_look_seconds
from leasehold.domain.verdict import BeginVerdict, RecordVerdict, ReleaseVerdict, RenewVerdict
from leasehold.store.postgres.json_arguments import outcome_fields, results_argument
from leasehold.store.postgres.open_transactions import SeenTransactions, seen_after
from leasehold.store.postgres.query import Query, as_tuples, members_by_text, rows_of
from leasehold.store.rows import (
    Begun,
    DueRow,
    MissedDeadline,
    Recorded,
    ReleasedClaim,
    RenewedClaim,
    Repaired,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import Claim
    from leasehold.domain.outcome import Outcome, Result
    from leasehold.store.executor_protocol import OpenTransactions

RECORDED = rows_of(Recorded, verdict=RecordVerdict, state=AttemptState)
# The due_at of a held row, infinity, is read as NULL, because Python has no such time.
SELECT_RECORDED: Final = (
    "SELECT intent_id, verdict, attempt_no, state, reason, nullif(due_at, 'infinity') AS due_at,"
    "       coalesce(due_at = 'infinity', false) AS is_held FROM"
)
WHERE_TOLD: Final = "WHERE %s OR verdict <> 'applied' OR state IS DISTINCT FROM 'DISPATCHED'"
_RENEWED = rows_of(RenewedClaim, verdict=RenewVerdict)
_BEGUN = rows_of(Begun, verdict=BeginVerdict)
_RELEASED = rows_of(ReleasedClaim, verdict=ReleaseVerdict)
_REPAIRED = rows_of(Repaired, state=AttemptState)
_MISSED = rows_of(MissedDeadline)

_STATES = members_by_text(AttemptState)


CLAIMED = rows_of(Claimed)
_last_state = attrgetter("last_state")
Tried = TypeVar("Tried", Claimed, DueRow)


def with_states(rows: list[Tried]) -> list[Tried]:
    """Convert the last state of rows to its enum. Most rows have none: this is their first try."""
    if not any(map(_last_state, rows)):
        return rows
    return [
        row._replace(last_state=_STATES[row.last_state]) if row.last_state else row for row in rows
    ]


class PostgresClaims:
    """ItemStore on PostgreSQL, with its heartbeat."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def claim_outbox_batch(
        self,
        batch_size: int,
        worker_id: str,
        lease_seconds: float,
        targets: Sequence[str],
        target_limits: Sequence[int] | None = None,
        due_from: Sequence[datetime] | None = None,
    ) -> list[Claimed]:
        claimed = await self._query.rows(
            CLAIMED,
            "SELECT intent_id, lease_token, last_state, target, contract_version, attempt_no,"
            "       reference, priority, stream, submission_key, fencing_token, payload, body,"
            "       content_type, metadata, trace_context, created_at, due_at, deadline_at,"
            "       first_tried_at, claimed_at"
            "  FROM leasehold.claim_outbox_batch(%s, %s, %s, %s::text[], %s::integer[],"
            "       %s::timestamptz[])",
            batch_size,
            worker_id,
            lease_seconds,
            list(targets),
            None if target_limits is None else list(target_limits),
            None if due_from is None else list(due_from),
        )
        return with_states(claimed)

    async def read_open_transactions(self, former: OpenTransactions | None) -> OpenTransactions:
        [(seen_at, ids)] = await self._query.rows(
            as_tuples, "SELECT * FROM leasehold.read_open_transactions()"
        )
        known = former if isinstance(former, SeenTransactions) else None
        return seen_after(known, seen_at, ids)

    async def renew_outbox_leases(
        self, worker_id: str, claims: Sequence[Claim], lease_seconds: float
    ) -> list[RenewedClaim]:
        return await self._query.rows(
            _RENEWED,
            "SELECT * FROM leasehold.renew_outbox_leases(%s, %s::uuid[], %s::uuid[], %s)",
            worker_id,
            [claim.intent_id for claim in claims],
            [claim.lease_token for claim in claims],
            lease_seconds,
        )

    async def begin_outbox_attempts(self, worker_id: str, claims: Sequence[Claim]) -> list[Begun]:
        return await self._query.rows(
            _BEGUN,
            "SELECT * FROM leasehold.begin_outbox_attempts(%s, %s::uuid[], %s::uuid[])",
            worker_id,
            [claim.intent_id for claim in claims],
            [claim.lease_token for claim in claims],
        )

    async def complete_outbox_attempts(
        self, worker_id: str, results: Sequence[Result], *, tell_dispatched: bool = True
    ) -> list[Recorded]:
        return await self._query.rows(
            RECORDED,
            f"{SELECT_RECORDED} leasehold.complete_outbox_attempts(%s, %s::jsonb) {WHERE_TOLD}",
            worker_id,
            results_argument(results),
            tell_dispatched,
        )

    async def complete_outbox_attempt(self, worker_id: str, claim: Claim, outcome: Outcome) -> int:
        """Record one result and return its attempt number, or raise LeaseLost or another error."""
        return await self._query.value(
            "SELECT leasehold.complete_outbox_attempt(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            worker_id,
            *claim,
            attempt_state(outcome) or DEFERRED,
            next_look_seconds(outcome),
            *outcome_fields(outcome).values(),
        )

    async def release_outbox_claims(
        self,
        worker_id: str,
        claims: Sequence[Claim],
        delay_seconds: float,
        unsent: Sequence[IntentId] = (),
    ) -> list[ReleasedClaim]:
        return await self._query.rows(
            _RELEASED,
            "SELECT * FROM leasehold.release_outbox_claims("
            "%s, %s::uuid[], %s::uuid[], %s, %s::uuid[])",
            worker_id,
            [claim.intent_id for claim in claims],
            [claim.lease_token for claim in claims],
            delay_seconds,
            list(unsent),
        )

    async def repair_expired_leases(
        self, batch_size: int, worker_id: str, *, is_full: bool = False
    ) -> list[Repaired]:
        return await self._query.rows(
            _REPAIRED,
            "SELECT * FROM leasehold.repair_expired_leases(%s, %s, %s)",
            batch_size,
            worker_id,
            is_full,
        )

    async def repair_missed_deadlines(
        self, batch_size: int, worker_id: str
    ) -> list[MissedDeadline]:
        return await self._query.rows(
            _MISSED,
            "SELECT * FROM leasehold.repair_missed_deadlines(%s, %s)",
            batch_size,
            worker_id,
        )

"""The calls of the role leasehold_operator, and what readers may look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.domain.intent import AttemptState, Status
from leasehold.domain.verdict import CancelVerdict, RedriveVerdict, ResolveVerdict
from leasehold.store.answers import Attempt, IntentStatus, Listing, Redriven
from leasehold.store.postgres.arguments import json_argument
from leasehold.store.postgres.calls import Calls, rows_of
from leasehold.store.postgres.contracts import PostgresContracts
from leasehold.store.postgres.listing import find_intents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.domain.intent import IntentId

_REDRIVEN = rows_of(Redriven, verdict=RedriveVerdict)
_ATTEMPT = rows_of(Attempt, state=AttemptState)
_STATUS = rows_of(IntentStatus, status=Status)


class PostgresOperators:
    """OperatorStore on PostgreSQL."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def publish_contract(self, target: str, terms: Mapping[str, Any], operator: str) -> int:
        """Publish terms and return their version."""
        return await self._calls.value(
            "SELECT leasehold.publish_contract(%s, %s::jsonb, %s)",
            target,
            json_argument(dict(terms)),
            operator,
        )

    async def cancel_intent(self, intent_id: IntentId, operator: str, note: str) -> CancelVerdict:
        """Cancel what no call was made for."""
        return CancelVerdict(
            await self._calls.value(
                "SELECT leasehold.cancel_intent(%s, %s, %s)", intent_id, operator, note
            )
        )

    async def resolve_intent(
        self,
        intent_id: IntentId,
        state: AttemptState,
        operator: str,
        note: str,
        reference: str | None = None,
    ) -> ResolveVerdict:
        """Say what became of a doubt: DISPATCHED, FAILED or RETRYABLE."""
        return ResolveVerdict(
            await self._calls.value(
                "SELECT leasehold.resolve_intent(%s, %s, %s, %s, %s)",
                intent_id,
                state,
                operator,
                note,
                reference,
            )
        )

    async def redrive_intents(
        self, intent_ids: Sequence[IntentId], operator: str, note: str
    ) -> list[Redriven]:
        """Try finished intents anew, as new intents."""
        return await self._calls.rows(
            _REDRIVEN,
            "SELECT * FROM leasehold.redrive_intents(%s::uuid[], %s, %s)",
            list(intent_ids),
            operator,
            note,
        )


class PostgresReaders(PostgresContracts):
    """ReaderStore on PostgreSQL."""

    async def read_ledger(self, intent_ids: Sequence[IntentId]) -> list[Attempt]:
        """Read the attempts of these intents, in order."""
        return await self._calls.rows(
            _ATTEMPT,
            "SELECT intent_id, attempt_no, state, reason, holder, lease_name, lease_epoch,"
            "       started_at, finished_at, reference, code, detail"
            "  FROM leasehold.outbox_attempts WHERE intent_id = ANY (%s::uuid[])"
            " ORDER BY intent_id, attempt_no",
            list(intent_ids),
        )

    async def read_status(self, intent_ids: Sequence[IntentId]) -> list[IntentStatus]:
        """Read where these intents stand."""
        return await self._calls.rows(
            _STATUS,
            "SELECT intent_id, target, stream, stream_seq, idempotency_key, contract_version,"
            "       status, reason, attempts, reference, code, detail, priority,"
            "       nullif(due_at, 'infinity') AS due_at, claimed_by, created_at, deadline_at,"
            "       finished_at, redrive_of"
            "  FROM leasehold.intent_status WHERE intent_id = ANY (%s::uuid[])"
            " ORDER BY intent_id",
            list(intent_ids),
        )

    async def list_intents(
        self,
        *,
        status: Status | None = None,
        target: str | None = None,
        before: IntentId | None = None,
        limit: int = 50,
    ) -> Listing:
        """Find the newest intents that were accepted before one; see Listing for how far."""
        found, searched_to = await find_intents(self._calls, status, target, before, limit)
        intents = await self.read_status(found) if found else []
        return Listing(intents[::-1], searched_to)

"""Interventions: everything that the role leasehold_operator may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.domain.verdict import (
    CancelVerdict,
    PauseVerdict,
    RedriveVerdict,
    ResolveVerdict,
    ResumeVerdict,
    RetryNowVerdict,
    SkipVerdict,
)
from leasehold.store.generation_rows import RestoredGeneration, RestoreStep
from leasehold.store.postgres.json_arguments import json_argument
from leasehold.store.postgres.query import Query, rows_of
from leasehold.store.rows import Redriven

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.domain.intent import AttemptState, IntentId

_REDRIVEN = rows_of(Redriven, verdict=RedriveVerdict)
_RESTORED = rows_of(RestoredGeneration)
_STEP = rows_of(RestoreStep)


class PostgresOperators:
    """OperatorStore on PostgreSQL."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def publish_contract(self, target: str, terms: Mapping[str, Any], operator: str) -> int:
        return await self._query.value(
            "SELECT leasehold.publish_contract(%s, %s::jsonb, %s)",
            target,
            json_argument(dict(terms)),
            operator,
        )

    async def cancel_intent(self, intent_id: IntentId, operator: str, note: str) -> CancelVerdict:
        return CancelVerdict(
            await self._query.value(
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
        return ResolveVerdict(
            await self._query.value(
                "SELECT leasehold.resolve_intent(%s, %s, %s, %s, %s)",
                intent_id,
                state,
                operator,
                note,
                reference,
            )
        )

    async def retry_intent_now(
        self, intent_id: IntentId, operator: str, note: str
    ) -> RetryNowVerdict:
        return RetryNowVerdict(
            await self._query.value(
                "SELECT leasehold.retry_intent_now(%s, %s, %s)", intent_id, operator, note
            )
        )

    async def redrive_intents(
        self, intent_ids: Sequence[IntentId], operator: str, note: str
    ) -> list[Redriven]:
        return await self._query.rows(
            _REDRIVEN,
            "SELECT * FROM leasehold.redrive_intents(%s::uuid[], %s, %s)",
            list(intent_ids),
            operator,
            note,
        )

    async def pause_stream(
        self, target: str, stream: str, operator: str, note: str, seconds: float | None = None
    ) -> PauseVerdict:
        return PauseVerdict(
            await self._query.value(
                "SELECT leasehold.pause_stream(%s, %s, %s, %s, %s)",
                target,
                stream,
                operator,
                note,
                seconds,
            )
        )

    async def resume_stream(
        self,
        target: str,
        stream: str,
        operator: str,
        note: str,
        *,
        paused_by: str | None = None,
        paused_for: IntentId | None = None,
    ) -> ResumeVerdict:
        return ResumeVerdict(
            await self._query.value(
                "SELECT leasehold.resume_stream(%s, %s, %s, %s, %s, %s)",
                target,
                stream,
                operator,
                note,
                paused_by,
                paused_for,
            )
        )

    async def skip_stream_head(
        self, target: str, stream: str, intent_id: IntentId, operator: str, note: str
    ) -> SkipVerdict:
        return SkipVerdict(
            await self._query.value(
                "SELECT leasehold.skip_stream_head(%s, %s, %s, %s, %s)",
                target,
                stream,
                intent_id,
                operator,
                note,
            )
        )

    async def begin_restored_generation(self, operator: str, note: str) -> RestoredGeneration:
        """Begin the generation of a restored database, or go on with it."""
        [generation] = await self._query.rows(
            _RESTORED,
            "SELECT generation_no, token_floor, is_new"
            "  FROM leasehold.begin_restored_generation(%s, %s)",
            operator,
            note,
        )
        return generation

    async def repair_restored_intents(self, batch_size: int) -> RestoreStep:
        [step] = await self._query.rows(
            _STEP, "SELECT * FROM leasehold.repair_restored_intents(%s)", batch_size
        )
        return step

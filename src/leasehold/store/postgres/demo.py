"""What the demo reads: the tables and views of the schema, each query bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.store.demo import (
    ClaimRow,
    InstanceRow,
    IntentRow,
    LeaseRow,
    LedgerRow,
    RecoveryRow,
    UnfinishedRow,
)
from leasehold.store.postgres.query import Query, first_column, rows_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import datetime
    from uuid import UUID

    from leasehold.store.postgres.pool import Pool

_PAGE_SIZE = 5000


class PostgresDemo:
    """DemoStore on PostgreSQL."""

    def __init__(self, pool: Pool) -> None:
        self._query = Query(pool)

    async def instances(self) -> list[InstanceRow]:
        return await self._query.rows(
            rows_of(InstanceRow),
            "SELECT i.instance_id, i.role, (i.detail ->> 'pid')::integer AS pid,"
            "       (SELECT count(*) FROM leasehold.outbox_pending p"
            "         WHERE p.claimed_by = i.instance_id)::integer AS claims,"
            "       (SELECT count(*) FROM leasehold.leases l WHERE l.stream IS NOT NULL"
            "           AND l.holder_id = i.instance_id AND l.expires_at > clock_timestamp()"
            "       )::integer AS streams,"
            "       extract(epoch FROM clock_timestamp() - i.last_seen_at)::float AS seen_seconds,"
            "       i.is_alive"
            "  FROM leasehold.instance_status i ORDER BY i.started_at DESC LIMIT 10",
        )

    async def leases(self) -> list[LeaseRow]:
        return await self._query.rows(
            rows_of(LeaseRow),
            "SELECT lease_name, holder_id, lease_epoch,"
            "       extract(epoch FROM expires_at - clock_timestamp())::float AS left_seconds"
            "  FROM leasehold.leases WHERE stream IS NULL OR expires_at > clock_timestamp()"
            " ORDER BY stream IS NOT NULL, lease_name LIMIT 10",
        )

    async def unfinished(self) -> dict[str, UnfinishedRow]:
        rows = await self._query.rows(
            rows_of(UnfinishedRow),
            "SELECT target, count(*)::integer AS unfinished,"
            "       count(*) FILTER (WHERE claimed_by IS NOT NULL OR begun_at IS NOT NULL)"
            "         ::integer AS claimed,"
            "       count(*) FILTER (WHERE last_state = 'IN_DOUBT' AND due_at < 'infinity')"
            "         ::integer AS in_doubt,"
            "       count(*) FILTER (WHERE due_at = 'infinity')::integer AS held"
            "  FROM (SELECT target, claimed_by, begun_at, last_state, due_at"
            "          FROM leasehold.outbox_pending LIMIT 100000) AS p GROUP BY target",
        )
        return {one.target: one for one in rows}

    async def ledger(self, limit: int) -> list[LedgerRow]:
        return await self._query.rows(
            rows_of(LedgerRow),
            "SELECT a.intent_id, i.target, a.attempt_no, a.state, a.reason, a.code, a.holder,"
            "       a.finished_at"
            "  FROM leasehold.outbox_attempts a JOIN leasehold.intents i USING (intent_id)"
            " WHERE a.finished_at > clock_timestamp() - interval '1 minute'"
            " ORDER BY a.finished_at DESC LIMIT %s",
            limit,
        )

    async def finished_per_second(self, seconds: float) -> float:
        count: int = await self._query.value(
            "SELECT count(*) FROM (SELECT FROM leasehold.outbox_attempts"
            " WHERE finished_at > clock_timestamp() - make_interval(secs => %s)"
            "   AND state IN ('DISPATCHED', 'FAILED', 'CANCELLED') LIMIT 100000) AS a",
            seconds,
        )
        return count / seconds

    async def unsettled(self) -> int:
        return await self._query.value(
            "SELECT count(*) FROM (SELECT FROM leasehold.outbox_pending"
            " WHERE due_at < 'infinity' LIMIT 100000) AS p"
        )

    async def clock(self) -> datetime:
        return await self._query.value("SELECT clock_timestamp()")

    async def claims_of(self, instance_id: str) -> list[ClaimRow]:
        return await self._query.rows(
            rows_of(ClaimRow),
            "SELECT intent_id, target,"
            "       extract(epoch FROM lease_expires_at - clock_timestamp())::float AS left_seconds"
            "  FROM leasehold.outbox_pending WHERE claimed_by = %s"
            " ORDER BY target, intent_id LIMIT 1000",
            instance_id,
        )

    async def recoveries(
        self, holder: str, intent_ids: Sequence[UUID], since: datetime
    ) -> list[RecoveryRow]:
        return await self._query.rows(
            rows_of(RecoveryRow),
            "SELECT intent_id, state, extract(epoch FROM finished_at - %s)::float AS after_seconds"
            "  FROM leasehold.outbox_attempts"
            " WHERE intent_id = ANY (%s) AND holder = %s AND reason = 'lease_expired'"
            " ORDER BY finished_at LIMIT 1000",
            since,
            list(intent_ids),
            holder,
        )

    async def statuses(self, intent_ids: Sequence[UUID]) -> list[str]:
        return await self._query.rows(
            first_column,
            "SELECT status FROM leasehold.intent_status WHERE intent_id = ANY (%s) LIMIT 1000",
            list(intent_ids),
        )

    async def all_intents(self) -> AsyncGenerator[IntentRow]:
        after: UUID | None = None
        while True:
            page = await self._query.rows(
                rows_of(IntentRow),
                "SELECT i.intent_id, i.submission_key, s.status, i.stream, i.stream_seq"
                "  FROM (SELECT intent_id, submission_key, stream, stream_seq"
                "          FROM leasehold.intents"
                "         WHERE %s::uuid IS NULL OR intent_id > %s"
                "         ORDER BY intent_id LIMIT %s) AS i"
                "  JOIN leasehold.intent_status s USING (intent_id) ORDER BY i.intent_id",
                after,
                after,
                _PAGE_SIZE,
            )
            for one in page:
                yield one
            if len(page) < _PAGE_SIZE:
                return
            after = page[-1].intent_id

"""What `leasehold demo` reads for its view: bounded questions, a few per second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.store.postgres.query import Calls, first_column, rows_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from leasehold.demo.sandbox import EffectCount
    from leasehold.domain.contract import Guarantee
    from leasehold.store.postgres.pool import Pool

_PAGE = 5000


@dataclass(frozen=True, slots=True)
class SeenInstance:
    """A row of `instances`, with the claims that it holds."""

    instance_id: str
    role: str
    pid: int
    claims: int
    seen_seconds: float
    is_alive: bool


@dataclass(frozen=True, slots=True)
class SeenLease:
    """A row of `leases`."""

    lease_name: str
    holder_id: str
    lease_epoch: int
    left_seconds: float


@dataclass(frozen=True, slots=True)
class OpenWork:
    """The unfinished intents of a target."""

    target: str
    unfinished: int
    claimed: int
    in_doubt: int
    held: int


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A row of the ledger, with its intent's target."""

    intent_id: UUID
    target: str
    attempt_no: int
    state: str
    reason: str | None
    code: str | None
    holder: str
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class ClaimLeft:
    """A claim of a dead worker; `begun`: the mark "about to call" stands."""

    intent_id: UUID
    target: str
    begun: bool
    left_seconds: float


@dataclass(frozen=True, slots=True)
class Recovered:
    """The ledger row that ended a claim of a dead worker."""

    intent_id: UUID
    state: str
    after_seconds: float


@dataclass(frozen=True, slots=True)
class Counted:
    """An intent as the audit counts it."""

    intent_id: UUID
    submission_key: UUID
    status: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the view shows at a time."""

    elapsed_seconds: float
    accepted: Mapping[str, int]
    instances: Sequence[SeenInstance]
    leases: Sequence[SeenLease]
    work: Mapping[str, OpenWork]
    finished_per_second: float
    ledger: Sequence[LedgerRow]
    effects: Mapping[Guarantee, EffectCount]


class Reader:
    """Plain reads of the schema's tables and views."""

    def __init__(self, pool: Pool) -> None:
        self._calls = Calls(pool)

    async def instances(self) -> list[SeenInstance]:
        """Read who runs, the newest first."""
        return await self._calls.rows(
            rows_of(SeenInstance),
            "SELECT i.instance_id, i.role, (i.detail ->> 'pid')::integer AS pid,"
            "       (SELECT count(*) FROM leasehold.outbox_pending p"
            "         WHERE p.claimed_by = i.instance_id)::integer AS claims,"
            "       extract(epoch FROM clock_timestamp() - i.last_seen_at)::float AS seen_seconds,"
            "       i.alive_until > clock_timestamp() AS is_alive"
            "  FROM leasehold.instances i ORDER BY i.started_at DESC LIMIT 10",
        )

    async def leases(self) -> list[SeenLease]:
        """Read who holds which lease."""
        return await self._calls.rows(
            rows_of(SeenLease),
            "SELECT lease_name, holder_id, lease_epoch,"
            "       extract(epoch FROM expires_at - clock_timestamp())::float AS left_seconds"
            "  FROM leasehold.leases ORDER BY lease_name LIMIT 10",
        )

    async def work(self) -> dict[str, OpenWork]:
        """Read what is unfinished, by target."""
        found = await self._calls.rows(
            rows_of(OpenWork),
            "SELECT target, count(*)::integer AS unfinished, count(claimed_by)::integer AS claimed,"
            "       count(*) FILTER (WHERE last_state = 'IN_DOUBT' AND due_at < 'infinity')"
            "         ::integer AS in_doubt,"
            "       count(*) FILTER (WHERE due_at = 'infinity')::integer AS held"
            "  FROM (SELECT target, claimed_by, last_state, due_at FROM leasehold.outbox_pending"
            "         LIMIT 100000) AS p GROUP BY target",
        )
        return {one.target: one for one in found}

    async def ledger(self, limit: int) -> list[LedgerRow]:
        """Read the newest rows of the ledger's last minute."""
        return await self._calls.rows(
            rows_of(LedgerRow),
            "SELECT a.intent_id, i.target, a.attempt_no, a.state, a.reason, a.code, a.holder,"
            "       a.finished_at"
            "  FROM leasehold.outbox_attempts a JOIN leasehold.intents i USING (intent_id)"
            " WHERE a.finished_at > clock_timestamp() - interval '1 minute'"
            " ORDER BY a.finished_at DESC LIMIT %s",
            limit,
        )

    async def finished_per_second(self, seconds: float) -> float:
        """Read how many intents came to their end per second, in the last so many seconds."""
        count: int = await self._calls.value(
            "SELECT count(*) FROM (SELECT FROM leasehold.outbox_attempts"
            " WHERE finished_at > clock_timestamp() - make_interval(secs => %s)"
            "   AND state IN ('DISPATCHED', 'FAILED', 'CANCELLED') LIMIT 100000) AS a",
            seconds,
        )
        return count / seconds

    async def unsettled(self) -> int:
        """Count what is neither finished nor held for a person."""
        return await self._calls.value(
            "SELECT count(*) FROM (SELECT FROM leasehold.outbox_pending"
            " WHERE due_at < 'infinity' LIMIT 100000) AS p"
        )

    async def clock(self) -> datetime:
        """Read the database's clock, the only one that counts."""
        return await self._calls.value("SELECT clock_timestamp()")

    async def claims_of(self, instance_id: str) -> list[ClaimLeft]:
        """Read what a worker holds."""
        return await self._calls.rows(
            rows_of(ClaimLeft),
            "SELECT intent_id, target, begun_at IS NOT NULL AS begun,"
            "       extract(epoch FROM lease_expires_at - clock_timestamp())::float AS left_seconds"
            "  FROM leasehold.outbox_pending WHERE claimed_by = %s"
            " ORDER BY target, intent_id LIMIT 1000",
            instance_id,
        )

    async def recovered(
        self, holder: str, intent_ids: Sequence[UUID], since: datetime
    ) -> list[Recovered]:
        """Read the rows that ended claims of a holder that fell silent."""
        return await self._calls.rows(
            rows_of(Recovered),
            "SELECT intent_id, state, extract(epoch FROM finished_at - %s)::float AS after_seconds"
            "  FROM leasehold.outbox_attempts"
            " WHERE intent_id = ANY (%s) AND holder = %s AND reason = 'lease_expired'"
            " ORDER BY finished_at LIMIT 1000",
            since,
            list(intent_ids),
            holder,
        )

    async def statuses(self, intent_ids: Sequence[UUID]) -> list[str]:
        """Read what became of these."""
        return await self._calls.rows(
            first_column,
            "SELECT status FROM leasehold.intent_status WHERE intent_id = ANY (%s) LIMIT 1000",
            list(intent_ids),
        )

    async def all_intents(self) -> AsyncGenerator[Counted]:
        """Read every intent of the database, a page at a time."""
        after: UUID | None = None
        while True:
            page = await self._calls.rows(
                rows_of(Counted),
                "SELECT i.intent_id, i.submission_key, s.status"
                "  FROM (SELECT intent_id, submission_key FROM leasehold.intents"
                "         WHERE %s::uuid IS NULL OR intent_id > %s"
                "         ORDER BY intent_id LIMIT %s) AS i"
                "  JOIN leasehold.intent_status s USING (intent_id) ORDER BY i.intent_id",
                after,
                after,
                _PAGE,
            )
            for one in page:
                yield one
            if len(page) < _PAGE:
                return
            after = page[-1].intent_id

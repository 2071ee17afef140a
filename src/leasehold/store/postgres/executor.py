"""Everything that the role leasehold_executor may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.store.postgres.claims import PostgresClaims
from leasehold.store.postgres.contracts import PostgresContracts
from leasehold.store.postgres.leased_items import PostgresLeasedItems
from leasehold.store.postgres.leases import PostgresLeases
from leasehold.store.postgres.monitoring import PostgresMonitoring
from leasehold.store.postgres.query import first_column, rows_of
from leasehold.store.postgres.streams import PostgresStreams
from leasehold.store.rows import FormerTerms, LedgerMove, PrunedStreams

if TYPE_CHECKING:
    from collections.abc import Sequence

_FORMER = rows_of(FormerTerms)
_PRUNED = rows_of(PrunedStreams)
_MOVED = rows_of(LedgerMove)


class PostgresExecutor(
    PostgresClaims,
    PostgresLeases,
    PostgresStreams,
    PostgresLeasedItems,
    PostgresContracts,
    PostgresMonitoring,
):
    """ExecutorStore on PostgreSQL."""

    async def read_former_terms(self) -> list[FormerTerms]:
        return await self._query.rows(_FORMER, "SELECT * FROM leasehold.read_former_terms()")

    async def move_ledger_rows(self, rows_max: int) -> LedgerMove:
        [move] = await self._query.rows(
            _MOVED, "SELECT * FROM leasehold.move_ledger_rows(%s)", rows_max
        )
        return move

    async def create_ledger_partitions(self, months_ahead: int) -> list[str]:
        return await self._query.rows(
            first_column, "SELECT leasehold.create_ledger_partitions(%s)", months_ahead
        )

    async def prune_streams(
        self, idle_seconds: float, batch_size: int, after: str | None
    ) -> PrunedStreams:
        [step] = await self._query.rows(
            _PRUNED,
            "SELECT * FROM leasehold.prune_streams("
            "clock_timestamp() - make_interval(secs => %s), %s, %s)",
            idle_seconds,
            batch_size,
            after,
        )
        return step

    async def notify_targets(self, targets: Sequence[str]) -> None:
        await self._query.value("SELECT leasehold.notify_targets(%s::text[])", list(targets))

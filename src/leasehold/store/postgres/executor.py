"""Everything that the role leasehold_executor may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.store.postgres.claims import PostgresClaims
from leasehold.store.postgres.contracts import PostgresContracts
from leasehold.store.postgres.leased_items import PostgresLeasedItems
from leasehold.store.postgres.leases import PostgresLeases
from leasehold.store.postgres.query import first_column, rows_of
from leasehold.store.postgres.streams import PostgresStreams
from leasehold.store.reader_rows import QueueDepth
from leasehold.store.rows import FormerTerms, LedgerMove, LockSquatter, PrunedStreams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.store.postgres.query import Query


_BY_NAME = rows_of(dict[str, Any])
_DEPTH = rows_of(QueueDepth)
_SQUATTER = rows_of(LockSquatter)


class PostgresMonitoring:
    """WatchStore on PostgreSQL, and the other monitoring methods of ExecutorStore."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def read_supervisor(self) -> dict[str, Any]:
        [row] = await self._query.rows(
            _BY_NAME,
            "SELECT pending, due, leased, expired_leases, due_unleased, in_doubt, held, confirming,"
            "       oldest_pending_seconds, oldest_in_doubt_seconds, oldest_xmin_age, seen_at,"
            "       age_seconds, streams_blocked, deferred, oldest_deferred_seconds"
            "  FROM leasehold.supervisor",
        )
        return row | {"streams_blocked": row["streams_blocked"].value()}

    async def begin_watch_turn(self, name: str) -> int | None:
        """Begin a turn of counting if one is due, and return its number."""
        return await self._query.value("SELECT leasehold.begin_watch_turn(%s)", name)

    async def record_queue_counts(self, turn_no: int) -> float | None:
        """Count a part of the queue; return the seconds until the next turn.

        None if another turn has begun since.
        """
        return await self._query.value("SELECT leasehold.record_queue_counts(%s)", turn_no)

    async def record_queue_depths(self, turn_no: int) -> float | None:
        """Count the queues that have a limit; return the seconds until the next turn.

        None if another turn has begun since.
        """
        return await self._query.value("SELECT leasehold.record_queue_depths(%s)", turn_no)

    async def read_queue_depths(self) -> list[QueueDepth]:
        return await self._query.rows(
            _DEPTH,
            "SELECT target, pending_max, depth, nullif(seen_at, '-infinity') AS seen_at,"
            "       extract(epoch FROM clock_timestamp() - nullif(seen_at, '-infinity'))::float8"
            "         AS age_seconds"
            "  FROM leasehold.queue_depths",
        )

    async def read_returned_instances(self, silent_for: Mapping[str, float]) -> list[str]:
        return await self._query.rows(
            first_column,
            "SELECT i.instance_id FROM leasehold.instances i"
            "  JOIN unnest(%s::text[], %s::float8[]) AS given (instance_id, seconds)"
            "    ON given.instance_id = i.instance_id"
            " WHERE i.last_seen_at > clock_timestamp() - make_interval(secs => given.seconds)"
            " ORDER BY i.instance_id",
            list(silent_for),
            list(silent_for.values()),
        )

    async def read_silent_instances(self, within_seconds: float) -> list[str]:
        """List the instances that recently stopped reporting without saying so.

        An instance that says so sets its alive_until to the moment of its last report.
        """
        return await self._query.rows(
            first_column,
            "SELECT instance_id FROM leasehold.instances"
            " WHERE alive_until <= clock_timestamp()"
            "   AND alive_until > clock_timestamp() - make_interval(secs => %s)"
            "   AND alive_until > last_seen_at + interval '0.1 seconds'"
            " ORDER BY instance_id LIMIT 1000",
            within_seconds,
        )

    async def read_lock_squatters(
        self, lease_names: Sequence[str], lock_keys: Sequence[int]
    ) -> list[LockSquatter]:
        return await self._query.rows(
            _SQUATTER,
            "SELECT * FROM leasehold.read_lock_squatters(%s::text[], %s::bigint[])",
            list(lease_names),
            list(lock_keys),
        )


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

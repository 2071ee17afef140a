"""Monitoring: counts of the queue, and instances that stopped reporting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.store.postgres.query import first_column, rows_of
from leasehold.store.reader_rows import QueueDepth
from leasehold.store.rows import LockSquatter

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
            "  JOIN unnest(%s::text[], %s::float8[]) AS asked (instance_id, seconds)"
            "    ON asked.instance_id = i.instance_id"
            " WHERE i.last_seen_at > clock_timestamp() - make_interval(secs => asked.seconds)"
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

"""What monitoring reads: the state of the queue, and instances that stopped reporting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.store.postgres.query import first_column, rows_of

if TYPE_CHECKING:
    from leasehold.store.postgres.query import Query

_BY_NAME = rows_of(dict[str, Any])


class PostgresMonitoring:
    """The monitoring methods of ExecutorStore."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def read_supervisor(self) -> dict[str, Any]:
        """Read the state of the whole queue as it was last counted, by the columns of the view."""
        [row] = await self._query.rows(
            _BY_NAME,
            "SELECT pending, due, leased, expired_leases, due_unleased, in_doubt, held, confirming,"
            "       oldest_pending_seconds, oldest_in_doubt_seconds, oldest_xmin_age, seen_at,"
            "       age_seconds"
            "  FROM leasehold.supervisor",
        )
        return row

    async def begin_watch_turn(self, name: str) -> int | None:
        """Begin a turn of counting if one is due, and return its number."""
        return await self._query.value("SELECT leasehold.begin_watch_turn(%s)", name)

    async def record_queue_counts(self, turn_no: int) -> float | None:
        """Count a part of the queue; return the seconds until the next turn.

        None if another turn has begun since.
        """
        return await self._query.value("SELECT leasehold.record_queue_counts(%s)", turn_no)

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

"""Reading what whoever watches over a queue wants to know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.store.postgres.query import first_column, rows_of

if TYPE_CHECKING:
    from leasehold.store.postgres.query import Query

_BY_NAME = rows_of(dict[str, Any])


class PostgresMonitoring:
    """The part of ExecutorStore that looks at the whole queue, and at the other instances."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def read_supervisor(self) -> dict[str, Any]:
        """Read the state of the whole queue, by the names of the view's columns."""
        [row] = await self._query.rows(
            _BY_NAME,
            "SELECT pending, due, leased, expired_leases, due_unleased, in_doubt, held, confirming,"
            "       oldest_pending_seconds, oldest_in_doubt_seconds, oldest_xmin_age"
            "  FROM leasehold.supervisor",
        )
        return row

    async def read_silent_instances(self, within_seconds: float) -> list[str]:
        """Name the instances that fell silent lately, without having said that they were going.

        Who says goodbye ends its time in the moment in which it is last seen.
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

"""Retention: deletes whole months of the ledger, as the schema's owner."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from psycopg.rows import class_row

from leasehold.domain.errors import DatabaseUnavailable, Unavailable
from leasehold.store.postgres.database_url import connect
from leasehold.store.postgres.errors import translated
from leasehold.store.rows import Pruned

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    import psycopg

_TRIES_MAX = 10
_PAUSE_SECONDS = 1.0


def prune(
    database_url: str,
    *,
    before: datetime | None = None,
    keep_days: int = 0,
    batch_size: int = 10000,
) -> Iterator[Pruned]:
    """Delete what was accepted before a time, or too many days ago by the database's clock."""
    with connect(database_url, application_name="leasehold prune") as connection:
        moment = before or _days_ago(connection, keep_days)
        while True:
            step = _prune_step(connection, moment, batch_size)
            yield step
            if step.done:
                return


def _days_ago(connection: psycopg.Connection[Any], days: int) -> datetime:
    """Read the clock once, so that all steps use the same time."""
    statement = "SELECT clock_timestamp() - make_interval(days => %s)"
    with translated():
        return connection.execute(statement, [days]).fetchall()[0][0]


def _prune_step(connection: psycopg.Connection[Any], moment: datetime, batch_size: int) -> Pruned:
    """Do one step in its own transaction. If the ledger is busy, retry instead of waiting."""
    for _ in range(_TRIES_MAX):
        try:
            with translated(), connection.transaction():
                connection.execute("SET LOCAL ROLE leasehold_owner")
                cursor = connection.cursor(row_factory=class_row(Pruned))
                cursor.execute("SELECT * FROM leasehold.prune(%s, %s)", [moment, batch_size])
                return cursor.fetchall()[0]
        except DatabaseUnavailable as error:
            if error.reason is not Unavailable.LOCKED:
                raise
        time.sleep(_PAUSE_SECONDS)
    raise DatabaseUnavailable(
        f"the ledger was busy {_TRIES_MAX} times and no month was dropped: run it at a quiet time"
    )

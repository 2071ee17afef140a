"""All cases, and those that a database must pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.conformance import (
    changes,
    fences,
    intake,
    items,
    leases,
    ledger,
    operators,
    reads,
    roles,
    stream_pauses,
    streams,
)

if TYPE_CHECKING:
    from leasehold.conformance.scene import Case
    from leasehold.store.database import Database

CASES: tuple[Case, ...] = (
    *leases.CASES,
    *fences.CASES,
    *changes.CASES,
    *ledger.CASES,
    *items.CASES,
    *streams.CASES,
    *stream_pauses.CASES,
    *intake.CASES,
    *operators.CASES,
    *reads.CASES,
    *roles.CASES,
)


def cases_for(database: Database) -> tuple[Case, ...]:
    """Return the cases of the scopes that this database says it serves."""
    return tuple(case for case in CASES if case.scope in database.scopes)

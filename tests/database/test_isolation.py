"""Lease functions refuse isolation levels whose snapshot is older than their locks."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.outbox import CLUSTER_LEASE

pytestmark = pytest.mark.one_server

ZERO = "00000000-0000-0000-0000-000000000000"
CALLS = {
    "acquire": "SELECT * FROM leasehold.acquire_lease(%(lease)s, 'other', 60)",
    "record": "SELECT * FROM leasehold.record_attempts(%(lease)s, 'holder-1', 1, '[]')",
    "begin": "SELECT * FROM leasehold.begin_leased_attempts(%(lease)s, 'holder-1', 1, '{}')",
    "claim streams": "SELECT * FROM leasehold.claim_streams(10, 'holder-1', 30, 150, '{}')",
    "record in streams": "SELECT * FROM leasehold.record_stream_attempts("
    "'holder-1', '{}', '{}', '[]')",
    "begin in streams": "SELECT * FROM leasehold.begin_stream_attempts("
    "'holder-1', '{}', '{}', '{}')",
    "look at streams": "SELECT * FROM leasehold.refresh_streams('holder-1', '{}', '{}')",
    "release streams": "SELECT * FROM leasehold.release_streams('holder-1', '{}', '{}')",
    "refresh": "SELECT * FROM leasehold.refresh_schedule("
    f"'holder-1', ARRAY[%(lease)s], '{{1}}', '-infinity', '{ZERO}', 10)",
    "window": "SELECT * FROM leasehold.refresh_due_rows("
    "'holder-1', ARRAY[%(lease)s], '{1}', '{}', 10)",
}


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("call", CALLS)
def test_holder_with_an_isolation_level_above_read_committed_is_refused(outbox, level, call):
    outbox.acquire()
    connection = outbox.database.connect("executor")
    connection.execute(CALLS[call], {"lease": CLUSTER_LEASE})  # read committed: allowed
    connection.execute(f"BEGIN ISOLATION LEVEL {level}")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=level):
        connection.execute(CALLS[call], {"lease": CLUSTER_LEASE})

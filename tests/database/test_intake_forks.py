"""An intake that is used before a process forks, and then in all of its processes at once."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.support.forking_program import INTENTS, TARGETS, run_program

pytestmark = pytest.mark.one_server


def test_forked_processes_enqueue_through_sessions_of_their_own(database, outbox):
    for target in TARGETS:
        outbox.publish(target)
    listener = database.connect()
    listener.execute("LISTEN leasehold_due")
    acknowledged = run_program("intake", database.url_as("ingest"))
    stored = database.execute("SELECT idempotency_key, intent_id FROM leasehold.intents")
    assert acknowledged == {one["idempotency_key"]: str(one["intent_id"]) for one in stored}
    assert len(acknowledged) == INTENTS * len(TARGETS)
    sessions = defaultdict(set)
    for notification in listener.notifies(timeout=0):
        sessions[notification.payload].add(notification.pid)
    assert set(sessions) == set(TARGETS)
    before, *parents = (sessions.pop(target) for target in ("before", "parent", "after"))
    assert before.intersection(*parents)  # no child has closed them
    assert not set.union(*parents) & set.union(*sessions.values())

"""A call that was begun and not sent is taken back, and leaves no trace of a first try."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.lease_holder import claim_streams
from tests.support.outbox import CLUSTER_LEASE

pytestmark = pytest.mark.one_server

HOLDER = "worker-1"


class Items:
    scope = "item"

    def begin(self, outbox):
        self.claims = outbox.claim(HOLDER)
        outbox.begin(self.claims, HOLDER)

    def fail(self, outbox):
        outbox.complete(self.claims, "RETRYABLE", HOLDER, retry_after_seconds=0)

    def take_back(self, outbox):
        ids = [one["intent_id"] for one in self.claims]
        tokens = [one["lease_token"] for one in self.claims]
        outbox.call("executor", "release_outbox_claims", HOLDER, ids, tokens, 0.0, ids)


class Cluster:
    scope = "cluster"

    def __init__(self):
        self.epoch = 0

    def begin(self, outbox):
        if not self.epoch:
            self.epoch = outbox.acquire(HOLDER)["lease_epoch"]
        rows = outbox.database.execute("SELECT intent_id FROM leasehold.outbox_pending")
        self.ids = [row["intent_id"] for row in rows]
        self.call(outbox, "begin_leased_attempts", self.ids)

    def fail(self, outbox):
        results = [
            {"intent_id": str(one), "state": "RETRYABLE", "retry_after_seconds": 0}
            for one in self.ids
        ]
        self.call(outbox, "record_attempts", results)

    def take_back(self, outbox):
        [row] = self.call(outbox, "release_leased_attempts", self.ids)
        assert row["release_leased_attempts"] == len(self.ids)

    def call(self, outbox, function, argument):
        return outbox.call("executor", function, CLUSTER_LEASE, HOLDER, self.epoch, argument)


class Streams:
    scope = "stream"

    def begin(self, outbox):
        [self.held] = claim_streams(outbox, HOLDER, ["sms"])
        self.ids = [head["intent_id"] for head in self.held.heads]
        self.held.begin(self.ids)

    def fail(self, outbox):
        del outbox
        self.held.record(self.ids, "RETRYABLE", retry_after_seconds=0)
        self.held.release()

    def take_back(self, outbox):
        del outbox
        self.held.release(self.ids)


@pytest.mark.parametrize("scope", [Items, Cluster, Streams])
def test_call_that_was_not_sent_was_never_tried(outbox, scope):
    holder = scope()
    outbox.publish(guarantee="lookup", scope=holder.scope)
    [intent_id] = outbox.enqueue(stream="s")
    holder.begin(outbox)
    begun = outbox.pending(intent_id)
    assert None not in (begun["begun_at"], begun["first_tried_at"])
    holder.take_back(outbox)
    row = outbox.pending(intent_id)
    assert (row["begun_at"], row["begun_epoch"], row["first_tried_at"]) == (None, None, None)
    assert (outbox.states(intent_id), row["attempt_count"]) == ([], 0)


@pytest.mark.parametrize("scope", [Items, Cluster, Streams])
def test_call_that_was_tried_before_keeps_the_time_of_its_first_try(outbox, scope):
    holder = scope()
    outbox.publish(guarantee="lookup", scope=holder.scope)
    [intent_id] = outbox.enqueue(stream="s")
    holder.begin(outbox)
    holder.fail(outbox)
    outbox.make_due()
    tried = outbox.pending(intent_id)["first_tried_at"]
    holder.begin(outbox)
    assert outbox.pending(intent_id)["begun_at"]
    holder.take_back(outbox)
    row = outbox.pending(intent_id)
    assert (row["begun_at"], row["first_tried_at"]) == (None, tried)
    assert outbox.states(intent_id) == ["RETRYABLE"]


def test_takeover_puts_only_what_was_not_taken_back_in_doubt(outbox):
    holder = Cluster()
    outbox.publish(guarantee="blind", scope=holder.scope)
    taken_back, sent = outbox.enqueue(2)
    holder.begin(outbox)
    holder.call(outbox, "release_leased_attempts", [taken_back])
    outbox.expire_lease()
    outbox.acquire("successor")
    assert [outbox.states(one) for one in (taken_back, sent)] == [[], ["IN_DOUBT"]]
    # The former leader can take nothing back any more: its lease is lost.
    connection = outbox.as_role("executor")
    with pytest.raises(psycopg.Error) as refused:
        connection.execute(
            "SELECT leasehold.release_leased_attempts(%s, %s, %s, %s)",
            [CLUSTER_LEASE, HOLDER, holder.epoch, [sent]],
        )
    assert refused.value.sqlstate == "P7002"

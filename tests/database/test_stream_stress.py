"""Many enqueuers and holders at once: every row is executed once, in the order of its stream.

Some enqueuers roll back, and some stay open while the head that they saw is finished. Some holders
disappear between two calls. In a pipeline, each row is submitted first and confirmed later.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict

import pytest

from tests.support.lease_holder import claim_streams
from tests.support.mutants import mutate
from tests.support.outbox import Outbox
from tests.support.race import race

ENQUEUERS = 6
CLAIMERS = 4
STREAMS = [f"s{number}" for number in range(12)]
TRANSACTIONS = 120
EMPTY_ROUNDS = 20
ASK_SECONDS = 0.005


class Run:
    """What was executed, by stream and in order, and how many enqueuers are still at work."""

    def __init__(self, database, seed, *, is_pipelined):
        self.database = database
        self.is_pipelined = is_pipelined
        self.seed = seed
        self.executed = defaultdict(list)
        self.enqueuing = ENQUEUERS
        self.lock = threading.Lock()

    def work(self, caller, number):
        chance = random.Random(self.seed + number)
        if number < ENQUEUERS:
            try:
                self.enqueue(chance)
            finally:
                with self.lock:
                    self.enqueuing -= 1
        else:
            self.execute(caller, f"holder-{number}", chance)

    def enqueue(self, chance):
        connection = self.database.connect("ingest", autocommit=False)
        ingest = Outbox(self.database)
        ingest.as_role = lambda _: connection
        for _ in range(TRANSACTIONS):
            # Sorted: whoever locks several streams in a transaction must do it in one order.
            for stream in sorted(chance.sample(STREAMS, chance.choice([1, 1, 2]))):
                ingest.enqueue(chance.randint(1, 3), "pay", stream=stream)
                if chance.random() < 0.5:
                    time.sleep(chance.random() / 100)  # stay open
            connection.rollback() if chance.random() < 0.2 else connection.commit()

    def execute(self, caller, name, chance):
        empty = 0
        while empty < EMPTY_ROUNDS:
            is_last = self.enqueuing == 0
            holders = claim_streams(caller, name, streams_max=4)
            for holder in holders:
                if chance.random() < 0.1:
                    caller.expire_lease(holder.lease_name)  # it disappears
                else:
                    self.work_off(holder)
            empty = empty + 1 if is_last and not holders else 0
            if self.is_pipelined and not holders:
                time.sleep(ASK_SECONDS)

    def work_off(self, holder):
        """Execute heads until the stream is freed or lost."""
        rows = list(holder.heads) or holder.look(free_idle=True)
        while rows[0]["is_held"]:
            ids = [row["intent_id"] for row in rows if row["intent_id"]]
            if not ids:
                rows = holder.look(free_idle=True)
                continue
            if rows[0]["last_state"] == "SUBMITTED":
                rows = holder.record_next(ids, "DISPATCHED")
                continue
            begun = holder.begin(ids)
            if set(begun) != {"begun"}:
                assert set(begun) == {"lease_lost"}
                return
            self.executed[holder.stream] += ids
            if self.is_pipelined:
                rows = holder.record_next(ids, "SUBMITTED", retry_after_seconds=ASK_SECONDS)
            else:
                rows = holder.record_next(ids, "DISPATCHED")


@pytest.fixture
def streams(outbox):
    outbox.publish("pay", scope="stream", batch_max=2)
    return outbox


def run(database, seed, *, is_pipelined=False):
    done = Run(database, seed, is_pipelined=is_pipelined)
    race(database, ENQUEUERS + CLAIMERS, done.work)
    committed = database.execute(
        "SELECT stream, array_agg(intent_id ORDER BY stream_seq) AS ids"
        "  FROM leasehold.intents GROUP BY stream"
    )
    return {row["stream"]: row["ids"] for row in committed}, done.executed


@pytest.mark.parametrize("is_pipelined", [False, True], ids=["one by one", "pipelined"])
def test_every_committed_row_is_executed_once_and_in_order(
    streams, database, request, is_pipelined
):
    if is_pipelined:
        streams.publish("pay", scope="stream", guarantee="lookup", batch_max=2, pipeline_max=5)
    seed = random.randrange(10**6)
    request.node.user_properties.append(("seed", seed))
    committed, executed = run(database, seed, is_pipelined=is_pipelined)
    assert dict(executed) == committed, f"seed {seed}"
    assert sum(map(len, committed.values())) > TRANSACTIONS
    assert database.execute("SELECT FROM leasehold.outbox_pending") == []
    [row] = database.execute(
        "SELECT count(*) AS streams FROM leasehold.leases WHERE expires_at > '-infinity'"
    )
    assert row["streams"] == 0


@pytest.mark.one_server
@pytest.mark.usefixtures("streams")
def test_mutant_that_looks_once_leaves_rows_behind(database):
    mutate(database, "lock_settled_streams", r"FOR SHARE OF s SKIP LOCKED", "")
    committed, executed = run(database, 1)
    assert sum(map(len, executed.values())) < sum(map(len, committed.values()))

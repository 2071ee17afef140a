"""Claims have a budget of bytes: large payloads stall nobody, and something always comes."""

from __future__ import annotations

import json

import pytest

from leasehold.executor import content_memory
from leasehold.executor.claim_size import CLAIM_BYTES_MAX
from tests.database.test_competing import Worker
from tests.database.test_leader_steps import leader_of, publish
from tests.support.lease_holder import claim_streams, stream_holders, take

pytestmark = pytest.mark.one_server

MIB = 1024 * 1024
LARGEST = "x" * (MIB - 2)  # with its quotes: the largest payload that is accepted
FITTING = CLAIM_BYTES_MAX // MIB
CLAIM_WITHIN = (
    "SELECT * FROM leasehold.claim_outbox_batch(100, 'worker-1', 30, %s, p_bytes_max => %s)"
)


def enqueue_large(outbox, count, target="sms", **fields):
    ids = []
    for _ in range(count):
        ids += outbox.enqueue(1, target, payload=LARGEST, **fields)
    return ids


def ids(rows):
    return [row["intent_id"] for row in rows]


def within(outbox, bytes_max, *targets):
    return outbox.as_role("executor").execute(CLAIM_WITHIN, [list(targets), bytes_max]).fetchall()


def test_claims_hand_out_no_more_than_their_budget_and_everything_in_the_end(outbox):
    outbox.publish("sms")
    enqueued = enqueue_large(outbox, 2 * FITTING + 1)
    claims = [outbox.claim(batch_size=100) for _ in range(4)]
    assert [len(claimed) for claimed in claims] == [FITTING, FITTING, 1, 0]
    assert {one for claimed in claims for one in ids(claimed)} == set(enqueued)


def test_row_over_the_whole_budget_is_handed_out_alone(outbox):
    outbox.publish("sms")
    first, second, *_ = outbox.enqueue(3)
    assert ids(within(outbox, 1, "sms")) == [first]
    assert ids(within(outbox, 1, "sms")) == [second]


def test_large_payloads_of_one_target_leave_room_to_the_others(outbox):
    for target in ("large", "small", "other"):
        outbox.publish(target)
    enqueue_large(outbox, 2 * FITTING, "large")
    small = {*outbox.enqueue(20, "small"), *outbox.enqueue(5, "other")}
    claimed = outbox.claim(batch_size=100, targets=["large", "small", "other"])
    assert small < set(ids(claimed))
    assert len(claimed) == len(small) + FITTING - 1


def test_share_that_a_target_leaves_is_within_the_budget_too(outbox):
    for target in ("sms", "idle"):
        outbox.publish(target)
    outbox.enqueue(10)
    [size] = {
        row["content_bytes"]
        for row in outbox.database.execute("SELECT content_bytes FROM leasehold.outbox_pending")
    }
    statement = "SELECT * FROM leasehold.claim_outbox_batch(8, 'w', 30, %s, p_bytes_max => %s)"
    claimed = outbox.as_role("executor").execute(statement, [["sms", "idle"], 6 * size + 1])
    assert len(claimed.fetchall()) == 6


def test_seats_share_the_budget_and_the_first_row_is_always_among_them(database):
    def within_budget(sizes, seats, bytes_max, least=1):
        [row] = database.execute(
            "SELECT leasehold.rows_within_budget(%s, %s, %s, %s) AS places",
            [sizes, seats, bytes_max, least],
        )
        return sorted(row["places"])

    assert within_budget([5, 5, 5, 1, 1, 1], [0, 0, 0, 1, 1, 1], 8) == [1, 4, 5, 6]
    assert within_budget([5, 5, 5, 1, 1, 1], [1, 1, 1, 0, 0, 0], 8) == [1, 4, 5, 6]
    # Whose turn it is comes first, even if its row is over the budget.
    assert within_budget([50, 1], [0, 1], 8) == [1]
    assert within_budget([50, 1], [1, 0], 8) == [2]
    assert within_budget([50, 1], [0, 1], 8, least=0) == []
    assert within_budget([3, 9, 1], [0, 0, 0], 8) == [1]
    assert within_budget([], [], 8) == []


async def test_executor_goes_on_at_once_after_a_claim_that_was_cut(outbox, stores):
    for target in ("large", "small"):
        outbox.publish(target)
    enqueue_large(outbox, 2 * FITTING + 3, "large")
    outbox.enqueue(3, "small")
    worker = Worker(stores.executor, {"large": 30, "small": 30}, slots=100)
    started = [len(await worker.step()) for _ in range(4)]
    assert started[0] < 3 + FITTING + 1
    assert sum(started) == 2 * FITTING + 3 + 3


async def test_executor_claims_nothing_while_its_memory_is_full(outbox, stores, monkeypatch):
    monkeypatch.setattr(content_memory, "CONTENT_BYTES_MAX", FITTING * MIB)
    outbox.publish("sms")
    enqueue_large(outbox, FITTING + 2)
    worker = Worker(stores.executor, {"sms": 30}, slots=100)
    assert len(await worker.step()) == FITTING
    assert await worker.step() == []
    worker.end_calls()
    assert len(await worker.step()) == 2
    assert worker.slots.memory._bytes == 2 * MIB
    worker.end_calls()
    assert worker.slots.memory._bytes == 0


def streams_of(outbox, count):
    outbox.publish("pay", scope="stream")
    for number in range(count):
        outbox.enqueue(1, "pay", stream=f"s-{number:02}", payload=LARGEST)


def begun_streams(outbox):
    """Claim streams whose heads are begun."""
    arguments = 100, "holder-1", 30, 180, ["pay"], None, None, True
    return stream_holders(outbox, "holder-1", outbox.call("executor", "claim_streams", *arguments))


def test_claim_of_streams_hands_out_no_more_than_the_budget(outbox):
    streams_of(outbox, 2 * FITTING + 1)
    claims = [claim_streams(outbox, f"holder-{number}") for number in range(4)]
    assert [len(holders) for holders in claims] == [FITTING, FITTING, 1, 0]
    heads = [head["intent_id"] for holders in claims for one in holders for head in one.heads]
    assert len(set(heads)) == 2 * FITTING + 1


def test_batch_of_a_stream_is_cut_and_its_order_is_kept(outbox):
    outbox.publish("pay", scope="stream", batch_max=100)
    enqueued = enqueue_large(outbox, FITTING + 2, "pay", stream="a")
    [holder] = begun_streams(outbox)
    assert ids(holder.heads) == enqueued[:FITTING]
    rows = holder.record_next(enqueued[:FITTING], "DISPATCHED")
    assert ids(rows) == enqueued[FITTING:]


def test_next_heads_of_streams_that_end_together_have_a_budget(outbox):
    outbox.publish("pay", scope="stream")
    streams = [f"s-{number:02}" for number in range(FITTING + 3)]
    for stream in streams:
        outbox.enqueue(1, "pay", stream=stream)
        outbox.enqueue(1, "pay", stream=stream, payload=LARGEST)
    holders = begun_streams(outbox)
    assert len(holders) == len(streams)
    results = [
        {"intent_id": str(one.heads[0]["intent_id"]), "state": "DISPATCHED"} for one in holders
    ]
    names = [one.lease_name for one in holders]
    rows = outbox.call(
        "executor",
        "record_stream_attempts",
        "holder-1",
        names,
        [one.epoch for one in holders],
        json.dumps(results),
    )
    handed_out = [row for row in rows if row["submission_key"]]
    assert len(handed_out) == FITTING
    assert [row["is_held"] for row in rows if row["stream_state"] == "waiting"] == [False] * 3
    again = claim_streams(outbox, "holder-2")
    assert len(again) == 3


async def test_leader_marks_no_more_large_calls_than_the_budget_and_goes_on(stores, outbox):
    await publish(stores, "bank")
    enqueued = enqueue_large(outbox, FITTING + 1, "bank")
    outbox.enqueue(1, "bank")
    leader = await leader_of(stores, "bank")
    await leader.dispatcher.step()
    assert len(leader.runner.started) == FITTING
    await leader.dispatcher.step()
    assert len(leader.runner.started) == FITTING + 2
    assert {item.claimed.intent_id for item in leader.runner.started} > set(enqueued)
    assert (leader.troubles, leader.dispatcher._marks_stale) == ([], False)


def test_window_of_a_leader_has_no_content_that_is_large_as_text(outbox):
    outbox.publish("bank", scope="cluster")
    numbers = ",".join(["1e308"] * 40)
    entries = f'[{{"target": "bank", "payload": [{numbers}]}}, {{"target": "bank", "payload": 1}}]'
    outbox.call("ingest", "enqueue_intents", entries)
    holder = take(outbox)
    fence = (holder.name, [holder.lease_name], [holder.epoch])
    large, small = outbox.call("executor", "refresh_due_rows", *fence, ["bank"], 10, 1000)
    assert (large["created_at"], large["content_bytes"]) == (None, 40 * 311)
    assert (small["payload"], small["content_bytes"]) == (1, 1)

"""Signed batches reach a ledger that decides with its blocks, forgets batches, and is busy."""

from __future__ import annotations

import base64

import pytest

from tests.support.engine import until
from tests.support.http_gateways import batch_id


def publish(engine, ask_after_seconds=0.1, **terms):
    gateway = {
        "kind": "ledger",
        "url": f"{engine.sandbox.url}/ledger",
        "allow_private": True,
        "ask_after_seconds": ask_after_seconds,
    }
    engine.publish("batches", "lookup", **({"gateway": gateway} | terms))


def enqueue(engine, *names, **fields):
    """Enqueue signed batches. A field that is a function is called with the name."""
    entries = [
        {name_of: value(name) for name_of, value in fields.items()}
        | {
            "target": "batches",
            "body": base64.b64encode(f"signed {name}".encode()).decode(),
            "content_type": "application/octet-stream",
            "metadata": {"batch_id": batch_id(name)},
        }
        for name in names
    ]
    return [row["intent_id"] for row in engine.outbox.enqueue_entries(entries)]


@pytest.mark.parametrize("scope", ["item", "cluster"])
async def test_batch_is_delivered_only_when_its_block_is_committed(engine, scope):
    engine.sandbox.set_faults("ledger", pending_seconds=0.3)
    publish(engine, scope=scope, quarantine_seconds=120)
    ids = enqueue(engine, "a", "b")
    engine.worker()
    await engine.until_status(ids)
    for intent_id in ids:
        states = engine.outbox.states(intent_id)
        assert states[0] == "SUBMITTED"
        assert states[-1] == "DISPATCHED"
    assert sorted(engine.sandbox.effect_counts("ledger")) == sorted([batch_id("a"), batch_id("b")])


async def test_evicted_batch_is_asked_for_again_before_it_is_sent_again(engine):
    engine.sandbox.set_faults("ledger", evict_rate=1)
    publish(engine)
    [intent_id] = enqueue(engine, "a")
    engine.worker()
    await until(lambda: "IN_DOUBT" in engine.outbox.states(intent_id))
    engine.sandbox.set_faults("ledger")
    await until(lambda: engine.outbox.make_due() or engine.statuses([intent_id]) == ["accepted"])
    assert engine.outbox.states(intent_id) == [
        "SUBMITTED",
        "IN_DOUBT",
        "RETRYABLE",
        "SUBMITTED",
        "DISPATCHED",
    ]
    sent = [one.kind for one in engine.sandbox.requests() if one.key == batch_id("a")]
    first, second = (n for n, kind in enumerate(sent) if kind == "submission")
    assert sent[first + 1 : second] == ["lookup", "lookup"], "before and after the quarantine"
    assert engine.sandbox.effect_counts("ledger") == {batch_id("a"): 1}


def lookups(engine):
    """The ids of each status request, in the order of the requests."""
    requests = {}
    after = 0
    while page := engine.sandbox.requests(after):
        for one in page:
            if one.kind == "lookup":
                requests.setdefault(one.received_at, []).append(one.key)
        after = page[-1].number
    return list(requests.values())


@pytest.mark.parametrize("scope", ["item", "stream", "cluster"])
async def test_many_batches_that_wait_for_blocks_are_confirmed_with_few_requests(engine, scope):
    engine.sandbox.set_faults("ledger", pending_seconds=2)
    publish(engine, scope=scope, quarantine_seconds=120, concurrency=100)
    names = [f"batch {number}" for number in range(100)]
    ids = enqueue(engine, *names, **({"stream": str} if scope == "stream" else {}))
    engine.worker(concurrency="100")
    await engine.until_status(ids)
    asked = lookups(engine)
    assert {one for batch in asked for one in batch} == {batch_id(name) for name in names}
    assert max(map(len, asked)) <= 50
    assert sum(map(len, asked)) >= 10 * len(asked), "that is 10 ids per request on average"
    for intent_id in ids:
        assert engine.outbox.states(intent_id) == ["SUBMITTED", "DISPATCHED"]


@pytest.mark.parametrize("scope", ["item", "stream", "cluster"])
async def test_request_asks_about_more_batches_than_there_are_slots(engine, scope):
    publish(engine, scope=scope, quarantine_seconds=120, ask_after_seconds=300)
    names = [f"batch {number}" for number in range(200)]
    ids = enqueue(engine, *names, **({"stream": str} if scope == "stream" else {}))
    engine.worker(concurrency="5")
    await engine.until_status(ids, "confirming")
    engine.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = clock_timestamp(),"
        "  last_modified_at = greatest(clock_timestamp(), last_modified_at + interval '1 second')"
    )
    await engine.until_status(ids)
    sizes = [len(one) for one in lookups(engine)]
    assert sum(sizes) == 200
    assert 5 < max(sizes) <= 50


@pytest.mark.parametrize("scope", ["item", "stream", "cluster"])
async def test_submission_that_nobody_can_be_asked_about_ends_in_doubt(engine, scope):
    functions = "tests.support.python_gateways:submit_only", "tests.support.python_gateways:fail"
    engine.publish(
        "own",
        "lookup",
        scope=scope,
        gateway={"kind": "python", "function": functions[0], "lookup": functions[1]},
        quarantine_seconds=120,
        confirm_within_seconds=0.5,
    )
    entry = {"target": "own", "payload": {}} | ({"stream": "s"} if scope == "stream" else {})
    [row] = engine.outbox.enqueue_entries([entry])
    engine.worker()
    await engine.until_status([row["intent_id"]], "in_doubt")
    ledger = engine.outbox.ledger(row["intent_id"])
    assert [(one["state"], one["reason"]) for one in ledger] == [
        ("SUBMITTED", None),
        ("IN_DOUBT", "unconfirmed"),
    ]


@pytest.mark.parametrize("pipeline_max", [1, 10])
async def test_pipeline_submits_in_order_while_earlier_batches_await_their_block(
    engine, pipeline_max
):
    engine.sandbox.set_faults("ledger", pending_seconds=0.5)
    publish(engine, scope="stream", quarantine_seconds=120, pipeline_max=pipeline_max)
    names = [f"batch {number}" for number in range(12)]
    ids = enqueue(engine, *names, stream=lambda _: "service-7")
    engine.worker(concurrency="20")
    await engine.until_status(ids)
    kinds = [(one.kind, one.key) for one in engine.sandbox.requests()]
    submitted = [key for kind, key in kinds if kind == "submission"]
    assert submitted == [batch_id(name) for name in names]
    before_first_lookup = [kind for kind, _ in kinds].index("lookup")
    asked_at_once = max(map(len, lookups(engine)))
    if pipeline_max == 1:
        assert (before_first_lookup, asked_at_once) == (1, 1)
    else:
        assert before_first_lookup > 1
        assert 1 < asked_at_once <= pipeline_max
    assert all(engine.outbox.states(one) == ["SUBMITTED", "DISPATCHED"] for one in ids)

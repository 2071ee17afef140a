"""The promise of each gateway class, after a response was lost."""

from __future__ import annotations

import aiohttp
import pytest

from tests.support.elections import ROW_LEASE_SETTINGS
from tests.support.engine import until
from tests.support.lease_holder import take


def submissions(engine, guarantee):
    return [
        entry
        for entry in engine.sandbox.requests()
        if (entry.gateway, entry.kind) == (guarantee, "submission")
    ]


async def in_doubt(engine, intent_id):
    """Wait until the first response is lost, and return the ledger row that says so."""
    await until(lambda: engine.outbox.states(intent_id)[:1] == ["IN_DOUBT"])
    engine.sandbox.set_faults()
    return engine.outbox.ledger(intent_id)[0]


@pytest.mark.parametrize("guarantee", ["keyed", "fenced"])
async def test_lost_response_is_resubmitted_with_the_same_key_and_has_one_effect(engine, guarantee):
    engine.publish("pay", guarantee)
    engine.sandbox.set_faults(lost_response_rate=1)
    [intent_id] = engine.outbox.enqueue(1, "pay")
    engine.worker()
    await in_doubt(engine, intent_id)
    await engine.until_status([intent_id])
    states = engine.outbox.states(intent_id)
    assert states == ["IN_DOUBT"] * (len(states) - 1) + ["DISPATCHED"]
    sent = submissions(engine, guarantee)
    assert len({entry.key for entry in sent}) == 1
    assert [entry.fencing_token for entry in sent] == list(range(1, len(sent) + 1))
    assert engine.sandbox.effects(guarantee).effects == 1


async def test_lost_response_of_a_lookup_gateway_is_asked_about_after_the_quarantine(engine):
    engine.publish("bank", "lookup", quarantine_seconds=150)
    engine.sandbox.set_faults(lost_response_rate=1)
    [intent_id] = engine.outbox.enqueue(1, "bank")
    engine.worker()
    doubt = await in_doubt(engine, intent_id)
    due_at = engine.outbox.pending(intent_id)["due_at"]
    assert (due_at - doubt["finished_at"]).total_seconds() == 150
    engine.outbox.make_due()
    await engine.until_status([intent_id])
    assert engine.outbox.states(intent_id) == ["IN_DOUBT", "DISPATCHED"]
    assert [entry.kind for entry in engine.sandbox.requests()] == ["submission", "lookup"]
    assert engine.sandbox.effects("lookup").effects == 1


async def test_request_that_never_arrived_is_sent_again_only_after_the_gateway_denied_it(engine):
    engine.publish("bank", "lookup")
    engine.sandbox.set_faults(lost_request_rate=1)
    [intent_id] = engine.outbox.enqueue(1, "bank")
    engine.worker()
    await in_doubt(engine, intent_id)
    engine.outbox.make_due()
    await engine.until_status([intent_id])
    assert engine.outbox.states(intent_id) == ["IN_DOUBT", "RETRYABLE", "DISPATCHED"]
    kinds = [entry.kind for entry in engine.sandbox.requests()]
    assert kinds == ["submission", "lookup", "submission"]
    assert engine.sandbox.effects("lookup").effects == 1


async def test_intent_of_a_blind_gateway_is_held_after_a_lost_response(engine):
    engine.publish("fax", "blind")
    engine.publish("sms", "keyed")
    engine.sandbox.set_faults("blind", lost_response_rate=1)
    [intent_id] = engine.outbox.enqueue(1, "fax")
    engine.worker()
    await engine.until_status([intent_id], "held")
    # The worker works, but does not touch it.
    await engine.until_status(engine.outbox.enqueue(5, "sms"))
    assert engine.outbox.states(intent_id) == ["IN_DOUBT"]
    assert len(submissions(engine, "blind")) == 1


async def test_gateway_that_confirms_later_is_asked_until_it_does(engine):
    engine.publish("bank", "lookup")
    engine.sandbox.set_faults(pending_seconds=0.3)
    [intent_id] = engine.outbox.enqueue(1, "bank")
    engine.worker()
    await until(lambda: engine.outbox.make_due() or engine.statuses([intent_id]) == ["accepted"])
    states = engine.outbox.states(intent_id)
    assert states[0] == "SUBMITTED"
    assert states[-1] == "DISPATCHED"
    assert engine.sandbox.effects("lookup").effects == 1


@pytest.mark.parametrize("after", [{"scope": "item"}, {"scope": "cluster", "lease_name": "other"}])
async def test_redriven_intent_is_not_refused_for_a_lower_token(engine, after):
    for _ in range(11):  # so many elections
        assert take(engine.outbox).release()
    engine.publish("pay", "fenced", scope="cluster", retry_policy="one_shot", attempts_max=1)
    engine.sandbox.set_faults("fenced", refuse_rate=1, retry_after_seconds=0)
    [intent_id] = engine.outbox.enqueue(1, "pay")
    engine.worker(**ROW_LEASE_SETTINGS)
    await engine.until_status([intent_id], "exhausted")
    engine.publish("pay", "fenced", **after)
    engine.sandbox.set_faults()
    [row] = engine.outbox.call("operator", "redrive_intents", [intent_id], "operator", "again")
    await engine.until_status([row["new_intent_id"]])
    [refused, accepted] = submissions(engine, "fenced")
    assert (refused.status, refused.fencing_token) == (503, 13)  # epoch 12, attempt 1
    assert (accepted.status, accepted.key) == (200, refused.key)
    assert accepted.fencing_token > refused.fencing_token


@pytest.mark.parametrize("scope", ["item", "cluster", "stream"])
async def test_token_that_is_called_stale_under_our_lease_is_logged_and_counted(engine, scope):
    engine.publish("pay", "fenced", scope=scope)
    [intent_id] = engine.outbox.enqueue(1, "pay", **({"stream": "s"} if scope == "stream" else {}))
    [row] = (
        engine.outbox.as_role("owner")
        .execute("SELECT submission_key FROM leasehold.intents")
        .fetchall()
    )
    # As after a restore: the gateway has seen a token that this database never granted.
    engine.sandbox.set_faults("fenced", refuse_rate=1)
    seen = {"Idempotency-Key": str(row["submission_key"]), "Fencing-Token": "1000"}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{engine.sandbox.url}/fenced", headers=seen) as response:
            assert response.status == 503
        engine.sandbox.set_faults()
        worker = engine.worker("--metrics-port", "0", **ROW_LEASE_SETTINGS)
        line = await worker.logged("stale_token_refused")
        port = (await worker.logged("metrics_served"))["port"]
        async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
            found = await response.text()
    assert (line["intent_id"], line["target"], line["code"]) == (str(intent_id), "pay", "409")
    [total] = [
        text.rsplit(" ", 1)[1]
        for text in found.splitlines()
        if text.startswith("leasehold_stale_tokens_refused_total{")
    ]
    assert float(total) >= 1
    assert engine.sandbox.effects("fenced").effects == 0

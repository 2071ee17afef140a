"""A worker names the targets that it does not serve: in its log, and in its metrics."""

from __future__ import annotations

import httpx
import pytest

from tests.support.engine import until
from tests.support.serve_process import eventually


async def scrape(worker, metric="target_not_served"):
    """Return the values of a metric by target."""
    port = (await worker.logged("metrics_served"))["port"]
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    found = [line for line in text.splitlines() if line.startswith(f"leasehold_{metric}{{")]
    return {line.split('target="')[1].split('"')[0]: float(line.split()[-1]) for line in found}


async def test_target_of_the_option_that_is_not_published_is_named_with_its_nearest(engine):
    engine.publish("payments")
    worker = engine.worker("--targets", "paymets,payments,nosuch")
    await worker.started()
    lines = await until(lambda: len(found := worker.lines("target_not_published")) == 2 and found)
    advice = {line["target"]: line["advice"] for line in lines}
    assert set(advice) == {"paymets", "nosuch"}
    assert "did you mean payments?" in advice["paymets"]
    assert "leasehold targets apply" in advice["nosuch"]
    assert {line["level"] for line in lines} == {"warning"}


async def test_worker_without_any_target_says_so_until_one_is_published(engine):
    worker = engine.worker("--targets", "nosuch")
    await worker.logged("targets_missing")
    await worker.logged("target_not_published")
    engine.publish("nosuch")
    await engine.until_status(engine.outbox.enqueue(1, "nosuch"))
    assert len(worker.lines("targets_missing")) == 1
    assert len(worker.lines("target_not_published")) == 1


async def test_target_without_a_gateway_is_named_in_the_log(engine):
    engine.publish("sms")
    engine.outbox.publish("accounts", scope="stream", gateway=None)
    worker = engine.worker()
    line = await worker.logged("target_refused")
    assert (line["target"], line["version"]) == ("accounts", 1)
    assert "gateway" in line["error"]
    assert line["level"] == "error"


async def test_metric_is_one_for_each_target_that_this_instance_does_not_serve(engine):
    engine.publish("sms")
    engine.publish("orders", scope="cluster")
    engine.publish("accounts", scope="stream")
    engine.outbox.publish("plain", gateway=None)
    engine.outbox.publish("strange", gateway=None, two_phase=True)
    worker = engine.worker("--metrics-port", "0")
    part = engine.worker("--metrics-port", "0", "--targets", "orders,plain")
    await worker.started()
    await part.started()
    expected = {"sms": 0, "orders": 0, "accounts": 0, "plain": 1, "strange": 1}
    await poll(lambda: scrape(worker), expected)
    await poll(lambda: scrape(part), expected | {"sms": 1, "accounts": 1})
    engine.publish("plain", scope="stream")
    await poll(lambda: scrape(worker), expected | {"plain": 0})


@pytest.mark.parametrize("scope", ["item", "stream"])
async def test_intent_of_a_version_that_cannot_be_opened_is_counted_and_can_be_moved(engine, scope):
    """A newer version is served, so nothing else tells of the intent."""
    bad = {"kind": "http", "url": "http://10.0.0.7/send"}
    engine.publish("sms", scope=scope, gateway=bad)
    stream = {"stream": "s"} if scope == "stream" else {}
    [stuck] = engine.outbox.enqueue(1, "sms", **stream)
    engine.publish("sms", scope=scope)
    worker = engine.worker("--metrics-port", "0")
    line = await worker.logged("contract_refused")
    assert (line["target"], line["version"], line["intent_id"]) == ("sms", 1, str(stuck))
    assert "which is private" in line["error"]
    assert "redrive" in line["advice"]

    async def is_counted():
        return (await scrape(worker, "contract_refused_total")).get("sms", 0) >= 1

    await eventually(is_counted)
    assert await scrape(worker) == {"sms": 0}
    operator = engine.outbox.as_role("operator")

    def is_cancelled():
        call = (
            "SELECT leasehold.skip_stream_head('sms', 's', %s, 'ann', 'a test') AS verdict"
            if stream
            else "SELECT leasehold.cancel_intent(%s, 'ann', 'a test') AS verdict"
        )
        return operator.execute(call, [stuck]).fetchone()["verdict"] in {"cancelled", "skipped"}

    await until(is_cancelled)
    [again] = engine.outbox.call("operator", "redrive_intents", [stuck], "ann", "a test")
    await engine.until_status([again["new_intent_id"]])


async def poll(read, expected):
    async def is_expected():
        return await read() == expected

    await eventually(is_expected)

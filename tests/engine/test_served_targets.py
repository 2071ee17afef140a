"""A worker names the targets that it does not serve: in its log, and in its metrics."""

from __future__ import annotations

import httpx

from tests.support.engine import until
from tests.support.serve_process import eventually


async def scrape(worker):
    """Return the values of leasehold_target_not_served by target."""
    port = (await worker.logged("metrics_served"))["port"]
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    found = [line for line in text.splitlines() if line.startswith("leasehold_target_not_served{")]
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
    assert line["target"] == "accounts"
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


async def poll(read, expected):
    async def is_expected():
        return await read() == expected

    await eventually(is_expected)

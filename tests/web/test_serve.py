"""`leasehold serve` as a process: accepts, submits, reports readiness, and stops gracefully."""

from __future__ import annotations

import asyncio
import signal
import ssl

import httpx
import psycopg
import pytest

from leasehold.sandbox import Sandbox
from tests.support.certificates import self_signed
from tests.support.cli_process import assert_one_line_of_error
from tests.support.cli_process import forked_leasehold as leasehold
from tests.support.engine import Engine, until
from tests.support.serve_process import Serving, eventually
from tests.support.tcp_proxy import TcpProxy

SMS = {"target": "sms", "payload": {"to": "+41"}}


@pytest.fixture
async def sandbox():
    async with Sandbox(seed=1) as sandbox:
        yield sandbox


@pytest.fixture
def engine(database, outbox, sandbox, tmp_path):
    engine = Engine(database, outbox, sandbox, tmp_path)
    yield engine
    engine.close()


@pytest.fixture
def serving(database, tmp_path):
    """Starts processes, and ends them after the test."""
    started = []

    def start(*arguments, **more):
        log = tmp_path / f"serve-{len(started)}.log"
        started.append(Serving(database, log, *arguments, **more))
        return started[-1]

    yield start
    for one in started:
        one.close()


async def test_enqueued_intent_is_submitted_by_the_same_process(engine, serving):
    engine.publish("sms")
    async with await serving().client() as client:
        response = await client.post("/v1/intents?wait_seconds=30", json=SMS)
        assert response.status_code == 201
        assert response.json()["intent"]["status"] == "accepted", response.text
        ready = (await client.get("/readyz")).json()
        [instance] = (await client.get("/v1/instances")).json()["instances"]
    assert ready["status"] == "ready"
    assert ready["scopes"]["item"]["mode"] == "competing"
    assert ready["scopes"]["item"]["holder_id"] == ready["instance_id"] == instance["instance_id"]


async def test_instance_with_no_execute_only_accepts_intents(outbox, serving):
    outbox.publish("sms")
    one = serving("--no-execute")
    async with await one.client() as client:
        response = await client.post("/v1/intents", json=SMS)
        assert response.status_code == 201
        assert (await client.get("/readyz")).json()["scopes"]["item"]["mode"] == "off"
    assert outbox.status(response.json()["intent_id"]) == "pending"


def listed(database):
    return {
        row["instance_id"]: row["role"]
        for row in database.execute("SELECT instance_id, role FROM leasehold.instance_status")
    }


async def test_death_of_an_instance_that_only_accepts_intents_is_reported(engine, serving):
    engine.publish("sms")
    dead, stopped = (serving("--no-execute", holder_id=name) for name in ("dead", "stopped"))
    for one in (dead, stopped):
        async with await one.client() as client:
            await until(lambda: {"api"} == set(listed(engine.database).values()))
            shown = (await client.get("/v1/instances")).json()["instances"]
    assert {(one["instance_id"], one["role"]) for one in shown} >= {("stopped/api", "api")}
    dead.send(signal.SIGKILL)
    stopped.send(signal.SIGTERM)
    assert await stopped.ended() == 0
    # Its reaper reports who fell silent within its last ten runs.
    worker = engine.worker(reaper_seconds="1.5")
    died = await worker.logged("worker_died")
    assert died["dead_worker"] == "dead/api"
    assert listed(engine.database).items() >= {("dead/api", "silent"), ("stopped/api", "stopped")}


async def test_death_of_an_instance_of_the_api_is_not_hidden_by_one_that_executes_under_its_name(
    engine, serving
):
    engine.publish("sms")
    one = serving("--no-execute", holder_id="pod-1")
    async with await one.client() as client:
        worker = engine.worker(holder_id="pod-1")
        await until(lambda: listed(engine.database) == {"pod-1/api": "api", "pod-1": "worker"})
        assert (await client.get("/readyz")).json()["instance_id"] == "pod-1/api"
    one.send(signal.SIGKILL)
    await until(lambda: listed(engine.database) == {"pod-1/api": "silent", "pod-1": "worker"})
    worker.send(signal.SIGKILL)
    await until(lambda: listed(engine.database) == {"pod-1/api": "silent", "pod-1": "silent"})


async def test_instance_of_the_api_cannot_take_the_name_of_one_that_executes(outbox, database):
    outbox.call("executor", "renew_instance", "a", "worker", [], {}, 60)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="executes intents"):
        outbox.call("api", "renew_api_instance", "a", {}, 60)
    assert listed(database) == {"a": "worker"}


async def test_leader_and_follower_are_ready_and_report_their_mode(engine, serving):
    engine.publish("orders", scope="cluster")
    started = [serving(cluster_acquire_seconds="0.2") for _ in range(2)]
    name = "cluster/submission-manager-executor"

    async def roles():
        found = []
        for one in started:
            async with await one.client() as client:
                response = await client.get("/readyz")
                assert response.status_code == 200
                found.append(response.json()["scopes"].get(name))
        told = all(one and one["holder_id"] for one in found)
        return found if told and {one["mode"] for one in found} == {"leader", "follower"} else None

    found = await eventually(roles)
    assert len({one["holder_id"] for one in found}) == 1
    assert all(one["lease_expires_at"] for one in found)


async def test_draining_instance_is_not_ready_but_still_answers(engine, serving):
    engine.publish("sms")
    one = serving(http_drain_seconds="1.5")
    async with await one.client() as client:
        first = await client.post("/v1/intents", json=SMS)
        one.send(signal.SIGTERM)
        await one.logged("drain_started")
        response = await client.get("/readyz")
        assert (response.status_code, response.json()["status"]) == (503, "draining")
        assert (await client.get("/healthz")).status_code == 200
        late = await client.post("/v1/intents", json=SMS)
        assert late.status_code == 201
        assert late.headers["connection"] == "close"
    assert await one.ended() == 0
    for response in (first, late):
        assert engine.outbox.status(response.json()["intent_id"]) in {"accepted", "pending"}
    assert one.lines("worker_stopped")


async def test_draining_instance_ends_its_calls_before_it_refuses_requests(engine, serving):
    engine.publish("sms")
    one = serving(http_drain_seconds="25")
    async with await one.client() as client:
        one.send(signal.SIGTERM)
        await one.logged("worker_stopped")
        assert (await client.get("/readyz")).json()["status"] == "draining"
        assert (await client.post("/v1/intents", json=SMS)).status_code == 201


async def test_long_polls_and_streams_end_when_the_instance_stops(outbox, serving):
    outbox.publish("sms")
    one = serving("--no-execute")
    async with await one.client() as client, client.stream("GET", "/v1/events") as events:
        lines = events.aiter_lines()
        assert (await anext(lines)).startswith("retry:")
        waiting = asyncio.create_task(client.post("/v1/intents?wait_seconds=30", json=SMS))
        await until(lambda: outbox.claim())
        one.send(signal.SIGTERM)
        response = await waiting
        assert response.status_code == 201
        assert response.json()["intent"]["status"] == "pending"
        assert [line async for line in lines if line.startswith("data")] == []
    assert await one.ended() == 0


async def test_instance_reports_and_survives_a_database_outage(outbox, serving, database):
    outbox.publish("sms")
    async with TcpProxy(database.url) as proxy:
        one = serving("--no-execute", url=proxy.through(database.url))
        async with await one.client() as client:
            assert (await client.post("/v1/intents", json=SMS)).status_code == 201
            proxy.cut()
            response = await client.post("/v1/intents", json=SMS)
            assert (response.status_code, response.json()["code"]) == (503, "database_unavailable")
            assert int(response.headers["retry-after"]) > 0

            async def answers(status):
                return (await client.get("/readyz")).status_code == status

            await eventually(lambda: answers(503))
            assert (await client.get("/healthz")).status_code == 200
            proxy.heal()
            await eventually(lambda: answers(200))

            async def is_taken():
                return (await client.post("/v1/intents", json=SMS)).status_code == 201

            await eventually(is_taken)
            proxy.blackhole()  # connections stay open, but nothing is answered
            await eventually(lambda: answers(503))
            proxy.heal()
            await eventually(lambda: answers(200))


@pytest.fixture
def certificate(tmp_path):
    return self_signed(tmp_path, "IP:127.0.0.1")


@pytest.mark.program("openssl")
async def test_instance_with_a_certificate_serves_only_https(outbox, serving, certificate):
    outbox.publish("sms")
    cert, key = certificate
    one = serving("--no-execute", "--tls-cert", str(cert), "--tls-key", str(key))
    url = await one.url()
    assert url.startswith("https://")
    trusted = ssl.create_default_context(cafile=str(cert))
    async with await one.client(verify=trusted) as client:
        assert (await client.post("/v1/intents", json=SMS)).status_code == 201
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.TransportError):
            await client.get(f"{url.replace('https', 'http')}/healthz")


def test_invalid_serve_options_are_reported_in_one_line(database, tmp_path):
    for arguments, part in (
        (["--no-auth", "--host", "0.0.0.0"], "--no-auth cannot be used on 0.0.0.0"),
        (["--tls-cert", str(tmp_path / "none.pem")], "Error: --tls-cert: "),
        (["--host", "192.0.2.1"], "cannot serve on 192.0.2.1:8080"),
    ):
        result = leasehold("serve", *arguments, url=database.url)
        assert_one_line_of_error(result, part)


def test_login_without_roles_is_told_which_are_missing(database):
    result = leasehold("serve", "--port", "0", url=database.url_as("executor"))
    assert_one_line_of_error(result, "GRANT leasehold_", "leasehold_ingest", "leasehold_api")


async def test_access_log_has_every_request_but_no_secret(outbox, serving):
    outbox.publish("sms")
    one = serving("--no-execute")
    async with await one.client() as client:
        sent = SMS | {"payload": {"secret": "hush"}}
        headers = {"X-Request-Id": "mine-1", "Idempotency-Key": "key-1"}
        response = await client.post("/v1/intents", json=sent, headers=headers)
        assert response.headers["x-request-id"] == "mine-1"
        made = await client.get("/v1/%0aintents?x=hush", headers={"X-Request-Id": "a b"})
        assert made.headers["x-request-id"] != "a b"
    lines = await until(lambda: one.lines("request") if len(one.lines("request")) >= 2 else None)
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("POST", "/v1/intents", 201),
        ("GET", "/v1/%0aintents", 404),
    ]
    assert lines[0]["request_id"] == "mine-1"
    assert lines[0]["token"]
    assert lines[0]["milliseconds"] > 0
    text = one.log.read_text()
    assert "hush" not in text
    assert one.token not in text

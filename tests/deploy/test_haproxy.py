"""Behind HAProxy any instance may die or drain, and no acknowledged intent is lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import signal
import time
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from functools import partial
from uuid import UUID

import httpx
import pytest

from leasehold import AsyncClient, NewIntent
from leasehold.domain.errors import LeaseholdError
from leasehold.sandbox import Sandbox
from leasehold.store.postgres.readers import event_cursor
from tests.deploy.balanced import INSTANCES, Balanced, free_ports, start_haproxy, states
from tests.support.engine import WAIT_SECONDS, until
from tests.support.serve_process import eventually

pytestmark = [pytest.mark.program("haproxy"), pytest.mark.timeout(240)]

# The thorough suite sets 60.
SOAK_SECONDS = float(os.environ.get("TEST_SOAK_SECONDS", "8"))
KILL_SECONDS = 2.0
KILLS_MIN = 4
CALLERS = 12
LOG = logging.getLogger(__name__)
BEGINNING = event_cursor(0, UUID(int=0), 0)


@pytest.fixture(scope="module")
def balanced():
    with Balanced() as balanced:
        yield balanced


@pytest.fixture
async def sandbox():
    async with Sandbox(seed=1) as sandbox:
        yield sandbox


class Load:
    """Callers that enqueue until told to stop, each intent with its own key."""

    def __init__(self, balanced, target):
        self._balanced = balanced
        self._target = target
        self._numbers = itertools.count(1)
        self.acknowledged = {}
        self.retried = Counter()
        self.is_over = False

    async def run(self):
        """Half of the callers let the client retry, half retry themselves."""
        async with (
            self.client(retry_seconds=WAIT_SECONDS) as patient,
            self.client(retry_seconds=0) as impatient,
            asyncio.TaskGroup() as callers,
        ):
            for number in range(CALLERS):
                callers.create_task(
                    self._retry(impatient) if number % 2 else self._let_client_retry(patient)
                )

    def client(self, **more):
        return AsyncClient(self._balanced.url, self._balanced.token, **more)

    async def _let_client_retry(self, client):
        while not self.is_over:
            if random.random() < 0.1:
                given = [self._next() for _ in range(5)]
                for new, answer in zip(given, await client.enqueue_many(given), strict=True):
                    assert answer.verdict.is_committed, answer
                    self._saw(new, answer.intent_id)
            else:
                new = self._next()
                wait_seconds = 2 if random.random() < 0.05 else 0
                self._saw(new, (await client.enqueue(new, wait_seconds=wait_seconds)).intent_id)
            await asyncio.sleep(0.02)

    async def _retry(self, client):
        while not self.is_over:
            new, ends_at = self._next(), time.monotonic() + WAIT_SECONDS
            while True:
                try:
                    self._saw(new, (await client.enqueue(new)).intent_id)
                    break
                except LeaseholdError as error:
                    if time.monotonic() > ends_at:
                        raise AssertionError("no retry succeeded") from error
                    self.retried[f"{type(error).__name__}: {error}"[:60]] += 1
                    await asyncio.sleep(0.1)
            await asyncio.sleep(0.02)

    def has_passed(self, count):
        return len(self.acknowledged) > count

    def _next(self):
        number = next(self._numbers)
        return NewIntent(
            target=self._target, payload={"number": number}, idempotency_key=f"n-{number}"
        )

    def _saw(self, new, intent_id):
        self.acknowledged[new.idempotency_key] = intent_id


async def follow(client, seen):
    """Count the terminal events of each intent."""
    async with aclosing(client.events(BEGINNING, target="soak")) as events:
        async for event in events:
            if event.attempt.state.is_terminal:
                seen[event.attempt.intent_id] += 1


def is_up_beside(balanced, number):
    """Whether another instance is up; on a slow machine it may still be starting."""
    balanced.revive()
    return "UP" in [
        state for name, state in balanced.states().items() if name[-1] != str(number + 1)
    ]


async def kill_one_after_the_other(balanced, load):
    """Kill and restart one instance after the other, and crash the database in the middle.

    A slow machine needs more time for the same number of kills.
    """
    began_at = time.monotonic()
    has_crashed = False
    for kills in itertools.count():
        elapsed = time.monotonic() - began_at
        if not has_crashed and kills and elapsed >= SOAK_SECONDS / 2:
            await balanced.crash_database()
            has_crashed = True
            LOG.info("the database has crashed, after %s intents", len(load.acknowledged))
        elif elapsed >= SOAK_SECONDS and kills >= KILLS_MIN:
            return kills
        victim = kills % INSTANCES
        await until(partial(is_up_beside, balanced, victim), context=balanced.logs)
        before = len(load.acknowledged)
        balanced.kill(victim)
        balanced.restart(victim)
        LOG.info("killed %s, after %s intents", victim, before)
        await asyncio.sleep(KILL_SECONDS)
        # The others carry on.
        await until(partial(load.has_passed, before), context=balanced.logs)
    raise AssertionError("it counts for ever")


async def test_every_acknowledged_intent_has_one_effect_while_instances_die(balanced, sandbox):
    balanced.publish("soak", sandbox)
    await balanced.ready()
    load = Load(balanced, "soak")
    seen = Counter()
    async with load.client(retry_seconds=WAIT_SECONDS) as listener:
        following = asyncio.create_task(follow(listener, seen))
        calling = asyncio.create_task(load.run())
        kills = await kill_one_after_the_other(balanced, load)
        load.is_over = True
        await asyncio.wait_for(calling, WAIT_SECONDS)
        ids = list(load.acknowledged.values())
        await until(
            lambda: not balanced.unfinished(ids),
            context=lambda: (balanced.unfinished(ids)[:5], balanced.logs()),
        )
        await until(lambda: seen.keys() >= set(ids), context=balanced.logs)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    LOG.info("%s kills, %s intents; errors retried: %s", kills, len(ids), dict(load.retried))
    # Unacknowledged intents were retried until acknowledged, so there are no others.
    [row] = balanced.database.execute(
        "SELECT count(*) AS intents, count(DISTINCT idempotency_key) AS keys"
        "  FROM leasehold.intents WHERE target = 'soak'"
    )
    assert row == {"intents": len(ids), "keys": len(ids)}
    assert len(set(ids)) == len(ids)
    effects = sandbox.effect_counts("keyed")
    assert Counter(effects.values()) == {1: len(ids)}
    assert Counter(seen.values()) == {1: len(ids)}


async def test_leader_and_followers_get_requests(balanced, sandbox):
    balanced.publish("ledger", sandbox, scope="cluster")
    await balanced.ready()
    name = "cluster/submission-manager-executor"

    async def modes(client):
        urls = [balanced.instance_url(number) for number in range(INSTANCES)]
        found = [(await client.get(f"{url}/readyz")).json()["scopes"] for url in urls]
        return sorted(one.get(name, {}).get("mode", "") for one in found)

    async with httpx.AsyncClient() as client:

        async def is_elected():
            return await modes(client) == ["follower", "follower", "leader"]

        await eventually(is_elected)
    before = {row["svname"]: int(row["stot"]) for row in balanced.stats()}
    async with AsyncClient(balanced.url, balanced.token) as client:
        receipts = await asyncio.gather(*[client.enqueue("ledger", n) for n in range(60)])
        assert set(balanced.states().values()) == {"UP"}
        shares = {
            row["svname"]: int(row["stot"]) - before[row["svname"]] for row in balanced.stats()
        }
        assert all(shares.values()), shares
        last = await client.get(receipts[-1].intent_id, wait_seconds=30)
    assert last.status == "accepted"


async def test_draining_instance_gets_no_requests_and_none_fails(balanced, sandbox):
    balanced.publish("drained", sandbox)
    await balanced.ready()
    leaving = balanced.instances[0]
    answers = Counter()
    is_over = False

    async def ask(client):
        while not is_over:
            # Without any retry: failures are counted.
            response = await client.post("/v1/intents", json={"target": "drained", "payload": 1})
            answers[response.status_code] += 1
            await asyncio.sleep(0.005)

    headers = {"Authorization": f"Bearer {balanced.token}"}
    async with (
        httpx.AsyncClient(base_url=balanced.url, headers=headers, timeout=30) as client,
        asyncio.TaskGroup() as callers,
    ):
        for _ in range(8):
            callers.create_task(ask(client))
        leaving.send(signal.SIGTERM)
        await until(lambda: balanced.states()["instance-1"] == "DOWN", context=balanced.logs)
        assert leaving.process.poll() is None, "it stopped while HAProxy still sent it requests"
        before = sum(answers.values())
        assert await leaving.ended() == 0
        await until(lambda: sum(answers.values()) > before + 50)
        balanced.restart(0)
        await balanced.ready()
        is_over = True
    assert set(answers) == {201}, (answers, balanced.logs())


async def test_haproxy_answers_without_instances_and_hides_instance_paths(
    balanced,
):
    await balanced.ready()
    async with httpx.AsyncClient(base_url=balanced.url) as client:
        for path in ("/metrics", "/readyz"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        healthy = await client.get("/healthz", headers={"X-Request-Id": "mine"})
        assert (healthy.status_code, healthy.headers["x-request-id"]) == (200, "mine")
        assert len((await client.get("/healthz")).headers["x-request-id"]) == 36
        for number in range(INSTANCES):
            balanced.instances[number].send(signal.SIGSTOP)
        await until(lambda: "UP" not in balanced.states().values(), context=balanced.logs)
        nobody = await client.post("/v1/intents")
        for number in range(INSTANCES):
            balanced.instances[number].send(signal.SIGCONT)
    assert (nobody.status_code, nobody.headers["retry-after"]) == (503, "1")
    assert nobody.headers["content-type"] == "application/problem+json"
    assert nobody.json()["code"] == "no_instance"
    await balanced.ready()


class Dying:
    """An instance that is ready until its first request, on which it closes and dies."""

    def __init__(self):
        self.received = []

    async def connected(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /readyz"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            self.received.append(head.split(b" ")[0].decode())
            self.server.close()
        writer.close()


@asynccontextmanager
async def dying_instances(folder, count):
    """HAProxy in front of instances that die on their first request."""
    ports = free_ports(count + 2)
    dying = [Dying() for _ in range(count)]
    for one, port in zip(dying, ports[2:], strict=True):
        one.server = await asyncio.start_server(one.connected, "127.0.0.1", port)
    haproxy = start_haproxy(folder, ports)
    url = f"http://127.0.0.1:{ports[0]}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            await until(lambda: set(states(folder).values()) == {"UP"})
            yield client, dying
    finally:
        haproxy.kill()
        haproxy.wait(10)
        for one in dying:
            one.server.close()


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "order-4711"}], ids=["bare", "keyed"])
async def test_write_is_not_retried_by_haproxy_if_its_instance_dies(tmp_path, headers):
    async with dying_instances(tmp_path, INSTANCES) as (client, dying):
        answer = await client.post("/v1/intents", headers=headers)
    assert [kind for one in dying for kind in one.received] == ["POST"]
    assert answer.status_code == 502
    assert answer.json()["detail"] == "Outcome unknown. Retry with the same idempotency key."


async def test_read_is_retried_at_every_instance(tmp_path):
    async with dying_instances(tmp_path, INSTANCES) as (client, dying):
        answer = await client.get("/v1/intents")
    assert [kind for one in dying for kind in one.received] == ["GET"] * INSTANCES
    assert answer.status_code in {502, 503}
    assert "nothing was written" not in answer.text


async def test_head_that_is_slightly_too_large_is_refused_by_the_instance(balanced):
    await balanced.ready()
    async with httpx.AsyncClient(base_url=balanced.url) as client:
        taken = await client.get("/healthz", headers={"X-Much": "y" * 31_000})
        for headers in ({"X-Much": "y" * 36_000}, {f"X-{n}": "y" for n in range(110)}):
            refused = await client.get("/healthz", headers=headers)
            assert refused.headers["content-type"] == "application/problem+json"
            assert (refused.status_code, refused.json()["code"]) == (431, "headers_too_large")
    assert taken.status_code == 200
